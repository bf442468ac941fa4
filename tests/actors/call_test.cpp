// Callers and hosts against a small node: calls, errors, deaths, saved state.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "runtime/base/limits.h"
#include "tests/actors/harmless_methods.h"
#include "tests/actors/test_actors.h"
#include "tests/support/test_data.h"
#include "troupe/spawn.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

// peer: ApiTest.ActorTest
TEST_CASE_FIXTURE(CallsBothWays, "calls run in order and their results come back") {
  auto counter = spawn<Counter>({.name = "c"}, 10);
  std::vector<Future<int>> sums;
  for (int i = 1; i <= 100; ++i) sums.push_back(counter.call<&Counter::add>(1));
  for (int i = 1; i <= 100; ++i)
    CHECK(sums[static_cast<std::size_t>(i - 1)].get(20s).value() == 10 + i);
  CHECK(counter.call<&Counter::get>().get(5s).value() == 110);
  const wire::Bytes big(5 << 20, std::byte{3});
  CHECK(counter.call<&Counter::echo>(big).get(20s).value() == big);
  // More than a frame holds goes beside it.
  const wire::Bytes huge(70 << 20, std::byte{4});
  CHECK(counter.call<&Counter::echo>(huge).get(20s).value() == huge);
}

TEST_CASE_FIXTURE(CallFixture, "an actor is called through an abstract class that it acts as") {
  const auto own = spawn<PoliteSpeaker>({.name = "s"});
  const ActorHandle<Speaker> speaker = own;
  CHECK(speaker == ActorHandle<Speaker>(own));
  CHECK(speaker.call<&Speaker::speak>("Ada").get().value() == "Dear, Ada");
  REQUIRE(own.call<&PoliteSpeaker::greet_with>("Hello").get().ok());
  // A caller that includes the abstract class alone finds the actor by its name.
  const auto found = detail::find<Speaker>(client, "s", {.timeout = 20s}).value();
  CHECK(found.call<&Speaker::speak>("Alan").get().value() == "Hello, Alan");
}

TEST_CASE_FIXTURE(CallFixture, "a process that is ready says so again to a new daemon") {
  auto counter = spawn<Counter>({.name = "c"}, 10);
  CHECK(counter.call<&Counter::add>(1).get(20s).value() == 11);
  CHECK(node->times_ready(counter.id()) == 1);
  node->start_again(counter.id());
  const Deadline patience = Deadline::after(20s);
  while (node->times_ready(counter.id()) < 2 && !patience.passed()) std::this_thread::yield();
  CHECK(node->times_ready(counter.id()) == 2);
  // It is the same one.
  CHECK(counter.call<&Counter::add>(1).get(20s).value() == 12);
}

// peer: RayClusterModeTest.ExceptionTest.Method
TEST_CASE_FIXTURE(CallsBothWays, "errors carry actor, method and node") {
  auto counter = spawn<Counter>({.name = "c"}, 0);
  const Status thrown = counter.call<&Counter::fail>("on purpose").get(20s).status();
  CHECK(thrown.code() == Code::kActorError);
  CHECK(thrown.message().find("on purpose") != std::string::npos);
  CHECK(thrown.context("actor") == "c");
  CHECK(thrown.context("method") == "Counter::fail");
  CHECK(thrown.context("node") == node->node_id().brief());
  const Status refused = counter.call<&Counter::refuse>().get(20s).status();
  CHECK(refused.code() == Code::kNotFound);
  CHECK(refused.context("method") == "Counter::refuse");
}

// peer: RayClusterModeTest.ExceptionTest.Constructor
TEST_CASE_FIXTURE(CallFixture, "a constructor that fails ends every call with its error") {
  auto broken = spawn<Broken>({.name = "b"}, std::string("bad luck"));
  const Status status = broken.call<&Broken::nothing>().get(20s);
  CHECK(status.code() == Code::kActorDied);
  CHECK(status.message().find("bad luck") != std::string::npos);
  CHECK(broken.call<&Broken::nothing>().get(20s).code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(CallFixture, "a refusal of the head ends the calls") {
  auto counter = spawn<Counter>({.resources = {{"unobtainable", 1}}}, 0);
  CHECK(counter.call<&Counter::get>().get(20s).status().code() == Code::kResourceExhausted);
  ActorOptions negative;
  negative.num_cpus = -1;
  CHECK(detail::spawn<Counter>(client, negative, 0).status().code() == Code::kInvalidArgument);
}

TEST_CASE_FIXTURE(CallsBothWays,
                  "kill -9: the count is kept, later calls wait for the next process") {
  auto counter = spawn<Counter>({.name = "c", .max_restarts = 5}, 0);
  const auto first_pid = counter.call<&Counter::pid>().get(20s).value();
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < 10; ++i) REQUIRE(counter.call<&Counter::add>(1).get(20s).ok());
    node->kill_process(counter.id(), SIGKILL);
    // At once after the kill the call may still reach the dying process: then it says so.
    auto next = counter.with({.timeout = 20s, .retry = true}).call<&Counter::get>().get(20s);
    REQUIRE_MESSAGE(next.ok(), next.status().to_string());
    CHECK(*next == 10 * round);
  }
  CHECK(counter.call<&Counter::pid>().get(20s).value() != first_pid);
  CHECK(node->started() == 4);
}

