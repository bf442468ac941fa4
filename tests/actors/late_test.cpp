// What the error of a deadline says: who was waited for, where it is, and why it was not there in
// time.

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "tests/actors/call_fixture.h"
#include "tests/actors/test_actors.h"
#include "troupe/spawn.h"
#include "troupe/supervision.h"

namespace troupe::tests::late_test {
namespace {

using namespace std::chrono_literals;

constexpr ActorId kReader{0x3f2a, 1};
constexpr NodeId kNode{0x6def, 1};

// A head that says one thing of every actor, or nothing.
class OneAnswer final : public detail::Directory {
 public:
  OneAnswer(net::EventLoop& loop, std::optional<wire::ActorInfo> info)
      : loop_(loop), info_(std::move(info)) {}
  WatchId watch(ActorId, const std::string&, OnActor on_actor) override {
    if (info_) loop_.post([on_actor, info = *info_] { on_actor(info); });
    return 1;
  }
  void unwatch(WatchId) override {}
  void create(std::vector<wire::ActorSpec>, bool, bool, OnDone) override {}
  void kill(ActorId, bool, std::int64_t, const std::string&, OnDone done) override {
    loop_.post([done] { done(Status()); });
  }
  void list_nodes(OnNodes) override {}
  void drain(ActorId, std::int64_t, const std::string&, OnDone done) override {
    loop_.post([done] { done(Status()); });
  }
  WatchId watch_supervisor(SupervisorId id, OnSupervisor on_supervisor) override {
    loop_.post([on_supervisor, id] {
      wire::SupervisorInfo info;
      info.supervisor_id = id;
      info.name = "crew";
      info.restarts = 3;
      info.why = error(Code::kActorDied, "killed by signal 9");
      on_supervisor(info);
    });
    return 1;
  }
  void supervise(wire::SupervisorSpec, OnDone done) override {
    loop_.post([done] { done(Status()); });
  }
  void close() override {}

