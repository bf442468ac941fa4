// The caller's half of a conversation, event by event, without a socket.

#include "actors/session/caller_session.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

namespace troupe::detail::caller_session_test {
namespace {

using namespace std::chrono_literals;

constexpr std::array<MethodSignature, 1> kMethods = {MethodSignature{"add", 1}};
constexpr ActorInterface kInterface{"Counter", kMethods, false, true};
constexpr ActorId kActor{1, 2};
constexpr NodeId kNode{3, 4};

// Takes what it is given until it is full.
struct FakeLink final : CallLink {
  std::vector<std::uint64_t> calls;
  std::vector<wire::CallMessage> messages;
  bool full = false;
  Status refusal;
  SendOutcome send_call(std::uint64_t sequence, CallRequest&, std::size_t) override {
    if (full) return {Sent::kFull};
    if (!refusal.ok()) return {Sent::kRefused, refusal};
    calls.push_back(sequence);
    return {};
  }
  Status send(const wire::CallMessage& message) override {
    messages.push_back(message);
    return {};
  }
  void end(const Status&) override {}
  void close() override {}
};

// Says when they are given back.
struct Lent final : LentArguments {
  explicit Lent(bool& back) : back(back) {}
  ~Lent() override { back = true; }
  std::span<const std::byte> bytes() const override { return {}; }
  bool& back;
};

struct Fixture {
  CallerSession session{{.actor_id = kActor, .interface = kInterface, .caller = ClientId{5, 6}}};
  TimePoint now{1h};
  std::shared_ptr<FakeLink> link;
  std::vector<EndedCall> ended;
  std::optional<CallerOutcome::Connect> connect;

  void take(CallerOutcome out) {
    for (auto& call : out.ended) ended.push_back(std::move(call));
    if (out.connect) connect = out.connect;
  }
  std::uint64_t call(Duration timeout = 10s, bool retry = false,
                     std::unique_ptr<LentArguments> lent = nullptr) {
    CallerOutcome out;
    const auto sequence = session.call({.method = 0,
                                        .arguments = wire::Bytes(4),
                                        .deadline = Deadline::at(now + timeout),
                                        .retry = retry,
                                        .lent = std::move(lent)},
                                       out);
    take(std::move(out));
    return sequence;
  }
  void tell(wire::ActorState state, std::uint64_t generation) {
    wire::ActorInfo info;
    info.actor_id = kActor;
    info.state = state;
    info.generation = generation;
    info.node_id = kNode;
    info.endpoint = {"host", 7, "local"};
    CallerOutcome out;
    session.on_actor(info, now, out);
    take(std::move(out));
  }
  // Connects and binds to the process of that generation.
  void open(std::uint64_t generation = 1) {
    tell(wire::ActorState::kAlive, generation);
    REQUIRE(connect);
    CHECK(connect->node_id == kNode);
    link = std::make_shared<FakeLink>();
    CallerOutcome out;
    REQUIRE(session.on_connected(connect->attempt, std::shared_ptr<CallLink>(link), now, out));
    REQUIRE(link->messages.size() == 1);
    CHECK(std::get<wire::Bind>(link->messages[0]).generation == generation);
    hear(wire::BindReply{{}, generation});
  }
  void hear(wire::CallMessage message, const std::optional<TooLarge>& too_large = std::nullopt) {
    CallerOutcome out;
    session.on_message(connect->attempt, std::move(message), too_large, now, out);
    take(std::move(out));
  }
  void lose_link() {
    CallerOutcome out;
    session.on_ended(connect->attempt, Status(Code::kUnavailable, "it broke"), now, out);
    connect.reset();
    take(std::move(out));
  }
  // Goes on to the next time that the session asks for.
  void wait() {
    REQUIRE(session.next_time());
    now = std::max(now, *session.next_time());
    CallerOutcome out;
    session.on_time(now, out);
    take(std::move(out));
  }
};

TEST_CASE_FIXTURE(Fixture, "caller session: calls wait for the actor, and leave in their order") {
  CHECK(call() == 1);
  CHECK(call() == 2);
  CHECK_FALSE(connect);
  open();
  CHECK(link->calls == std::vector<std::uint64_t>{1, 2});
  CHECK(call() == 3);
  hear(wire::CallReply{2, {}, wire::Bytes(1)});
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].result.ok());
  hear(wire::CallReply{2, {}, wire::Bytes(1)});  // said twice
  CHECK(ended.size() == 1);
  CHECK(session.pending_calls() == 2);
}

