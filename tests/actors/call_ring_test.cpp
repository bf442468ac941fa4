// The ring's ends against each other, and each against a peer that writes nonsense.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "actors/caller_ring.h"
#include "actors/host_ring.h"
#include "runtime/base/limits.h"
#include "runtime/memory/unix_socket.h"
#include "troupe/codec.h"

namespace troupe::detail {
namespace {

using namespace std::chrono_literals;

constexpr ClientId kRingCaller{5, 6};

// Both ends, met over a socket as in life.
struct RingPair {
  SystemClock clock;
  std::shared_ptr<HostPageSegment> page = HostPageSegment::create().value();
  std::shared_ptr<CallerRing> caller = CallerRing::create(0ns).value();
  std::shared_ptr<HostRing> host;

  RingPair() {
    auto sockets = memory::socket_pair().value();
    REQUIRE(caller->send_offer(sockets.first.get(), kRingCaller, 3, clock).ok());
    auto arrived = HostRing::receive_offer(sockets.second.get());
    REQUIRE_MESSAGE(arrived.ok(), arrived.status().to_string());
    auto adopted = HostRing::adopt(std::move(*arrived), clock);
    REQUIRE_MESSAGE(adopted.ok(), adopted.status().to_string());
    host = std::move(*adopted);
    REQUIRE(HostRing::send_reply(sockets.second.get(), host, page->fd()).ok());
    REQUIRE(caller->receive_reply(sockets.first.get()).ok());
  }

