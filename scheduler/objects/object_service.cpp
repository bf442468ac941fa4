#include "scheduler/objects/object_service.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/net/event_loop.h"
#include "runtime/process/descriptor_limit.h"
#include "scheduler/objects/object_memory.h"
#include "scheduler/objects/object_transfer.h"
#include "scheduler/objects/spill_folder.h"
#include "scheduler/objects/store_peers.h"
#include "scheduler/objects/store_processes.h"
#include "scheduler/objects/worker_threads.h"

namespace troupe::scheduler {
namespace {

// A training that gives its weights away again and again does so within this.
constexpr Duration kSpareTime = std::chrono::seconds(60);
constexpr Duration kTickInterval = std::chrono::milliseconds(50);
// The head has so long to list the nodes that may have a copy, and they to be asked for it.
constexpr Duration kListTime = std::chrono::seconds(10);
constexpr Duration kSearchTime = std::chrono::seconds(20);
// How long a reader of another node waits for an object that is on disk or on its way here: less
// than it waits itself (kTransferPatience), so that none is waited for whose reader has gone.
constexpr Duration kFindTime = std::chrono::seconds(15);
constexpr std::uint32_t kTotalsBytesMax = 64u << 10;

class Service final : public ObjectService {
 public:
  Service(ObjectServiceOptions options, std::unique_ptr<net::LoopThread> thread);
  ~Service() override;

  void serve(net::AcceptedSocket socket) override;
  void nodes_listed(std::vector<wire::NodeInfo> nodes) override;
  // Removes what killed daemons have left on the disk.
  void clean_disk() {
    disk([this] { spill_.remove_what_others_left(); });
  }

 private:
  struct Source {
    NodeId node;
    net::Address address;
  };

  TimePoint now() const { return loop_.clock().now(); }
  void post(std::function<void()> work) {
    loop_.post([alive = std::weak_ptr(alive_), work = std::move(work)] {
      if (!alive.expired()) work();
    });
  }
  void after(Duration delay, std::function<void()> work) {
    loop_.call_after(delay, [alive = std::weak_ptr(alive_), work = std::move(work)] {
      if (!alive.expired()) work();
    });
  }

  void greet(UniqueFd socket);
  Status on_process(ProcessKey process, const wire::ObjectMessage& message);
  void serve_bytes(ByteStream stream, const std::string& peer);
  Result<ReadableObject> find(const wire::ReadObject& read, const std::string& peer);

  void carry_out();
  void carry_out(ObjectEffect& effect);
  void tell_process(ObjectEffect& effect);
  void create(const ObjectEffect& effect);
  void spill(ObjectEffect& effect);
  void forget(std::shared_ptr<const SpillFile> file);
  void restore(ObjectEffect& effect);
  void fetch(const ObjectEffect& effect);
  void fetch(const ObjectEffect& effect, std::vector<Source> sources);
  void give_up_late_orphans();
  void disk(std::function<void()> work);
  wire::StoreTotals totals(const wire::ReadStoreTotals& asked) const;
  void moved(wire::StoreMove move);
  void settle_soon();
  void tick_soon();