TEST_CASE_FIXTURE(Fixture,
                  "caller session: what a full link does not take waits, with what follows") {
  call();
  open();
  link->full = true;
  call();
  link->full = false;
  call();
  CHECK(link->calls == std::vector<std::uint64_t>{1});
  CallerOutcome out;
  session.on_writable(connect->attempt, out);
  CHECK(link->calls == std::vector<std::uint64_t>{1, 2, 3});
}

TEST_CASE_FIXTURE(Fixture, "caller session: a call that its link refuses ends with why, no other") {
  call();
  open();
  link->refusal = Status(Code::kInvalidArgument, "it is too large");
  CHECK(call() == 0);
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].result.status().code() == Code::kInvalidArgument);
  CHECK(session.pending_calls() == 1);
}

TEST_CASE_FIXTURE(Fixture, "caller session: after a break a call with retry keeps its number") {
  call(10s, true);
  call(10s, false);
  open();
  lose_link();
  CHECK(ended.empty());
  wait();  // it connects again
  REQUIRE(connect);
  open();
  CHECK(link->calls == std::vector<std::uint64_t>{1});
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].result.status().code() == Code::kUnavailable);
}

TEST_CASE_FIXTURE(Fixture, "caller session: a call ends at its deadline, and the actor is told") {
  call();
  open();
  hear(wire::CallReply{1, {}, wire::Bytes(1)});
  const auto sequence = call(3s);
  wait();
  CHECK(now == TimePoint(1h) + 3s);
  REQUIRE(ended.size() == 2);
  CHECK(ended[1].result.status().code() == Code::kDeadlineExceeded);
  CHECK(std::get<wire::CancelCall>(link->messages.back()).sequence == sequence);
}

TEST_CASE_FIXTURE(Fixture,
                  "caller session: lent arguments are given back with whatever answers the call") {
  call();
  open();
  hear(wire::CallReply{1, {}, {}});
  const TooLarge too_large{.bytes = 10, .bytes_max = 5};
  bool back = false;
  const auto cancelled = [&] {
    back = false;
    const auto sequence = call(3s, false, std::make_unique<Lent>(back));
    REQUIRE(session.cancel(sequence));
    CHECK_FALSE(back);  // the actor may read them still
    return sequence;
  };
  hear(wire::CallReply{cancelled(), {}, {}});
  CHECK(back);
  hear(wire::CallReply{cancelled(), {}, {}}, too_large);
  CHECK(back);
  hear(wire::CallGivenBack{cancelled(), {}}, too_large);
  CHECK(back);
  const auto stream = cancelled();
  hear(wire::StreamItem{stream, 1, {}}, too_large);
  CHECK_FALSE(back);  // its call goes on
  hear(wire::CallReply{stream, {}, {}}, too_large);
  CHECK(back);
}

TEST_CASE_FIXTURE(Fixture,
                  "caller session: it leaves a process whose successor the head tells of") {
  call();
  open();
  tell(wire::ActorState::kAlive, 2);
  CHECK(call() == 2);
  CHECK(link->calls == std::vector<std::uint64_t>{1});  // nothing more is said to the older one
  hear(wire::CallReply{1, {}, wire::Bytes(1)});         // what it has answered counts
  CHECK(ended.size() == 1);
  connect.reset();
  while (!connect) wait();
  open(2);
  CHECK(link->calls == std::vector<std::uint64_t>{2});
}

TEST_CASE_FIXTURE(Fixture, "caller session: what a process gives back goes to the next one") {
  call();
  open();
  hear(wire::Draining{});
  CHECK(std::holds_alternative<wire::Draining>(link->messages.back()));
  hear(wire::CallGivenBack{1, wire::Bytes(4)});
  lose_link();
  tell(wire::ActorState::kRestarting, 1);
  open(2);
  CHECK(link->calls == std::vector<std::uint64_t>{1});
  CHECK(ended.empty());
}

TEST_CASE_FIXTURE(Fixture, "caller session: the actor's death ends all, its last answers first") {
  call();
  open();
  call();
  tell(wire::ActorState::kDead, 1);
  hear(wire::CallReply{1, {}, wire::Bytes(1)});
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].result.ok());
  wait();
  REQUIRE(ended.size() == 2);
  CHECK(ended[1].result.status().code() == Code::kActorDied);
  CHECK(session.link() == nullptr);
  CHECK(call() == 0);
}

}  // namespace
}  // namespace troupe::detail::caller_session_test