 private:
  net::EventLoop& loop_;
  const std::optional<wire::ActorInfo> info_;
};

struct Late {
  net::LoopThread thread{"test"};
  std::shared_ptr<detail::ActorClient> client;
  explicit Late(std::optional<wire::ActorInfo> info) {
    auto environment = std::make_shared<detail::ChannelEnvironment>();
    environment->loop = &thread.loop();
    environment->token = net::Token(std::vector<std::byte>(32, std::byte{7}));
    environment->directory = std::make_shared<OneAnswer>(thread.loop(), std::move(info));
    detail::ClientOptions options;
    options.environment = std::move(environment);
    options.image = []() -> Result<wire::Image> { return wire::Image{}; };
    options.random = std::make_shared<SystemRandom>();
    client = std::make_shared<detail::ActorClient>(std::move(options));
  }
  ~Late() { client->close(); }
  ActorHandle<Counter> reader() { return detail::handle_to<Counter>(client, kReader); }
};

wire::ActorInfo reader(wire::ActorState state, const std::string& why = {}, std::int64_t pid = 0,
                       Status death = {}) {
  wire::ActorInfo info;
  info.actor_id = kReader;
  info.type = "Counter";
  info.name = "reader";
  info.state = state;
  info.pending_why = why;
  info.pid = pid;
  info.death = std::move(death);
  if (state != wire::ActorState::kPending) info.node_id = kNode;
  info.endpoint = {"127.0.0.1", 1, {}};  // nobody listens there
  return info;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("late: a call says what its actor does, at its own deadline and at that of get()") {
  using State = wire::ActorState;
  const std::string room = "needs CPU 1; vm has CPU 0 of 2 free";
  const std::string node = kNode.brief();
  const Status killed = error(Code::kActorDied, "killed by signal 9 (SIGKILL)");
  const struct {
    const char* name;
    std::optional<wire::ActorInfo> info;
    std::vector<std::string> says;
  } rows[] = {
      {"not known", std::nullopt, {"the head has not said where the actor is"}},
      {"waits for room", reader(State::kPending, room), {"it is pending for ", " s: " + room}},
      {"being placed", reader(State::kPending), {"the head looks for a node with room"}},
      {"being started", reader(State::kStarting), {"starting for ", "starts on node " + node}},
      {"starting",
       reader(State::kStarting, "", 4711),
       {"it is starting for ", "its process 4711 starts on node " + node}},
      {"restarting",
       reader(State::kRestarting, "", 0, killed),
       {"it is restarting for ", "killed by signal 9", "starts after its back-off"}},
      {"restarting, waits for room",
       reader(State::kRestarting, room, 0, killed),
       {"killed by signal 9", room}},
      {"connecting",
       reader(State::kAlive, "", 4711),
       {"process 4711 on node " + node + " runs it for ",
        "there is no connection to it at 127.0.0.1:1: "}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    Late late(row.info);
    const auto reader = late.reader();
    const auto told = [&](const Status& status) {
      return std::all_of(row.says.begin(), row.says.end(),
                         [&](const auto& part) { return contains(status.message(), part); });
    };
    const auto check = [&](const Status& status) {
      CHECK(status.code() == Code::kDeadlineExceeded);
      CHECK_MESSAGE(told(status), status.to_string());
      CHECK(status.context("method") == "Counter::get");
      CHECK(status.context("actor") ==
            (row.info ? std::string("reader") : "Counter " + kReader.brief()));
      const bool placed = row.info && !row.info->node_id.empty();
      CHECK(status.context("node").has_value() == placed);
    };
    auto call = reader.with({.timeout = 1h}).call<&Counter::get>();
    Status status;
    const Deadline patience = Deadline::after(20s);
    do {  // the head's word is on its way
      status = call.get(1ms).status();
    } while (!told(status) && !patience.passed());
    check(status);
    CHECK(contains(status.message(), "no result before the deadline of get(), the call goes on"));
    // So does what is made of it.
    auto chained = std::move(call).then([](Result<int> n) { return n; });
    check(chained.get(1ms).status());
    std::vector<Future<int>> all;
    all.push_back(reader.with({.timeout = 1h}).call<&Counter::get>());
    all.push_back(std::move(chained));
    const Status both = when_all(std::move(all)).get(1ms).status();
    check(both);
    CHECK(contains(both.message(), "2 futures are not ready; the first of them: "));
    const Status own = reader.with({.timeout = 1ms}).call<&Counter::get>().get(20s).status();
    check(own);
    CHECK(contains(own.message(), "by the call's deadline: "));
  }
}

TEST_CASE_FIXTURE(CallFixture, "late: a call that was sent says who has it") {
  auto sleeper = spawn<Sleeper>({.name = "sleeper"});
  ReachedFifo fifo;
  auto first = sleeper.call<&Sleeper::wait_after>(fifo.path, 60'000);
  fifo.wait();
  const Status alone = first.get(1ms).status();
  const std::string process = fmt::format("process {} on node {} has it for ",
                                          node->info(sleeper.id()).pid, node->node_id().brief());
  CHECK_MESSAGE(contains(alone.message(), process), alone.to_string());
  CHECK(contains(alone.message(), "the only call that this process waits for"));
  CHECK(alone.context("actor") == "sleeper");
  CHECK(alone.context("method") == "Sleeper::wait_after");
  CHECK(alone.context("node") == node->node_id().brief());
  auto second = sleeper.call<&Sleeper::touch>();
  const Status behind = second.get(1ms).status();
  CHECK_MESSAGE(contains(behind.message(), "2 calls of this process are on their way to it"),
                behind.to_string());
  const Status own = sleeper.with({.timeout = 1ms}).call<&Sleeper::touch>().get(20s).status();
  CHECK(own.code() == Code::kDeadlineExceeded);
  CHECK_MESSAGE(contains(own.message(), "has not answered by the call's deadline: " + process),
                own.to_string());
}

TEST_CASE("late: waits for actors, gangs, ends and supervisors say what became of them") {
  // The head's word is on its way: asked again, with the same short deadline, until it is there.
  const auto said_in_time = [](const std::string& part,
                               const std::function<Status(Deadline)>& wait) {
    const Deadline patience = Deadline::after(20s);
    Status status;
    do {
      status = wait(Deadline::after(10ms));
    } while (!contains(status.to_string(), part) && !patience.passed());
    CHECK(status.code() == Code::kDeadlineExceeded);
    CHECK_MESSAGE(contains(status.to_string(), part), status.to_string());
    return status;
  };
  {
    Late late(reader(wire::ActorState::kPending,
                     "needs CPU 1; no node is there that takes actors (troupe worker starts one)"));
    (void)said_in_time(
        "connecting to an actor: the actor is pending still: needs CPU 1; no node is there that "
        "takes actors (troupe worker starts one) (actor=reader)",
        [&](Deadline by) { return late.client->connect_to(kReader, "x", by).status(); });
    std::vector<detail::PlainMember> members(5);
    members[0].options.name = "a";
    const Status gang =
        late.client
            ->create_gang(members, detail::kActorInterface<Counter>, false, Deadline::after(10ms))
            .status();
    CHECK(gang.code() == Code::kDeadlineExceeded);
    CHECK(gang.context("actors") == "a, Counter, Counter and 2 more");
  }
  {
    Late late(reader(wire::ActorState::kAlive, "", 4711));
    const Status drained = said_in_time(
        "stopping an actor: the actor is alive still: process 4711 on node",
        [&](Deadline by) { return late.client->drain(kReader, 0ms, "", by).status(); });
    CHECK(drained.context("node") == kNode.brief());
    const auto crew = detail::Access::create<Supervisor>(
                          late.client, SupervisorOptions{.name = "crew"}, Deadline::after(20s))
                          .value();
    const Status end = said_in_time("3 times; the last time: killed by signal 9",
                                    [&](Deadline by) { return crew.wait_for_end(by.remaining()); });
    CHECK(end.context("supervisor") == "crew");
  }
  {
    Late silent(std::nullopt);
    const Status raw = said_in_time("the head has not answered in time", [&](Deadline by) {
      return silent.client->connect_to(kReader, "x", by).status();
    });
    CHECK(raw.context("actor") == kReader.brief());
  }
}

}  // namespace
}  // namespace troupe::tests::late_test