TEST_CASE_FIXTURE(CallsBothWays,
                  "a call that was running at the death ends typed; with retry it runs again") {
  auto sleeper = spawn<Sleeper>({.max_restarts = 1});
  REQUIRE(sleeper.call<&Sleeper::touch>().get(20s).ok());
  auto running = sleeper.call<&Sleeper::wait>(60'000);
  auto again = sleeper.with({.timeout = 20s, .retry = true}).call<&Sleeper::touch>();
  node->kill_process(sleeper.id(), SIGKILL);
  CHECK(running.get(20s).status().code() == Code::kUnavailable);
  CHECK(again.get(20s).value() == 1);
}

TEST_CASE_FIXTURE(CallsBothWays, "an actor that is dead for good: its calls say why") {
  auto counter = spawn<Counter>({}, 0);
  REQUIRE(counter.call<&Counter::get>().get(20s).ok());
  const Status running = counter.call<&Counter::exit_now>(3).get(20s);
  CHECK(running.code() == Code::kActorDied);
  const Status later = counter.call<&Counter::get>().get(20s).status();
  CHECK(later.code() == Code::kActorDied);
  CHECK(later.message().find("exit code 3") != std::string::npos);
}

TEST_CASE_FIXTURE(CallsBothWays,
                  "deadlines end calls that run, and keep queued ones from running") {
  auto sleeper = spawn<Sleeper>({});
  REQUIRE(sleeper.call<&Sleeper::touch>().get(20s).ok());
  auto busy = sleeper.call<&Sleeper::wait>(300);
  auto expired = sleeper.with({.timeout = 20ms}).call<&Sleeper::touch>();
  CHECK(expired.get(20s).status().code() == Code::kDeadlineExceeded);
  CHECK(busy.get(20s).ok());
  CHECK(sleeper.call<&Sleeper::touch>().get(20s).value() == 2);
}

TEST_CASE_FIXTURE(CallsBothWays, "a cancelled call that waits is not run") {
  auto sleeper = spawn<Sleeper>({});
  auto busy = sleeper.call<&Sleeper::wait>(200);
  auto cancelled = sleeper.call<&Sleeper::touch>();
  cancelled.cancel();
  const Status why = cancelled.get(1s).status();
  CHECK(why.code() == Code::kCancelled);
  CHECK(why.context("method") == "Sleeper::touch");
  REQUIRE(busy.get(20s).ok());
  CHECK(sleeper.call<&Sleeper::touch>().get(20s).value() == 1);
}

TEST_CASE_FIXTURE(CallsBothWays, "a full mailbox answers overloaded") {
  auto sleeper = spawn<Sleeper>({});
  REQUIRE(sleeper.call<&Sleeper::touch>().get(20s).ok());
  auto busy = sleeper.call<&Sleeper::wait>(60'000);
  std::vector<Future<int>> calls;
  for (std::size_t i = 0; i < limits::kMailboxCallsMax + 50; ++i) {
    calls.push_back(sleeper.call<&Sleeper::touch>());
  }
  CHECK(calls.back().get(20s).status().code() == Code::kOverloaded);
  busy.cancel();
}

// peer: RayClusterModeTest.ActorHandleTest
TEST_CASE_FIXTURE(CallFixture, "handles travel, and an actor knows itself") {
  auto counter = spawn<Counter>({}, 5);
  auto relay = spawn<Relay>({});
  CHECK(relay.call<&Relay::add>(counter, 7).get(20s).value() == 12);
  auto sleeper = spawn<Sleeper>({.name = "s", .run = "r", .rank = 3});
  CHECK(sleeper.call<&Sleeper::where>().get(20s).value() == "s/3/r/1");
  const Status itself = sleeper.call<&Sleeper::ask_itself>().get(20s).status();
  CHECK(itself.code() == Code::kFailedPrecondition);
}

// peer: RayRemoteTest.VoidFunction
TEST_CASE_FIXTURE(CallsBothWays,
                  "graceful stops end long methods; actors may leave by themselves") {
  auto sleeper = spawn<Sleeper>({});
  REQUIRE(sleeper.call<&Sleeper::touch>().get(20s).ok());
  const TemporaryDirectory directory;
  REQUIRE(::mkfifo(directory.file("started").c_str(), 0600) == 0);
  auto waiting = sleeper.call<&Sleeper::wait_after>(directory.file("started"), 60'000);
  const UniqueFd started(::open(directory.file("started").c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(detail::kill_actor(client, sleeper.id(), {.grace = 5s}).ok());
  CHECK(waiting.get(20s).value());
  auto leaving = spawn<Sleeper>({});
  CHECK(leaving.call<&Sleeper::leave>().get(20s).ok());
  CHECK(leaving.call<&Sleeper::touch>().get(20s).status().code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(CallFixture, "finding by name checks the class; watching tells of changes") {
  auto counter = spawn<Counter>({.name = "c"}, 1);
  REQUIRE(counter.call<&Counter::get>().get(20s).ok());
  CHECK(detail::find<Counter>(client, "c", {.timeout = 5s})
            .value()
            .call<&Counter::get>()
            .get(5s)
            .value() == 1);
  CHECK(detail::find<Sleeper>(client, "c", {.timeout = 5s}).status().code() ==
        Code::kInvalidArgument);
  CHECK(detail::find<Counter>(client, "d", {.timeout = 5s}).status().code() == Code::kNotFound);
  auto dead = std::make_shared<Promise<void>>();
  auto died = dead->future();
  const auto watch = detail::watch(client, counter, [dead](const wire::ActorInfo& info) {
    if (info.state == wire::ActorState::kDead) dead->set(Status());
  });
  REQUIRE(detail::kill_actor(client, counter.id(), {}).ok());
  CHECK(died.get(20s).ok());
}

TEST_CASE_FIXTURE(CallFixture, "raw sockets reach whoever accepts their purpose") {
  auto peer = spawn<RawPeer>({});
  auto raw = client->connect_to(peer.id(), "echo/7", Deadline::after(20s));
  REQUIRE_MESSAGE(raw.ok(), raw.status().to_string());
  CHECK(raw->same_node);
  std::string text(7, '\0');
  CHECK(
      receive_all(raw->stream, std::as_writable_bytes(std::span(text)), Deadline::after(20s)).ok());
  CHECK(text == "/echo/7");
}

// What another program believes a Counter to be.
namespace other_program {
class Counter {
 public:
  int add(const std::string& text) { return static_cast<int>(text.size()); }
  int get() const { return 0; }
  void vanish() {}
  wire::Bytes echo(const wire::Bytes& bytes) const { return bytes; }
  static constexpr auto methods =
      troupe::methods<&Counter::vanish, &Counter::add, &Counter::get, &Counter::echo>;
};
}  // namespace other_program

// peer: RayRemoteTest.NotExistFunction
TEST_CASE_FIXTURE(CallsBothWays,
                  "methods that two programs know differently are refused, the others work") {
  using Other = other_program::Counter;
  auto counter = CallFixture::spawn<Counter>({.name = "counter"}, 3);
  const auto client_there = node->make_client(ring ? detail::kRingsMax : 0);
  const auto other = detail::handle_to<Other>(client_there, counter.id());
  const Deadline patience = Deadline::after(20s);
  do {
    REQUIRE(other.call<&Other::get>().get(20s).value() == 3);
  } while (ring && !detail::Access::channel(other)->has_ring() && !patience.passed());
  CHECK(other.call<&Other::echo>(wire::Bytes(2, std::byte{7})).get(20s).value().size() == 2);
  for (int i = 0; i < 2; ++i) {
    const Status differs = other.call<&Other::add>("four").get(20s).status();
    CHECK(differs.code() == Code::kFailedPrecondition);
    CHECK(differs.message().find("Counter::add has other argument or result types") !=
          std::string::npos);
    CHECK(differs.context("actor") == "counter");
    // (As the compilers write them.)
    const auto says = [&](std::string_view key, std::string_view part) {
      return differs.context(key).value_or("").find(part) != std::string_view::npos;
    };
    CHECK_MESSAGE(says(detail::kInActorsProgram, "Counter::*)(int)"), differs.to_string());
    CHECK_MESSAGE(says(detail::kInCallersProgram, "string"), differs.to_string());
  }
  const Status unknown = other.call<&Other::vanish>().get(20s);
  CHECK(unknown.code() == Code::kFailedPrecondition);
  CHECK(unknown.message().find("Counter::vanish is unknown to the actor") != std::string::npos);
  CHECK(unknown.context(detail::kInActorsProgram) == "no such method");
  CHECK(other.call<&Other::get>().get(20s).value() == 3);  // none of them ran
  client_there->close();
}

TEST_CASE_FIXTURE(CallsBothWays, "calls of every size keep their order both ways together") {
  auto recorder = spawn<Recorder>({});
  std::mt19937 random(3);
  // Small ones go through the ring, large ones through slabs, and the socket takes what finds the
  // ring full.
  std::vector<Future<bool>> calls;
  for (int i = 1; i <= 600; ++i) {
    const std::size_t size = random() % 20 == 0  ? 100'000 + random() % 1'000'000
                             : random() % 4 == 0 ? 20'000 + random() % 40'000
                                                 : random() % 200;
    calls.push_back(
        recorder.call<&Recorder::next>(i, wire::Bytes(size, static_cast<std::byte>(i))));
    if (random() % 50 == 0) (void)calls[calls.size() / 2].ready();
  }
  int wrong = 0;
  for (auto& call : calls) wrong += call.get(20s).value() ? 0 : 1;
  CHECK(wrong == 0);
}

// Memory in which results wait to be read; it is this process's, too.
std::size_t result_memory_bytes() {
  std::size_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat facts {};
    const bool results = target.find("troupe-results") != std::string::npos;
    if (results && ::stat(entry.path().c_str(), &facts) == 0) {
      bytes += static_cast<std::size_t>(facts.st_blocks) * 512;
    }
  }
  return bytes;
}

TEST_CASE_FIXTURE(CallsBothWays, "large results come whole, however many wait to be read") {
  auto counter = spawn<Counter>({}, 0);
  std::vector<Future<wire::Bytes>> calls;
  const auto bytes_of = [](std::size_t i) { return wire::Bytes(60'000 + 5'000 * i, std::byte(i)); };
  for (std::size_t i = 0; i < 60; ++i) calls.push_back(counter.call<&Counter::echo>(bytes_of(i)));
  for (std::size_t i = 0; i < calls.size(); ++i) CHECK(calls[i].get(20s).value() == bytes_of(i));
  CHECK((result_memory_bytes() > 0) == ring);
}

TEST_CASE_FIXTURE(CallsBothWays, "threads that share a handle all get their answers") {
  auto counter = spawn<Counter>({}, 0);
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) failed += counter.call<&Counter::add>(1).get(20s).ok() ? 0 : 1;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(counter.call<&Counter::get>().get(20s).value() == 1200);
}

// peer: ApiTest.CompareWithFuture
TEST_CASE_FIXTURE(CallsBothWays,
                  "continuations run in order, never in a thread that waits in get()") {
  auto sleeper = spawn<Sleeper>({});
  const auto here = std::this_thread::get_id();
  Mutex mutex;
  std::vector<int> seen;
  bool elsewhere = true;
  auto busy = sleeper.call<&Sleeper::wait>(50);  // nothing is answered before all is attached
  std::vector<Future<void>> chained;
  for (int i = 1; i <= 50; ++i) {
    chained.push_back(sleeper.call<&Sleeper::touch>().then([&](Result<int> n) {
      MutexLock lock(mutex);
      elsewhere = elsewhere && std::this_thread::get_id() != here;
      seen.push_back(n.value());
    }));
  }
  REQUIRE(sleeper.call<&Sleeper::touch>().get(20s).value() == 51);
  for (auto& future : chained) REQUIRE(future.get(20s).ok());
  MutexLock lock(mutex);
  REQUIRE(seen.size() == 50);
  CHECK(std::is_sorted(seen.begin(), seen.end()));
  CHECK(elsewhere);
}

TEST_CASE_FIXTURE(CallsBothWays, "kill -9 at random moments: every call ends, none counts twice") {
  auto counter = spawn<Counter>({.max_restarts = 100, .restart_window = 0ms}, 0);
  std::mt19937 random(5);
  int certain = 0, unknown = 0;
  for (int round = 0; round < 8; ++round) {
    reach(counter);
    std::vector<Future<int>> calls;
    const int count = 50 + static_cast<int>(random() % 200);
    const int kill_after = static_cast<int>(random() % static_cast<unsigned>(count));
    for (int i = 0; i < count; ++i) {
      calls.push_back(counter.call<&Counter::add>(1));
      if (i == kill_after) node->kill_process(counter.id(), SIGKILL);
    }
    for (auto& call : calls) {
      const auto result = call.get(20s);
      if (result.ok()) {
        ++certain;
      } else {
        REQUIRE_MESSAGE(result.status().code() == Code::kUnavailable, result.status().to_string());
        ++unknown;
      }
    }
    const int value = counter.with({.retry = true}).call<&Counter::get>().get(20s).value();
    CHECK(value >= certain);
    CHECK(value <= certain + unknown);
  }
  // With retry none fails; each has run, and those that were cut off may have run twice.
  std::vector<Future<int>> calls;
  const int before = counter.call<&Counter::get>().get(20s).value();
  for (int i = 0; i < 100; ++i) {
    calls.push_back(counter.with({.timeout = 20s, .retry = true}).call<&Counter::add>(1));
    if (i == 50) node->kill_process(counter.id(), SIGKILL);
  }
  for (auto& call : calls) CHECK(call.get(20s).ok());
  CHECK(counter.call<&Counter::get>().get(20s).value() >= before + 100);
}

TEST_CASE_FIXTURE(CallFixture, "a view of bytes is no result, and large arguments need no copy") {
  auto recorder = spawn<Recorder>({});
  const wire::Bytes large(3 << 20, std::byte{1});
  CHECK(recorder.call<&Recorder::next>(1, large).get(20s).value());
  const wire::Bytes encoded = encode_value(BytesView(large));
  Decoder in(encoded);
  BytesView view;
  CHECK_FALSE(Codec<BytesView>::decode(in, view));
}

TEST_CASE("a caller without room for a ring keeps to its socket") {
  CallFixture fixture(0);
  auto counter = fixture.spawn<Counter>({}, 0);
  for (int i = 0; i < 100; ++i) REQUIRE(counter.call<&Counter::get>().get(20s).ok());
  const auto channel = fixture.client->channel(counter.id(), detail::kActorInterface<Counter>);
  CHECK_FALSE(channel->has_ring());
}

TEST_CASE_FIXTURE(CallFixture, "a driver on no node calls actors of its own machine locally") {
  bool here = true;
  SUBCASE("the actor's node is on it") { here = true; }
  SUBCASE("it is on another one") { here = false; }
  if (!here) node->say_local_name("troupe-test-nobody");
  const auto visitor = node->make_distant_client(true);
  const auto counter = detail::spawn<Counter>(visitor, ActorOptions{}, 0).value();
  const auto channel = visitor->channel(counter.id(), detail::kActorInterface<Counter>);
  const Deadline patience = Deadline::after(20s);
  int calls = 0;
  do {
    REQUIRE(counter.call<&Counter::add>(1).get(20s).value() == ++calls);
  } while ((here ? !channel->has_ring() : calls < 100) && !patience.passed());
  CHECK(channel->has_ring() == here);
  visitor->close();
}

TEST_CASE_FIXTURE(CallFixture, "latencies") {
  auto counter = spawn<Counter>({.max_restarts = 100}, 0);
  const auto begin = Deadline::after(0ns).time();
  REQUIRE(counter.call<&Counter::get>().get(20s).ok());
  const auto created = Deadline::after(0ns).time() - begin;
  std::vector<double> microseconds;
  for (int i = 0; i < 2000; ++i) {
    const auto start = Deadline::after(0ns).time();
    REQUIRE(counter.call<&Counter::get>().get(20s).ok());
    microseconds.push_back(
        std::chrono::duration<double, std::micro>(Deadline::after(0ns).time() - start).count());
  }
  std::sort(microseconds.begin(), microseconds.end());
  node->kill_process(counter.id(), SIGKILL);
  const auto killed = Deadline::after(0ns).time();
  REQUIRE(counter.with({.timeout = 20s, .retry = true}).call<&Counter::get>().get(20s).ok());
  MESSAGE("creation to first answer "
          << created.count() / 1000 << " us, sync call p50 " << microseconds[1000] << " us p99 "
          << microseconds[1980] << " us, kill -9 to next answer "
          << (Deadline::after(0ns).time() - killed).count() / 1000 << " us");
}

}  // namespace
}  // namespace troupe::tests
