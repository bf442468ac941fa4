// Callers and hosts against a small node: calls, errors, deaths, saved state.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include "actors/spawn.h"
#include "runtime/base/limits.h"
#include "tests/actors/fake_node.h"
#include "tests/actors/test_actors.h"
#include "tests/support/test_data.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

struct Fixture {
  std::shared_ptr<FakeNode> node = FakeNode::start(bin_dir() + "/test_actors_host");
  std::shared_ptr<detail::ActorClient> client = node->make_client();
  ~Fixture() {
    client->close();
    node->stop();
  }
  template <typename T, typename... A>
  ActorHandle<T> spawn(const ActorOptions& options, A... arguments) {
    return detail::spawn<T>(client, options, arguments...).value();
  }
};

TEST_CASE_FIXTURE(Fixture, "calls run in order and their results come back") {
  auto counter = spawn<Counter>({.name = "c"}, 10);
  std::vector<Future<int>> sums;
  for (int i = 1; i <= 100; ++i) sums.push_back(counter.call<&Counter::add>(1));
  for (int i = 1; i <= 100; ++i)
    CHECK(sums[static_cast<std::size_t>(i - 1)].get(20s).value() == 10 + i);
  CHECK(counter.call<&Counter::get>().get(5s).value() == 110);
  const wire::Bytes big(5 << 20, std::byte{3});
  CHECK(counter.call<&Counter::echo>(big).get(20s).value() == big);
  const wire::Bytes huge(70 << 20);
  CHECK(counter.call<&Counter::echo>(huge).get(20s).status().code() == Code::kInvalidArgument);
}