  bool call(std::uint64_t sequence, std::span<const std::byte> arguments = {},
            std::uint64_t socket_calls = 0) {
    return caller->write({.sequence = sequence,
                          .method = 2,
                          .deadline = TimePoint(1h),
                          .retry = sequence % 2 == 0,
                          .socket_calls = socket_calls,
                          .arguments = arguments});
  }
  // The next call's sequence and arguments; nothing where none may be read.
  std::optional<std::pair<std::uint64_t, wire::Bytes>> take() {
    MutexLock lock(host->reading());
    const auto call = host->front();
    if (!call) return std::nullopt;
    std::pair<std::uint64_t, wire::Bytes> taken(
        call->sequence, wire::Bytes(call->arguments.begin(), call->arguments.end()));
    CHECK(call->method == 2);
    CHECK(call->deadline == TimePoint(1h));
    CHECK(call->retry == (call->sequence % 2 == 0));
    host->pop();
    return taken;
  }
  // The ring's memory, which a second offer of the same ring gives to the test.
  memory::Segment map_again() {
    auto sockets = memory::socket_pair().value();
    REQUIRE(caller->send_offer(sockets.first.get(), kRingCaller, 4, clock).ok());
    auto arrived = HostRing::receive_offer(sockets.second.get()).value();
    return memory::Segment::adopt(std::move(arrived.descriptors[0]), kRingSegmentBytes,
                                  memory::Access::kReadWrite)
        .value();
  }
};

wire::Bytes pattern(std::size_t size, unsigned seed) {
  wire::Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed);
  return bytes;
}

TEST_CASE("calls and answers of all sizes pass, over many wraps, in order") {
  RingPair pair;
  std::mt19937 random(7);
  for (std::uint64_t sequence = 1; sequence <= 2000; ++sequence) {
    const std::size_t size =
        random() % 8 == 0 ? random() % (kRingInlineBytesMax + 1) : random() % 40;
    const wire::Bytes bytes = pattern(size, static_cast<unsigned>(sequence));
    REQUIRE(pair.call(sequence, bytes));
    const auto taken = pair.take();
    REQUIRE(taken);
    CHECK(taken->first == sequence);
    CHECK(taken->second == bytes);
    REQUIRE(pair.host->answer(sequence, Result<wire::Bytes>(bytes)));
    int answers = 0;
    CHECK(pair.caller->read(10, [&](const CallerRing::Answer& answer) {
      ++answers;
      CHECK(answer.sequence == sequence);
      CHECK_FALSE(answer.failed);
      CHECK(wire::Bytes(answer.bytes.begin(), answer.bytes.end()) == bytes);
    }));
    CHECK(answers == 1);
  }
  CHECK(pair.caller->waiting_calls(0) == 0);
}

TEST_CASE("what does not fit is refused whole, and fits when room was made") {
  RingPair pair;
  const wire::Bytes large(kRingInlineBytesMax, std::byte{1});
  CHECK_FALSE(pair.call(1, wire::Bytes(kRingInlineBytesMax + 1)));
  std::uint64_t sent = 0;
  while (pair.call(sent + 1, large)) ++sent;
  CHECK(sent == 3);
  CHECK(pair.caller->waiting_calls(0) == 3);
  REQUIRE(pair.take());
  CHECK(pair.call(sent + 1, large));
  CHECK_FALSE(pair.host->answer(1, Result<wire::Bytes>(wire::Bytes(kRingInlineBytesMax + 1))));
}

TEST_CASE("a call waits for those that went over the socket before it") {
  RingPair pair;
  REQUIRE(pair.call(1, {}, 0));
  REQUIRE(pair.call(3, {}, 1));
  CHECK(pair.take()->first == 1);
  CHECK(pair.host->readable());
  CHECK_FALSE(pair.take());
  // Known to be of no use now: the reader may sleep.
  CHECK_FALSE(pair.host->readable());
  CHECK(pair.caller->waiting_calls(1) == 2);
  {
    MutexLock lock(pair.host->reading());
    pair.host->count_socket_call();
  }
  CHECK(pair.caller->waiting_calls(1) == 1);
  CHECK(pair.take()->first == 3);
}

TEST_CASE("large arguments are read where the caller put them, and their room is used again") {
  RingPair pair;
  std::size_t first_offset = 0;
  for (int round = 0; round < 3; ++round) {
    auto slab = pair.caller->take_slab(1u << 20);
    REQUIRE(slab);
    const wire::Bytes bytes = pattern(1u << 20, static_cast<unsigned>(round));
    std::memcpy(slab->space().data(), bytes.data(), bytes.size());
    slab->set_used(bytes.size());
    if (round == 0) first_offset = slab->offset();
    CHECK(slab->offset() == first_offset);
    REQUIRE(pair.caller->write({.sequence = 2,
                                .method = 2,
                                .deadline = TimePoint(1h),
                                .retry = true,
                                .socket_calls = 0,
                                .arguments = {},
                                .slab = &*slab}));
    const auto taken = pair.take();
    REQUIRE(taken);
    CHECK(taken->second == bytes);
  }
  // With what an encoder wants besides, so that arguments of 64 MiB need not go over the socket.
  CHECK(pair.caller->take_slab((64u << 20) + 2 * kLargeBytesMin).has_value());
  std::vector<SlabLease> all;
  while (auto slab = pair.caller->take_slab(1u << 20)) all.push_back(std::move(*slab));
  CHECK(all.size() == kRingSlabBytes >> 20);
}

// What the caller reads of one answer; nothing where there is none.
std::optional<wire::Bytes> read_one(CallerRing& caller, bool* large = nullptr) {
  std::optional<wire::Bytes> bytes;
  CHECK(caller.read(1, [&](const CallerRing::Answer& answer) {
    bytes.emplace(answer.bytes.begin(), answer.bytes.end());
    if (large != nullptr) *large = answer.slot.has_value();
  }));
  return bytes;
}

TEST_CASE("large results are read where the host put them, and their room is used again") {
  RingPair pair;
  const Result<wire::Bytes> small(pattern(kRingInlineBytesMax, 1));
  CHECK_FALSE(pair.host->lend(small).there());
  CHECK_FALSE(pair.host->lend(Status(Code::kInternal, "none")).there());
  const auto answer = [&](std::uint64_t sequence, const Result<wire::Bytes>& result) {
    auto lent = pair.host->lend(result);
    return lent.there() && pair.host->answer(sequence, result, std::move(lent));
  };
  for (std::uint64_t round = 1; round <= 3 * kRingResultsMax; ++round) {
    const Result<wire::Bytes> result(pattern(kRingInlineBytesMax + round, unsigned(round)));
    REQUIRE(answer(round, result));
    bool large = false;
    const auto read = read_one(*pair.caller, &large);
    REQUIRE(read);
    CHECK(large);
    CHECK(*read == *result);
  }
  // So many lie there unread; what is taken out, or not sent after all, makes room.
  const Result<wire::Bytes> result(pattern(100'000, 3));
  for (std::size_t i = 0; i < kRingResultsMax; ++i) REQUIRE(answer(i, result));
  CHECK_FALSE(pair.host->lend(result).there());
  REQUIRE(read_one(*pair.caller));
  for (int i = 0; i < 3; ++i) CHECK(pair.host->lend(result).there());
  while (read_one(*pair.caller)) {
  }
  // One alone is as large as there is room; beside others there is less.
  REQUIRE(answer(1, result));
  CHECK_FALSE(
      pair.host->lend(Result<wire::Bytes>(wire::Bytes(limits::kUnreadAnswerBytesMax))).there());
  REQUIRE(read_one(*pair.caller));
  CHECK_FALSE(pair.host->lend(Result<wire::Bytes>(wire::Bytes(kRingSlabBytes + 1))).there());
  CHECK(pair.host->begin_releasing());
  CHECK_FALSE(pair.host->release_idle());
  CHECK(pair.host->release_idle());
}

TEST_CASE("a waiting caller is woken by an answer, by a nudge and by the end") {
  RingPair pair;
  const auto waits = [&](auto wake, auto ended) {
    std::atomic<bool> waiting{false};
    std::thread waiter([&] {
      REQUIRE(pair.caller->begin_wait());
      waiting = true;
      while (!ended()) pair.caller->wait(Deadline::after(20s), pair.clock, ended);
      pair.caller->end_wait();
    });
    while (!waiting) std::this_thread::yield();
    const TimePoint start = pair.clock.now();
    wake();
    waiter.join();
    CHECK(pair.clock.now() - start < 900ms);  // not by the end of a sleep
  };
  waits([&] { REQUIRE(pair.host->answer(1, Result<wire::Bytes>(wire::Bytes{}))); },
        [&] { return pair.caller->has_answers(); });
  CHECK(pair.caller->read(1, [](const auto&) {}));
  std::atomic<bool> over{false};
  waits(
      [&] {
        over = true;
        pair.caller->nudge();
      },
      [&] { return over.load(); });
  waits([&] { pair.caller->close(); }, [&] { return pair.caller->closed(); });
  CHECK_FALSE(pair.caller->take_slab(100));
}

bool was_woken(int wake_fd) {
  std::uint64_t count = 0;
  return ::read(wake_fd, &count, sizeof count) == sizeof count;
}

TEST_CASE("the host says how many calls may wait, within what a host of light actors takes") {
  RingPair pair;
  CHECK(pair.caller->waiting_calls_max() == limits::kMailboxCallsMax);
  pair.page->page().calls_max = 7;
  CHECK(pair.caller->waiting_calls_max() == 7);
  pair.page->page().calls_max = limits::kLightMailboxCallsMax;
  CHECK(pair.caller->waiting_calls_max() == limits::kLightMailboxCallsMax);
  pair.page->page().calls_max = ~std::uint64_t{0};
  CHECK(pair.caller->waiting_calls_max() == limits::kLightMailboxCallsMax);
}

TEST_CASE("where nobody waits the eventfd is written, once until it is armed again") {
  RingPair pair;
  const auto answer = [&](std::uint64_t sequence) {
    REQUIRE(pair.host->answer(sequence, Result<wire::Bytes>(wire::Bytes{})));
  };
  const auto read_all = [&] { CHECK(pair.caller->read(1000, [](const auto&) {})); };
  answer(1);
  CHECK(was_woken(pair.caller->wake_fd()));
  answer(2);
  CHECK_FALSE(was_woken(pair.caller->wake_fd()));
  read_all();
  pair.caller->rearm_wake_up();
  CHECK_FALSE(was_woken(pair.caller->wake_fd()));
  answer(3);
  CHECK(was_woken(pair.caller->wake_fd()));
  // Armed while answers are there: written for them.
  pair.caller->rearm_wake_up();
  CHECK(was_woken(pair.caller->wake_fd()));
  // While somebody waits the eventfd is left alone; what that one leaves behind writes to it.
  read_all();
  REQUIRE(pair.caller->begin_wait());
  CHECK_FALSE(pair.caller->begin_wait());
  answer(4);
  CHECK_FALSE(was_woken(pair.caller->wake_fd()));
  pair.caller->end_wait();
  CHECK(was_woken(pair.caller->wake_fd()));
  // Whoever reads for the eventfd while another waits leaves it to that one.
  read_all();
  REQUIRE(pair.caller->begin_wait());
  pair.caller->rearm_wake_up();
  pair.caller->end_wait();
  CHECK(was_woken(pair.caller->wake_fd()));
}

// --- peers that make no sense

// What the other end of a ring could do to its memory.
struct Scribbler {
  UniqueFd segment_fd;
  memory::Segment segment;
  RingPage& page() { return *reinterpret_cast<RingPage*>(segment.data()); }
  std::byte* calls() { return segment.data() + kRingPageBytes; }
  std::byte* answers() { return calls() + kRingBytes; }
};

// A host's end whose caller's end is in the test's hands.
struct MadCaller : Scribbler {
  std::shared_ptr<HostRing> host;
  explicit MadCaller(const std::function<void(RingOffer&)>& change = [](RingOffer&) {}) {
    segment = memory::Segment::create("test", kRingSegmentBytes).value();
    auto slabs = memory::Segment::create("test", kRingSlabBytes).value();
    HostRing::Arrived arrived;
    arrived.offer.clock_ns = SystemClock().now().time_since_epoch().count();
    change(arrived.offer);
    arrived.descriptors.push_back(segment.duplicate_fd().value());
    arrived.descriptors.push_back(slabs.duplicate_fd().value());
    arrived.descriptors.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    auto adopted = HostRing::adopt(std::move(arrived), SystemClock());
    if (adopted.ok()) host = std::move(*adopted);
  }
  bool reads() {
    MutexLock lock(host->reading());
    return host->front().has_value();
  }
};

TEST_CASE("an offer of other sizes, another version, clock or descriptors is refused") {
  CHECK(MadCaller().host);
  CHECK_FALSE(MadCaller([](RingOffer& o) { o.magic++; }).host);
  CHECK_FALSE(MadCaller([](RingOffer& o) { o.version++; }).host);
  CHECK_FALSE(MadCaller([](RingOffer& o) { o.segment_bytes *= 2; }).host);
  CHECK_FALSE(MadCaller([](RingOffer& o) { o.slab_bytes = 4096; }).host);
  CHECK_FALSE(MadCaller([](RingOffer& o) { o.clock_ns -= 60'000'000'000; }).host);

  const auto code = [](UniqueFd segment, UniqueFd slabs, UniqueFd wake_fd) {
    HostRing::Arrived arrived;
    arrived.offer.clock_ns = SystemClock().now().time_since_epoch().count();
    arrived.descriptors.push_back(std::move(segment));
    arrived.descriptors.push_back(std::move(slabs));
    arrived.descriptors.push_back(std::move(wake_fd));
    return HostRing::adopt(std::move(arrived), SystemClock()).status().code();
  };
  const auto memory_of = [](std::size_t bytes) {
    return memory::Segment::create("test", bytes).value().duplicate_fd().value();
  };
  const auto new_eventfd = [] { return UniqueFd(::eventfd(0, EFD_CLOEXEC)); };
  const auto pipe = [] {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    ::close(ends[0]);
    return UniqueFd(ends[1]);
  };
  CHECK(code(memory_of(kRingSegmentBytes), memory_of(kRingSlabBytes), new_eventfd()) == Code::kOk);
  CHECK(code(memory_of(4096), memory_of(kRingSlabBytes), new_eventfd()) == Code::kProtocol);
  CHECK(code(memory_of(kRingSegmentBytes), memory_of(4096), new_eventfd()) == Code::kProtocol);
  CHECK(code(new_eventfd(), memory_of(kRingSlabBytes), new_eventfd()) == Code::kProtocol);
  CHECK(code(memory_of(kRingSegmentBytes), memory_of(kRingSlabBytes), pipe()) == Code::kProtocol);
}

TEST_CASE("an offer that is not one ends at once") {
  auto sockets = memory::socket_pair().value();
  const std::array<std::byte, 200> junk{};
  REQUIRE(memory::send_all(sockets.first.get(), junk, Deadline::after(1s)).ok());
  CHECK(HostRing::receive_offer(sockets.second.get()).status().code() == Code::kProtocol);
  auto closed = memory::socket_pair().value();
  closed.first.reset();
  CHECK_FALSE(HostRing::receive_offer(closed.second.get()).ok());
}

TEST_CASE("positions, lengths and places that make no sense damage the ring and nothing else") {
  const auto damaged_by = [](const std::function<void(MadCaller&, RingCall&)>& change) {
    MadCaller mad;
    RingCall header{};
    header.sequence = 1;
    mad.page().calls.written.store(sizeof header);
    change(mad, header);
    std::memcpy(mad.calls(), &header, sizeof header);
    CHECK_FALSE(mad.reads());
    const bool damaged = mad.host->damaged();
    CHECK_FALSE((damaged && mad.host->readable()));
    return damaged;
  };
  CHECK(damaged_by([](auto& m, auto&) { m.page().calls.written.store(1); }));
  CHECK(damaged_by([](auto& m, auto&) { m.page().calls.written.store(kRingBytes + 8); }));
  CHECK(damaged_by([](auto& m, auto&) { m.page().calls.written.store(~std::uint64_t{0}); }));
  CHECK(damaged_by([](auto&, auto& h) { h.bytes = 8; }));
  CHECK(damaged_by([](auto&, auto& h) { h.bytes = ~0u; }));
  CHECK(damaged_by([](auto&, auto& h) {
    h.flags = RingCall::kInSlab;
    h.slab_offset = kRingSlabBytes;
    h.slab_bytes = 1;
  }));
  CHECK(damaged_by([](auto&, auto& h) {
    h.flags = RingCall::kInSlab;
    h.slab_offset = ~std::uint64_t{0};
    h.slab_bytes = ~0u;
  }));
  // After socket calls that never come: waits, like a caller that stopped in the middle.
  CHECK_FALSE(damaged_by([](auto&, auto& h) { h.socket_calls = ~std::uint64_t{0}; }));
}

TEST_CASE("random bytes never crash a reader") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    MadCaller mad;
    for (std::size_t i = 0; i < 4096; i += 8) {
      const std::uint64_t value = random() >> (random() % 64);
      std::memcpy(mad.calls() + i, &value, sizeof value);
    }
    mad.page().calls.written.store(random() % 4097);
    for (int i = 0; i < 100; ++i) {
      MutexLock lock(mad.host->reading());
      const auto call = mad.host->front();
      if (!call) break;
      std::uint64_t sum = 0;
      for (const std::byte b :
           call->arguments.first(std::min<std::size_t>(call->arguments.size(), 100))) {
        sum += static_cast<unsigned>(b);
      }
      CHECK(sum <= 25'500);
      mad.host->pop();
    }
    // The caller's room for answers is its own lie.
    mad.page().answers.consumed.store(random());
    mad.page().answers.written.store(random());
    mad.page().caller_word.store(static_cast<std::uint32_t>(random()));
    for (int i = 0; i < 20; ++i) {
      (void)mad.host->answer(static_cast<std::uint64_t>(i),
                             Result<wire::Bytes>(wire::Bytes(20'000)));
    }
  }
}

TEST_CASE("a host that scribbles over answers ends the ring, not the caller") {
  for (const std::uint64_t written :
       {std::uint64_t{3}, std::uint64_t{16}, std::uint64_t{kRingBytes + 1}, ~std::uint64_t{0}}) {
    RingPair pair;
    auto segment = pair.map_again();
    auto& page = *reinterpret_cast<RingPage*>(segment.data());
    RingAnswer header{.bytes = 5000, .kind = 9, .sequence = 1};
    std::memcpy(segment.data() + kRingPageBytes + kRingBytes, &header, sizeof header);
    page.answers.written.store(written);
    int answers = 0;
    CHECK_FALSE(pair.caller->read(10, [&](const auto&) { ++answers; }));
    CHECK(answers == 0);
  }
}

TEST_CASE("a large result that lies outside of the host's slabs ends the ring, not the caller") {
  constexpr std::uint64_t kLarge = kRingSlabBytes;
  for (const RingResult bad : {RingResult{.offset = 0, .bytes = kLarge + 1, .slot = 0},
                               RingResult{.offset = kLarge, .bytes = 1, .slot = 0},
                               RingResult{.offset = ~std::uint64_t{0}, .bytes = 2, .slot = 0},
                               RingResult{.offset = 0, .bytes = 8, .slot = kRingResultsMax}}) {
    RingPair pair;
    REQUIRE(pair.host->answer(1, Result<wire::Bytes>(wire::Bytes(sizeof bad))));
    auto segment = pair.map_again();
    std::byte* const at = segment.data() + kRingPageBytes + kRingBytes;
    const RingAnswer header{.bytes = sizeof bad, .kind = RingAnswer::kInSlab, .sequence = 1};
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + sizeof header, &bad, sizeof bad);
    int answers = 0;
    CHECK_FALSE(pair.caller->read(10, [&](const auto&) { ++answers; }));
    CHECK(answers == 0);
  }
}

// Memory behind the slabs that this process holds.
std::size_t slab_memory_bytes() {
  std::size_t bytes = 0;
  std::set<ino_t> seen;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat facts {};
    if (target.find("troupe-slabs") == std::string::npos ||
        ::stat(entry.path().c_str(), &facts) != 0 || !seen.insert(facts.st_ino).second) {
      continue;
    }
    bytes += static_cast<std::size_t>(facts.st_blocks) * 512;
  }
  return bytes;
}

TEST_CASE("slabs that nobody uses give their memory back, those in use keep what they hold") {
  const std::size_t before = slab_memory_bytes();
  RingPair pair;
  constexpr std::size_t kBytes = 4u << 20;
  std::optional<SlabLease> kept = pair.caller->take_slab(kBytes);
  std::optional<SlabLease> brief = pair.caller->take_slab(kBytes);
  REQUIRE((kept && brief));
  std::memset(kept->space().data(), 1, kBytes);
  std::memset(brief->space().data(), 2, kBytes);
  CHECK(slab_memory_bytes() >= before + 2 * kBytes);
  CHECK(pair.caller->slabs().begin_releasing());
  CHECK_FALSE(pair.caller->slabs().begin_releasing());
  brief.reset();
  CHECK_FALSE(pair.caller->slabs().release_idle());  // taken a moment ago
  CHECK(slab_memory_bytes() >= before + 2 * kBytes);
  CHECK_FALSE(pair.caller->slabs().release_idle());  // one is in use
  CHECK(slab_memory_bytes() < before + 2 * kBytes);
  CHECK(kept->space()[kBytes - 1] == std::byte{1});
  kept.reset();
  CHECK(pair.caller->slabs().release_idle());
  CHECK(slab_memory_bytes() == before);
  CHECK(pair.caller->slabs().begin_releasing());
  CHECK(pair.caller->take_slab(kBytes).has_value());
}

// --- death

TEST_CASE("a caller killed at any moment has published whole calls only") {
  for (int round = 0; round < 30; ++round) {
    RingPair pair;
    const pid_t child = ::fork();
    if (child == 0) {
      const wire::Bytes bytes = pattern(3000, 1);
      for (std::uint64_t sequence = 1;; ++sequence) {
        while (!pair.call(sequence, bytes)) {
        }
      }
    }
    const wire::Bytes expected = pattern(3000, 1);
    std::uint64_t last = 0;
    const auto take_one = [&] {
      const auto taken = pair.take();
      if (!taken) return false;
      REQUIRE(taken->first == last + 1);
      REQUIRE(taken->second == expected);
      last = taken->first;
      return true;
    };
    const Deadline patience = Deadline::after(20s);
    while (last < 50 + static_cast<std::uint64_t>(round) * 7 && !patience.passed()) take_one();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    while (take_one()) {
    }
    CHECK_FALSE(pair.host->damaged());
    CHECK_FALSE(pair.host->readable());
  }
}

TEST_CASE("two processes: every call is answered though both sides sleep between") {
  RingPair pair;
  constexpr std::uint64_t kCalls = 3000;
  const pid_t child = ::fork();
  if (child == 0) {
    memory::Sleeper sleeper(&pair.page->page().host_word);
    for (std::uint64_t done = 0; done < kCalls;) {
      if (!pair.host->readable()) {
        sleeper.announce(memory::WaitState::kAsleep);
        if (!pair.host->readable()) sleeper.sleep(10s);
        sleeper.awake();
        continue;
      }
      const auto taken = pair.take();
      if (!taken) ::_exit(1);
      if (!pair.host->answer(taken->first, Result<wire::Bytes>(taken->second))) ::_exit(2);
      ++done;
    }
    ::_exit(0);
  }
  const TimePoint start = pair.clock.now();
  std::uint64_t answered = 0;
  const Deadline patience = Deadline::after(20s);
  for (std::uint64_t sequence = 1; sequence <= kCalls && !patience.passed(); ++sequence) {
    REQUIRE(pair.call(sequence, pattern(sequence % 100, 2)));
    REQUIRE(pair.caller->begin_wait());
    while (answered < sequence && !patience.passed()) {
      pair.caller->wait(patience, pair.clock, [] { return false; });
      CHECK(pair.caller->read(1, [&](const CallerRing::Answer& answer) {
        CHECK(answer.sequence == sequence);
        ++answered;
      }));
    }
    pair.caller->end_wait();
  }
  CHECK(answered == kCalls);
  // A lost wake-up would cost a second each.
  CHECK(pair.clock.now() - start < 5s);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace troupe::detail