  const ObjectServiceOptions options_;
  std::unique_ptr<net::LoopThread> thread_;
  net::EventLoop& loop_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  OpenStreams streams_;
  IdleStreams idle_{loop_.clock()};
  // Fetches wait for those that serve on other nodes, which wait for fetches of theirs.
  WorkerThreads fetching_{32, 1'000'000};
  WorkerThreads searching_{8, 1'000'000};
  WorkerThreads serving_{64, 1024};
  // Processes of this node are let in whatever other nodes wait for.
  WorkerThreads greeting_{4, 1024};
  WorkerThreads disk_{1, 1'000'000};
  std::atomic<ProcessKey> next_key_{1};
  // Loop thread from here on.
  ObjectStore store_;
  SpillFolder spill_;
  std::optional<StoreProcesses> processes_;
  std::optional<StorePeers> peers_;
  std::map<ProcessKey, std::function<void(const wire::ObjectAnswer&)>> readers_;
  std::map<SegmentKey, std::shared_ptr<ObjectMemory>> memories_;
  std::map<SegmentKey, Status> failed_;
  std::map<SegmentKey, std::shared_ptr<const SpillFile>> files_;
  std::map<SegmentKey, std::shared_ptr<std::uint64_t>> fetched_;  // bytes that have arrived
  std::deque<wire::StoreMove> moves_;
  // Objects whose sources are not known until nodes are listed, and since when they wait.
  std::vector<std::pair<ObjectEffect, TimePoint>> orphans_;
  bool settling_ = false;
  bool ticking_ = false;
  bool carrying_out_ = false;
};

Service::Service(ObjectServiceOptions options, std::unique_ptr<net::LoopThread> thread)
    : options_(std::move(options)),
      thread_(std::move(thread)),
      loop_(thread_->loop()),
      store_(options_.store),
      spill_(options_.spill_parent, options_.store.node_id.to_string()) {
  processes_.emplace(
      loop_,
      StoreProcesses::Options{
          .welcome = {.status = {},
                      .node_id = options_.store.node_id,
                      .endpoint = options_.store.endpoint,
                      .memory_max_bytes = options_.store.memory_max_bytes},
          .node_name = options_.store.node_name,
          .log = options_.log,
          .joined = [this](ProcessKey process,
                           const std::string& name) { store_.process_joined(process, name); },
          .on_message =
              [this](ProcessKey process, const wire::ObjectMessage& message) {
                return on_process(process, message);
              },
          .gone = [this](ProcessKey process) { store_.process_gone(process); },
          .told = [this] { carry_out(); }});
  peers_.emplace(loop_, store_,
                 StorePeers::Options{
                     .node_id = options_.store.node_id,
                     .endpoint = options_.store.endpoint,
                     .token = options_.token,
                     .patience = options_.peer_patience,
                     .log = options_.log,
                     .ask_for_nodes = options_.ask_for_nodes,
                     .others_wait =
                         [this] {
                           give_up_late_orphans();
                           return !orphans_.empty();
                         },
                     .read_processes = [this] { processes_->read_all(); },
                     .totals = [this](const wire::ReadStoreTotals& asked) { return totals(asked); },
                     .told = [this] { carry_out(); }});
}

Service::~Service() {
  std::promise<void> done;
  loop_.post([this, &done] {
    alive_.reset();
    processes_.reset();
    peers_.reset();
    for (auto& [segment, memory] : memories_) memory->abandon();
    readers_.clear();  // who waits in find() hears of it
    done.set_value();
  });
  done.get_future().wait();
  streams_.shut_all();
  fetching_.close();
  searching_.close();
  serving_.close();
  greeting_.close();
  disk_.close();
  thread_.reset();
}

void Service::serve(net::AcceptedSocket socket) {
  if (socket.target == wire::kObjectsTarget) {
    auto fd = std::make_shared<UniqueFd>(socket.socket.take_socket());
    if (!fd->valid()) return;
    (void)greeting_.run([this, fd] { greet(std::move(*fd)); });
  } else if (socket.target == wire::kObjectBytesTarget) {
    auto stream = std::make_shared<ByteStream>(std::move(socket.socket));
    (void)serving_.run(
        [this, stream, peer = socket.peer] { serve_bytes(std::move(*stream), peer); });
  } else {
    auto held = std::make_shared<net::AcceptedSocket>(std::move(socket));
    post([this, held] { peers_->serve(std::move(*held)); });
  }
}

// On a thread of its own: whoever connects may be slow.
void Service::greet(UniqueFd socket) {
  auto greeting = receive_greeting(socket, streams_);
  if (!greeting.ok()) return;
  auto held = std::make_shared<StoreGreeting>(std::move(*greeting));
  post([this, held] { processes_->join(next_key_++, std::move(*held)); });
}

Status Service::on_process(ProcessKey process, const wire::ObjectMessage& message) {
  if (const auto* asked = get_if<wire::ReadStoreTotals>(&message)) {
    processes_->send(process, /*notice=*/false, wire::encode(wire::ObjectMessage(totals(*asked))));
    return {};
  }
  return store_.on_process(process, message, now());
}

// --- what the store decides ----------------------------------------------------------------------

void Service::carry_out() {
  if (std::exchange(carrying_out_, true)) return;
  for (auto effects = store_.take_effects(); !effects.empty(); effects = store_.take_effects()) {
    for (ObjectEffect& effect : effects) carry_out(effect);
    for (const auto& [segment, why] : std::exchange(failed_, {})) {
      store_.segment_failed(segment, why);
    }
  }
  carrying_out_ = false;
  if (store_.wants_settling()) settle_soon();
  if (store_.totals().waiting > 0) tick_soon();
  peers_->watch_homes();
}

void Service::settle_soon() {
  if (std::exchange(settling_, true)) return;
  post([this] {
    settling_ = false;
    store_.begin_settling();
    processes_->read_all();
    store_.settle();
    carry_out();
  });
}

void Service::tick_soon() {
  if (std::exchange(ticking_, true)) return;
  after(kTickInterval, [this] {
    ticking_ = false;
    store_.tick(now());
    carry_out();
  });
}

void Service::carry_out(ObjectEffect& effect) {
  switch (effect.kind) {
    case ObjectEffect::Kind::kTellProcess:
      return tell_process(effect);
    case ObjectEffect::Kind::kTellPeer:
      if (effect.reply) return peers_->tell_borrower(effect.node, effect.message);
      return peers_->tell_home(effect.node, effect.endpoint, std::move(effect.message));
    case ObjectEffect::Kind::kCreateSegment:
      return create(effect);
    case ObjectEffect::Kind::kDropSegment: {
      const auto memory = memories_.find(effect.segment);
      if (memory != memories_.end()) {
        memory->second->abandon();
        memories_.erase(memory);
      }
      fetched_.erase(effect.segment);
      const auto file = files_.find(effect.segment);
      if (file != files_.end()) forget(std::move(files_.extract(file).mapped()));
      return;
    }
    case ObjectEffect::Kind::kSpareSegment:
      fetched_.erase(effect.segment);
      return after(kSpareTime, [this, segment = effect.segment] {
        store_.drop_spare(segment);
        carry_out();
      });
    case ObjectEffect::Kind::kSpill:
      return spill(effect);
    case ObjectEffect::Kind::kForgetMemory:
      memories_.erase(effect.segment);
      return;
    case ObjectEffect::Kind::kRestore:
      return restore(effect);
    case ObjectEffect::Kind::kFetch:
      return fetch(effect);
  }
}

void Service::tell_process(ObjectEffect& effect) {
  const auto reader = readers_.find(effect.process);
  if (reader != readers_.end()) {
    if (const auto* answer = get_if<wire::ObjectAnswer>(&effect.message)) reader->second(*answer);
    return;
  }
  std::shared_ptr<ObjectMemory> memory;
  if (effect.segment != 0) {
    const auto found = memories_.find(effect.segment);
    if (found != memories_.end()) {
      memory = found->second;
    } else if (auto* answer = get_if<wire::ObjectAnswer>(&effect.message)) {
      const auto failed = failed_.find(effect.segment);
      answer->has_descriptor = false;
      answer->status = failed != failed_.end()
                           ? failed->second
                           : Status(Code::kUnavailable, "the object is being dropped");
    }
  }
  processes_->send(effect.process, /*notice=*/!effect.reply, wire::encode(effect.message),
                   std::move(memory));
}

void Service::create(const ObjectEffect& effect) {
  // Not where something of it is still being sent.
  if (auto spare = memories_.extract(effect.file);
      !spare.empty() && spare.mapped().use_count() == 1) {
    memories_[effect.segment] = std::move(spare.mapped());
    return;
  }
  auto memory =
      ObjectMemory::create(effect.bytes, effect.process != 0 ? ObjectMemory::Writer::kProcess
                                                             : ObjectMemory::Writer::kStore);
  if (memory.ok()) {
    memories_[effect.segment] = std::move(*memory);
  } else {
    failed_[effect.segment] = memory.status();
  }
}

wire::StoreTotals Service::totals(const wire::ReadStoreTotals& asked) const {
  wire::StoreTotals totals = store_.totals();
  if (asked.moves) totals.moves.assign(moves_.begin(), moves_.end());
  return totals;
}

// Bytes that are being moved, on the thread that does it.
class Moving {
 public:
  explicit Moving(wire::StoreMove move) : move_(std::move(move)) {
    move_.begin_unix_us = SystemClock().unix_time_us();
  }
  wire::StoreMove ended(const Status& status) {
    move_.end_unix_us = SystemClock().unix_time_us();
    move_.failed = !status.ok();
    return move_;
  }

