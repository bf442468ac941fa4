// The head's journal, and what nodes and clients may say to the head in any order.

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/record.h"
#include "runtime/wire/control_messages.h"
#include "scheduler/control/delta.h"
#include "scheduler/control/delta_batch.h"
#include "scheduler/control/head_state.h"
#include "scheduler/control/journal_bytes.h"
#include "scheduler/head/journal.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/runtime/wire/every_message.h"

namespace troupe::tests {
namespace {

using namespace scheduler;

// --- records -------------------------------------------------------------------------------------

void run_delta(std::span<const std::byte> input) {
  const Result<Delta> read = decode_delta(input);
  if (!read.ok()) {
    TROUPE_CHECK(read.status().code() == Code::kDataLoss ||
                 read.status().code() == Code::kUnsupported);
    return;
  }
  const Result<Delta> again = decode_delta(encode_delta(*read));
  TROUPE_CHECK(again.ok() && *again == *read);
  const std::vector<Delta> alone{*read};
  TROUPE_CHECK(encode_deltas(alone).size() + kRecordHeaderBytes <= journal_bytes(*read));
  const std::vector<Delta> twice{*read, *read};
  std::size_t count = 0;
  const Status status = decode_deltas(encode_deltas(twice), [&](const Delta& delta) {
    TROUPE_CHECK(delta == *read);
    ++count;
    return Status();
  });
  TROUPE_CHECK(status.ok() && count == twice.size(), "{}", status.to_string());
}

template <std::size_t... I>
std::vector<Delta> filled_deltas(std::index_sequence<I...>) {
  Filler filler;
  return {Delta(filler.make<std::variant_alternative_t<I, Delta>>())...};
}

std::vector<Delta> filled_deltas() {
  return filled_deltas(std::make_index_sequence<std::variant_size_v<Delta>>());
}

std::vector<FuzzBytes> delta_seeds() {
  std::vector<FuzzBytes> seeds;
  for (const Delta& delta : filled_deltas()) seeds.push_back(encode_delta(delta));
  return seeds;
}

// --- a cluster in a few messages -----------------------------------------------------------------

constexpr ActorId kSeedActor{1, 1};
constexpr ActorId kSeedOther{1, 2};
constexpr NodeId kSeedNode{2, 1};
constexpr ClientId kSeedClient{3, 1};

wire::ActorSpec seed_spec(ActorId id, const char* name) {
  wire::ActorSpec spec;
  spec.actor_id = id;
  spec.type = "Counter";
  spec.name = name;
  spec.resources = {{"CPU", wire::kResourceUnit}};
  spec.restart.max_restarts = 1;
  spec.job_id = JobId{4, 1};
  spec.owner = kSeedClient;
  return spec;
}

wire::RegisterNode seed_node() {
  wire::RegisterNode node;
  node.request_id = 1;
  node.node.node_id = kSeedNode;
  node.node.name = "n";
  node.node.total = {{"CPU", 4 * wire::kResourceUnit}};
  return node;
}

HeadConfig fuzz_head_config() {
  HeadConfig config;
  config.events_max = 20;
  config.dead_actors_max = 3;
  config.dead_nodes_max = 2;
  config.actors_max = 50;
  config.ended_jobs_max = 2;
  return config;
}

Moment begin_of_time() { return {TimePoint(std::chrono::hours(1)), 1'700'000'000'000'000}; }

// --- the journal ---------------------------------------------------------------------------------

const std::string kFuzzJournalPath = "/journal";

// Replays, goes on, and keeps what it knows: whatever the file holds, a head starts or says why
// not.
void start_head(FaultyFileSystem& files) {
  FileJournal journal(files, kFuzzJournalPath);
  HeadState state(fuzz_head_config());
  const Status replayed =
      journal.replay([&](Delta delta) { return state.replay(std::move(delta)); });
  if (!replayed.ok()) {
    TROUPE_CHECK(replayed.code() == Code::kDataLoss || replayed.code() == Code::kUnsupported, "{}",
                 replayed.to_string());
    return;
  }
  TROUPE_CHECK(journal.rewrite(state.snapshot()).ok());
  Moment now = begin_of_time();
  (void)state.resume(now);
  for (int i = 0; i < 4; ++i) {
    now.steady += std::chrono::seconds(11);
    (void)state.apply(Tick{}, now);
  }
}

// The first byte says whether the rest is a file as it is, or pieces that become sound records.
void run_journal(std::span<const std::byte> input) {
  FuzzInput in(input);
  const bool raw = (in.u8() & 1) != 0;
  std::string content;
  if (raw) {
    content = fuzz_text(in.rest());
  } else {
    content = "TRPJRNL2";
    while (!in.empty()) {
      const auto payload = in.piece();
      if (payload.empty()) continue;
      const std::size_t at = content.size();
      content.resize(at + kRecordHeaderBytes + payload.size());
      write_record(reinterpret_cast<std::byte*>(content.data()) + at, at, {payload});
    }
  }
  FaultyFileSystem files;
  put_file(files, kFuzzJournalPath, content);
  start_head(files);
}

// What a head keeps of a small life.
std::vector<Delta> lived_deltas() {
  HeadState state(fuzz_head_config());
  std::vector<Delta> deltas;
  Moment now = begin_of_time();
  const auto say = [&](PeerId peer, wire::ControlMessage message) {
    now.steady += std::chrono::milliseconds(1);
    auto outcome = state.apply(MessageArrived{peer, std::move(message)}, now);
    deltas.insert(deltas.end(), outcome.deltas.begin(), outcome.deltas.end());
  };
  say(1, wire::ClientHello{1, kSeedClient, JobId{4, 1}, "driver", "driver"});
  wire::CreateActors create;
  create.request_id = 2;
  create.specs = {seed_spec(kSeedActor, "a"), seed_spec(kSeedOther, "b")};
  create.gang = true;
  say(1, create);
  say(2, seed_node());
  say(2, wire::ActorStarted{kSeedActor, 1, 100});
  say(2, wire::ActorReady{kSeedActor, 1});
  say(2, wire::ActorExited{.actor_id = kSeedActor, .generation = 1, .exit = {0, 9}});
  return deltas;
}

std::vector<FuzzBytes> journal_seeds() {
  std::vector<FuzzBytes> seeds;
  for (const auto& deltas : {lived_deltas(), filled_deltas()}) {
    FuzzSeed records;
    records.u8(0);
    for (const Delta& delta : deltas) records.piece(encode_delta(delta));
    seeds.push_back(records.take());
    seeds.push_back(FuzzSeed().u8(0).piece(encode_deltas(deltas)).take());
    FaultyFileSystem files;
    FileJournal journal(files, kFuzzJournalPath);
    TROUPE_CHECK(journal.rewrite(deltas).ok());
    const std::string content = files.read(kFuzzJournalPath, 1u << 20).value();
    for (const std::size_t end : {content.size(), content.size() - 3, std::size_t{8}}) {
      seeds.push_back(FuzzSeed().u8(1).rest(bytes_of(content).first(end)).take());
    }
  }
  return seeds;
}

// --- the head ------------------------------------------------------------------------------------

constexpr std::size_t kFuzzPeers = 4;
constexpr int kFuzzEventsMax = 64;

enum class FuzzEvent : std::uint8_t { kMessage = 0, kMessageToo = 1, kClosed = 2, kTime = 3 };

// Peers that say anything in any order, as far as it can be decoded: what must always hold of the
// head's state does.
void run_head(std::span<const std::byte> input) {
  FuzzInput in(input);
  HeadState state(fuzz_head_config());
  Moment now = begin_of_time();
  PeerId next_peer = 1;
  std::array<PeerId, kFuzzPeers> peers{};
  for (PeerId& peer : peers) peer = next_peer++;
  const auto apply = [&](Event event) {
    auto outcome = state.apply(std::move(event), now);
    const auto broken = state.broken_invariant();
    TROUPE_CHECK(!broken, "{}", *broken);
    for (const Delta& delta : outcome.deltas) {
      TROUPE_CHECK(decode_delta(encode_delta(delta)).ok());
    }
    return outcome;
  };
  // A connection that ended is never heard of again; the next one has another number.
  const auto close = [&](PeerId& peer) {
    const PeerId closed = std::exchange(peer, next_peer++);
    (void)apply(PeerClosed{closed});
  };
  for (int i = 0; i < kFuzzEventsMax && !in.empty(); ++i) {
    const std::uint8_t control = in.u8();
    PeerId& peer = peers[control % kFuzzPeers];
    switch (static_cast<FuzzEvent>(control / kFuzzPeers % 4)) {
      case FuzzEvent::kClosed:
        close(peer);
        break;
      case FuzzEvent::kTime: {
        const Duration step = std::chrono::milliseconds(100 * in.u8());
        now.steady += step;
        now.unix_us += std::chrono::duration_cast<std::chrono::microseconds>(step).count();
        (void)apply(Tick{});
        break;
      }
      default: {
        auto message = wire::decode_control(in.piece());
        if (!message.ok()) break;
        const auto outcome = apply(MessageArrived{peer, std::move(*message)});
        for (const Command& command : outcome.commands) {
          const auto* ended = get_if<ClosePeer>(&command);
          const auto found =
              ended == nullptr ? peers.end() : std::find(peers.begin(), peers.end(), ended->peer);
          if (found != peers.end()) close(*found);
        }
      }
    }
  }
}

class HeadSeed {
 public:
  HeadSeed& say(std::uint8_t peer, const wire::ControlMessage& message) {
    seed_.u8(peer).piece(wire::encode(message));
    return *this;
  }
  HeadSeed& close(std::uint8_t peer) {
    seed_.u8(static_cast<std::uint8_t>(kFuzzPeers * 2 + peer));
    return *this;
  }
  HeadSeed& pass(std::uint8_t tenths) {
    seed_.u8(kFuzzPeers * 3).u8(tenths);
    return *this;
  }
  FuzzBytes take() { return seed_.take(); }

 private:
  FuzzSeed seed_;
};

std::vector<FuzzBytes> head_seeds() {
  const wire::ClientHello hello{1, kSeedClient, JobId{4, 1}, "driver", "driver"};
  wire::CreateActors create;
  create.request_id = 2;
  create.specs = {seed_spec(kSeedActor, "a"), seed_spec(kSeedOther, "b")};
  wire::CreateActors gang = create;
  gang.gang = true;
  const wire::ActorExited exited{.actor_id = kSeedActor, .generation = 1, .exit = {0, 9}};
  wire::RegisterNode back = seed_node();
  back.running.push_back({create.specs[0], 1, 100, true});
  std::vector<FuzzBytes> seeds;
  const auto started = [&](const wire::CreateActors& actors) {
    HeadSeed seed;
    seed.say(0, hello).say(1, seed_node()).say(0, actors);
    seed.say(1, wire::ActorStarted{kSeedActor, 1, 100}).say(1, wire::ActorReady{kSeedActor, 1});
    return seed;
  };
  seeds.push_back(started(create).say(1, exited).pass(1).pass(100).take());
  seeds.push_back(started(gang).close(1).pass(10).say(1, back).take());
  seeds.push_back(started(gang).close(1).pass(50).take());
  seeds.push_back(started(create).close(0).pass(20).say(1, exited).take());
  seeds.push_back(started(create).say(0, wire::KillActor{3, kSeedActor, true, 100, "x"}).take());
  seeds.push_back(started(gang).say(0, wire::StopCluster{3, "x"}).say(1, exited).pass(200).take());
  seeds.push_back(started(gang).say(0, wire::EndJob{3, JobId{4, 1}, "x"}).say(1, exited).take());
  wire::SubmitJob submit{4, "job", seed_spec(ActorId{1, 3}, "")};
  submit.driver.restart = {};
  submit.driver.job_id = JobId{4, 2};
  submit.driver.program = {{"/bin/true"}, "/"};
  const wire::ActorExited ended{.actor_id = ActorId{1, 3}, .generation = 1, .exit = {3, 0}};
  const wire::ClientHello inside{5, ClientId{3, 2}, JobId{4, 2}, "inside", "driver"};
  const auto submitted = [&] {
    HeadSeed seed;
    seed.say(0, hello).say(1, seed_node()).say(0, submit);
    seed.say(1, wire::ActorStarted{ActorId{1, 3}, 1, 100}).say(1, wire::ActorReady{{1, 3}, 1});
    return seed.say(2, inside).say(2, create);
  };
  seeds.push_back(submitted().say(1, ended).say(2, create).say(0, wire::ListJobs{6}).take());
  seeds.push_back(submitted().say(0, wire::StopJob{6, JobId{4, 2}, 100, "x"}).say(1, ended).take());
  seeds.push_back(submitted().close(1).pass(50).take());
  std::uint8_t peer = 0;
  for (const auto& message : every_message<wire::ControlMessage>().filled) {
    seeds.push_back(HeadSeed().say(0, hello).say(1, seed_node()).say(peer, message).take());
    peer ^= 1;
  }
  return seeds;
}

}  // namespace

constinit const FuzzTarget kDeltaTarget{"delta", "a decision of the head's journal", 4096,
                                        &run_delta, &delta_seeds};
constinit const FuzzTarget kJournalTarget{"journal",
                                          "a head's journal, and a head that starts on it", 8192,
                                          &run_journal, &journal_seeds};
constinit const FuzzTarget kHeadTarget{"head", "what nodes and clients say to a head", 8192,
                                       &run_head, &head_seeds};

}  // namespace troupe::tests