TEST_CASE_FIXTURE(Fixture, "a process that is ready says so again to a new daemon") {
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

TEST_CASE_FIXTURE(Fixture, "errors carry actor, method and node") {
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

TEST_CASE_FIXTURE(Fixture, "a constructor that fails ends every call with its error") {
  auto broken = spawn<Broken>({.name = "b"}, std::string("bad luck"));
  const Status status = broken.call<&Broken::nothing>().get(20s);
  CHECK(status.code() == Code::kActorDied);
  CHECK(status.message().find("bad luck") != std::string::npos);
  CHECK(broken.call<&Broken::nothing>().get(20s).code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(Fixture, "a refusal of the head ends the calls") {
  auto counter = spawn<Counter>({.resources = {{"unobtainable", 1}}}, 0);
  CHECK(counter.call<&Counter::get>().get(20s).status().code() == Code::kResourceExhausted);
  ActorOptions negative;
  negative.num_cpus = -1;
  CHECK(detail::spawn<Counter>(client, negative, 0).status().code() == Code::kInvalidArgument);
}

TEST_CASE_FIXTURE(Fixture, "kill -9: the count is kept, later calls wait for the next process") {
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

TEST_CASE_FIXTURE(Fixture,
                  "a call that was running at the death ends typed; with retry it runs again") {
  auto sleeper = spawn<Sleeper>({.max_restarts = 1});
  REQUIRE(sleeper.call<&Sleeper::touch>().get(20s).ok());
  auto running = sleeper.call<&Sleeper::wait>(60'000);
  auto again = sleeper.with({.timeout = 20s, .retry = true}).call<&Sleeper::touch>();
  node->kill_process(sleeper.id(), SIGKILL);
  CHECK(running.get(20s).status().code() == Code::kUnavailable);
  CHECK(again.get(20s).value() == 1);
}

TEST_CASE_FIXTURE(Fixture, "an actor that is dead for good: its calls say why") {
  auto counter = spawn<Counter>({}, 0);
  REQUIRE(counter.call<&Counter::get>().get(20s).ok());
  const Status running = counter.call<&Counter::exit_now>(3).get(20s);
  CHECK(running.code() == Code::kActorDied);
  const Status later = counter.call<&Counter::get>().get(20s).status();
  CHECK(later.code() == Code::kActorDied);
  CHECK(later.message().find("exit code 3") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "deadlines end calls that run, and keep queued ones from running") {
  auto sleeper = spawn<Sleeper>({});
  REQUIRE(sleeper.call<&Sleeper::touch>().get(20s).ok());
  auto busy = sleeper.call<&Sleeper::wait>(300);
  auto expired = sleeper.with({.timeout = 20ms}).call<&Sleeper::touch>();
  CHECK(expired.get(20s).status().code() == Code::kDeadlineExceeded);
  CHECK(busy.get(20s).ok());
  CHECK(sleeper.call<&Sleeper::touch>().get(20s).value() == 2);
}

TEST_CASE_FIXTURE(Fixture, "a cancelled call that waits is not run") {
  auto sleeper = spawn<Sleeper>({});
  auto busy = sleeper.call<&Sleeper::wait>(200);
  auto cancelled = sleeper.call<&Sleeper::touch>();
  cancelled.cancel();
  CHECK(cancelled.get(1s).status().code() == Code::kCancelled);
  REQUIRE(busy.get(20s).ok());
  CHECK(sleeper.call<&Sleeper::touch>().get(20s).value() == 1);
}

TEST_CASE_FIXTURE(Fixture, "a full mailbox answers overloaded") {
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

TEST_CASE_FIXTURE(Fixture, "handles travel, and an actor knows itself") {
  auto counter = spawn<Counter>({}, 5);
  auto relay = spawn<Relay>({});
  CHECK(relay.call<&Relay::add>(counter, 7).get(20s).value() == 12);
  auto sleeper = spawn<Sleeper>({.name = "s", .run = "r", .rank = 3});
  CHECK(sleeper.call<&Sleeper::where>().get(20s).value() == "s/3/r/1");
  const Status itself = sleeper.call<&Sleeper::ask_itself>().get(20s).status();
  CHECK(itself.code() == Code::kFailedPrecondition);
}

TEST_CASE_FIXTURE(Fixture, "graceful stops end long methods; actors may leave by themselves") {
  auto sleeper = spawn<Sleeper>({});
  REQUIRE(sleeper.call<&Sleeper::touch>().get(20s).ok());
  const TemporaryDirectory directory;
  REQUIRE(::mkfifo(directory.file("started").c_str(), 0600) == 0);
  auto waiting = sleeper.call<&Sleeper::wait_after>(directory.file("started"), 60'000);
  const UniqueFd started(::open(directory.file("started").c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(detail::kill(client, sleeper.id(), {.grace = 5s}).ok());
  CHECK(waiting.get(20s).value());
  auto leaving = spawn<Sleeper>({});
  CHECK(leaving.call<&Sleeper::leave>().get(20s).ok());
  CHECK(leaving.call<&Sleeper::touch>().get(20s).status().code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(Fixture, "finding by name checks the class; watching tells of changes") {
  auto counter = spawn<Counter>({.name = "c"}, 1);
  REQUIRE(counter.call<&Counter::get>().get(20s).ok());
  CHECK(detail::find<Counter>(client, "c", 5s).value().call<&Counter::get>().get(5s).value() == 1);
  CHECK(detail::find<Sleeper>(client, "c", 5s).status().code() == Code::kInvalidArgument);
  CHECK(detail::find<Counter>(client, "d", 5s).status().code() == Code::kNotFound);
  auto dead = std::make_shared<Promise<void>>();
  auto died = dead->future();
  ActorWatch watch(client, client->watch(counter.id(), [dead](const wire::ActorInfo& info) {
    if (info.state == wire::ActorState::kDead) dead->set(Status());
  }));
  REQUIRE(detail::kill(client, counter.id(), {}).ok());
  CHECK(died.get(20s).ok());
}

TEST_CASE_FIXTURE(Fixture, "raw sockets reach whoever accepts their purpose") {
  auto peer = spawn<RawPeer>({});
  auto raw = client->connect_to(peer.id(), "echo/7", Deadline::after(20s));
  REQUIRE_MESSAGE(raw.ok(), raw.status().to_string());
  CHECK(raw->same_node);
  char text[16] = {};
  CHECK(::recv(raw->socket.get(), text, sizeof text, 0) == 7);
  CHECK(std::string(text) == "/echo/7");
}

TEST_CASE_FIXTURE(Fixture, "another program's idea of the actor is refused by the method's name") {
  auto counter = spawn<Counter>({}, 0);
  REQUIRE(counter.call<&Counter::get>().get(20s).ok());
  static constexpr detail::MethodSignature kOther[] = {{"get", 1}};
  static constexpr detail::ActorInterface kInterface{"Counter", kOther};
  auto other = std::make_shared<detail::ActorChannel>(
      [&] {
        auto environment = std::make_shared<detail::ChannelEnvironment>();
        environment->loop = &node->loop();
        environment->token = node->token();
        environment->directory = node;
        return environment;
      }(),
      counter.id(), kInterface, ClientId{1, 2});
  Promise<void> answered;
  Status status;
  other->call({.method = 0,
               .arguments = {},
               .deadline = Deadline::after(20s),
               .retry = false,
               .done = [&](Result<wire::Bytes> result) {
                 status = result.status();
                 answered.set(Status());
               }});
  REQUIRE(answered.future().get(20s).ok());
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(status.message().find("Counter::get") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "latencies") {
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