 private:
  wire::StoreMove move_;
};

std::uint64_t bytes_of_pieces(const std::vector<ObjectEffect::Piece>& pieces) {
  std::uint64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.bytes;
  return bytes;
}

void Service::moved(wire::StoreMove move) {
  moves_.push_back(std::move(move));
  if (moves_.size() > limits::kStoreMovesShownMax) moves_.pop_front();
}

void Service::disk(std::function<void()> work) { (void)disk_.run(std::move(work)); }

void Service::spill(ObjectEffect& effect) {
  const SegmentKey segment = effect.segment;
  disk([this, segment, pieces = std::move(effect.pieces), memory = memories_.at(segment)] {
    Moving moving({.kind = wire::StoreMoveKind::kSpilled, .bytes = bytes_of_pieces(pieces)});
    Result<std::shared_ptr<const SpillFile>> file =
        Status(Code::kOutOfMemory, "a segment of objects cannot be mapped");
    if (const std::span<const std::byte> bytes = memory->mapped(); !bytes.empty()) {
      std::vector<SpillPiece> written;
      for (const auto& piece : pieces) {
        written.push_back({piece.from, bytes.subspan(piece.from, piece.bytes)});
      }
      file = spill_.write(segment, written);
    }
    post([this, segment, file, move = moving.ended(file.status())] {
      moved(move);
      if (store_.spilled(segment, file.status(), now())) {
        files_[segment] = *file;
      } else if (file.ok()) {
        forget(*file);
      }
      carry_out();
    });
  });
}

// On the disk's thread: that of a large file takes a while.
void Service::forget(std::shared_ptr<const SpillFile> file) {
  auto held = std::make_shared<std::shared_ptr<const SpillFile>>(std::move(file));
  disk([held] { held->reset(); });
}

void Service::restore(ObjectEffect& effect) {
  const SegmentKey segment = effect.segment;
  disk([this, segment, bytes = effect.bytes, pieces = std::move(effect.pieces),
        file = files_.at(effect.file)] {
    Moving moving({.kind = wire::StoreMoveKind::kRestored, .bytes = bytes_of_pieces(pieces)});
    auto memory = ObjectMemory::create(bytes, ObjectMemory::Writer::kStore);
    Status status = memory.status();
    if (status.ok()) (*memory)->populate();
    for (const auto& piece : pieces) {
      if (!status.ok()) break;
      status = file->read(piece.from, (*memory)->mapped().subspan(piece.to, piece.bytes));
    }
    post([this, segment, status, move = moving.ended(status),
          memory = status.ok() ? *memory : nullptr] {
      moved(move);
      if (store_.restored(segment, status)) memories_[segment] = memory;
      carry_out();
    });
  });
}

void Service::fetch(const ObjectEffect& effect) {
  if (!effect.node.empty()) {
    const net::Address from{effect.endpoint.host, effect.endpoint.port, {}};
    return fetch(effect, {{effect.node, from}});
  }
  if (!options_.ask_for_nodes) return fetch(effect, {});
  orphans_.push_back({effect, now()});
  options_.ask_for_nodes();
}

// From the first of them that has it.
void Service::fetch(const ObjectEffect& effect, std::vector<Source> sources) {
  const auto memory = memories_.find(effect.segment);
  if (memory == memories_.end()) return;  // it failed, and the store hears of that
  auto& have = fetched_[effect.segment];
  if (!have) have = std::make_shared<std::uint64_t>(0);
  memory->second->arrived(*have);
  const wire::ReadObject what{.object_id = effect.object, .whole = effect.node.empty()};
  const auto work = [this, sources = std::move(sources), what, bytes = effect.bytes,
                     segment = effect.segment, memory = memory->second, have] {
    const Deadline deadline = Deadline::after(kSearchTime);
    Status status(Code::kObjectLost, "no other node is there");
    std::size_t refused = 0;
    for (const Source& source : sources) {
      Moving moving({.kind = wire::StoreMoveKind::kFetched,
                     .bytes = bytes - *have,
                     .from = source.node,
                     .object_id = what.object_id});
      status = fetch_object(source.address, options_.token, what, bytes, *memory, have.get(),
                            streams_, idle_);
      const bool has_it_not = status.code() == Code::kObjectLost;
      if (has_it_not) ++refused;
      if (!what.whole || !has_it_not) post([this, move = moving.ended(status)] { moved(move); });
      if (status.ok() || memory->abandoned() || deadline.passed()) break;
    }
    if (what.whole && !status.ok() && refused < sources.size()) {
      status = error(Code::kUnavailable,
                     "the node on which object {} was put is lost, and of {} others that may have "
                     "a copy {} could be asked; try again: {}",
                     what.object_id.brief(), sources.size(), refused, status.to_string());
    }
    post([this, object = what.object_id, segment, status] {
      if (status.ok()) fetched_.erase(segment);
      store_.fetched(object, segment, status);
      carry_out();
    });
  };
  if (what.whole ? searching_.run(work) : fetching_.run(work)) return;
  post([this, object = effect.object, segment = effect.segment] {
    store_.fetched(object, segment,
                   Status(Code::kResourceExhausted, "too many objects are being fetched"));
    carry_out();
  });
}

// Fetches of orphans for which nobody has listed the nodes in time end with an error.
void Service::give_up_late_orphans() {
  const auto waits = [this](const auto& orphan) { return now() - orphan.second < kListTime; };
  const auto late = std::stable_partition(orphans_.begin(), orphans_.end(), waits);
  const std::vector<std::pair<ObjectEffect, TimePoint>> given_up(late, orphans_.end());
  orphans_.erase(late, orphans_.end());
  for (const auto& [orphan, since] : given_up) {
    store_.fetched(orphan.object, orphan.segment,
                   error(Code::kUnavailable,
                         "the node on which object {} was put is lost, and the head does not say "
                         "which other nodes may have a copy; try again",
                         orphan.object.brief()));
  }
  if (!given_up.empty()) carry_out();
}

void Service::nodes_listed(std::vector<wire::NodeInfo> nodes) {
  post([this, nodes = std::move(nodes)] {
    peers_->nodes_listed(nodes);
    std::vector<Source> well, suspected;
    for (const wire::NodeInfo& node : nodes) {
      if (node.state == wire::NodeState::kDead || node.node_id == options_.store.node_id) continue;
      auto& sources = node.state == wire::NodeState::kSuspected ? suspected : well;
      sources.push_back({node.node_id, {node.endpoint.host, node.endpoint.port, {}}});
    }
    for (const auto& [orphan, since] : std::exchange(orphans_, {})) {
      // Not all stores ask the same node first.
      std::vector<Source> sources = well;
      if (!sources.empty()) {
        const auto first = static_cast<std::ptrdiff_t>(orphan.object.low % sources.size());
        std::rotate(sources.begin(), sources.begin() + first, sources.end());
      }
      sources.insert(sources.end(), suspected.begin(), suspected.end());
      fetch(orphan, std::move(sources));
    }
  });
}

// --- bytes for other nodes -----------------------------------------------------------------------

void Service::serve_bytes(ByteStream stream, const std::string& peer) {
  const Status status = serve_objects(
      std::move(stream), [&](const wire::ReadObject& read) { return find(read, peer); }, streams_);
  if (!status.ok() && status.code() != Code::kUnavailable) {
    options_.log.info("an object's bytes were not sent to {}: {}", peer, status.to_string());
  }
}

// On the serving thread.
Result<ReadableObject> Service::find(const wire::ReadObject& read, const std::string& peer) {
  using Found = Result<ReadableObject>;
  auto promise = std::make_shared<std::promise<Found>>();
  auto future = promise->get_future();
  const ProcessKey key = next_key_++;
  const std::shared_ptr<void> reading(nullptr, [this, key](void*) {
    post([this, key] {
      readers_.erase(key);
      store_.process_gone(key);
      carry_out();
    });
  });
  post([this, promise, key, read, peer] {
    readers_[key] = [this, promise](const wire::ObjectAnswer& answer) {
      if (answer.pending) return;
      const auto memory = memories_.find(answer.place.segment);
      if (!answer.status.ok()) {
        promise->set_value(answer.status);
      } else if (memory == memories_.end()) {
        promise->set_value(Status(Code::kUnavailable, "the object is being dropped"));
      } else {
        promise->set_value(
            ReadableObject{memory->second, answer.place.offset, answer.bytes, nullptr});
      }
    };
    store_.reader_joined(key, peer, read.whole);
    (void)store_.on_process(
        key, wire::ObjectMessage(wire::GetObject{.request = 1, .object_id = read.object_id}),
        now());
    carry_out();
  });
  promise.reset();  // the loop has it; where that lets go of it, the store ends
  if (future.wait_for(kFindTime) != std::future_status::ready) {
    return Status(Code::kDeadlineExceeded, "the object is not in memory yet");
  }
  try {
    Found found = future.get();
    if (found.ok()) found->reading = reading;
    return found;
  } catch (const std::future_error&) {
    return Status(Code::kUnavailable, "the object store ends");
  }
}

}  // namespace

bool is_object_target(const std::string& target) {
  return target == wire::kObjectsTarget || target == wire::kObjectPeersTarget ||
         target == wire::kObjectBytesTarget;
}

Result<wire::StoreTotals> read_store_totals(const net::Address& node, const net::Token& token,
                                            Deadline deadline, bool moves) {
  ByteStream stream =
      TROUPE_TRY(net::connect_blocking(node, wire::kObjectPeersTarget, token, deadline));
  const wire::Bytes question =
      wire::encode(wire::ObjectMessage(wire::ReadStoreTotals{.moves = moves}));
  auto length = static_cast<std::uint32_t>(question.size());
  TROUPE_RETURN_IF_ERROR(send_all(stream, std::as_bytes(std::span(&length, 1)), deadline));
  TROUPE_RETURN_IF_ERROR(send_all(stream, question, deadline));
  TROUPE_RETURN_IF_ERROR(
      receive_all(stream, std::as_writable_bytes(std::span(&length, 1)), deadline));
  if (length > kTotalsBytesMax) return Status(Code::kProtocol, "not the answer of an object store");
  wire::Bytes answer(length);
  TROUPE_RETURN_IF_ERROR(receive_all(stream, answer, deadline));
  const auto message = TROUPE_TRY(wire::decode_object(answer));
  const auto* totals = get_if<wire::StoreTotals>(&message);
  if (totals == nullptr) return Status(Code::kProtocol, "not the answer of an object store");
  return *totals;
}

Result<std::unique_ptr<ObjectService>> ObjectService::start(ObjectServiceOptions options) {
  // One for each object that has a segment of its own.
  process::allow_descriptors();
  auto thread = TROUPE_TRY(net::LoopThread::start("objects"));
  auto service = std::make_unique<Service>(std::move(options), std::move(thread));
  service->clean_disk();
  return std::unique_ptr<ObjectService>(std::move(service));
}

}  // namespace troupe::scheduler
