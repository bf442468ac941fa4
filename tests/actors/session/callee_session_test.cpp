// The actor's half of its callers' conversations, event by event, without a socket.

#include "actors/session/callee_session.h"

#include <doctest/doctest.h>

#include <array>

namespace troupe::detail::callee_session_test {
namespace {

constexpr std::array<MethodSignature, 1> kMethods = {MethodSignature{"add", 1}};
constexpr ActorInterface kInterface{"Counter", kMethods};
constexpr ActorId kActor{1, 2};
constexpr ClientId kCaller{5, 6};
constexpr TimePoint kNow = TimePoint(std::chrono::hours(1));
constexpr TimePoint kDeadline = kNow + std::chrono::seconds(60);
using Verdict = CalleeSession::Verdict;

struct FakeLink final : CalleeLink {
  std::vector<wire::CallMessage> messages;
  bool is_unread = false;
  Status send(wire::EncodedCall message, bool) override {
    const auto beside = message.attachment ? *message.attachment : wire::Bytes();
    messages.push_back(wire::decode_call(message.frame, beside).value());
    return {};
  }
  bool unread() const override { return is_unread; }
  void end() override {}
};

wire::Bind bind_of(ClientId caller) { return {kActor, "Counter", caller, {{"add", 1}}}; }

struct Fixture {
  CalleeSession session{{.actor_id = kActor, .generation = 3, .interface = kInterface}};

  static std::shared_ptr<FakeLink> bind(CalleeSession& to, const wire::Bind& bind) {
    auto link = std::make_shared<FakeLink>();
    auto introduction = to.introduce(bind);
    REQUIRE(introduction.refusal.ok());
    (void)to.bind(link, bind, std::move(introduction.methods));
    return link;
  }
  std::shared_ptr<FakeLink> bind() { return bind(session, bind_of(kCaller)); }
  Verdict admit(std::uint64_t sequence) {
    return session.admit(kCaller, sequence, 0, kDeadline, wire::Bytes(4)).verdict;
  }
  void answer(std::uint64_t sequence) {
    REQUIRE(session.ended(kCaller, sequence));
    session.reply(kCaller, sequence, Reply(sequence, wire::Bytes(1), true), false, false);
  }
};

TEST_CASE_FIXTURE(Fixture, "callee session: a call that is sent again runs once, and is answered") {
  auto link = bind();
  CHECK(admit(1) == Verdict::kRun);
  CHECK(admit(1) == Verdict::kNothing);  // it runs
  answer(1);
  link = bind();
  CHECK(admit(1) == Verdict::kNothing);
  CHECK(std::get<wire::CallReply>(link->messages.back()).status.ok());
}

TEST_CASE_FIXTURE(Fixture, "callee session: what is saved says which calls have run") {
  bind();
  REQUIRE(admit(1) == Verdict::kRun);
  REQUIRE(admit(2) == Verdict::kRun);
  CalleeSession next({.actor_id = kActor, .generation = 4, .interface = kInterface});
  next.restore_answered(session.answered(kCaller, 1, wire::Bytes(1), kNow), kNow);
  bind(next, bind_of(kCaller));
  CHECK(next.admit(kCaller, 1, 0, kDeadline, {}).verdict == Verdict::kNothing);
  CHECK(next.admit(kCaller, 2, 0, kDeadline, {}).verdict == Verdict::kRun);
}

TEST_CASE_FIXTURE(Fixture, "callee session: the older process of a pair is refused, or refuses") {
  wire::Bind newer = bind_of(kCaller);
  newer.caller_actor = ActorId{7, 8};
  newer.caller_generation = 2;
  bind(session, newer);
  wire::Bind older = newer;
  older.caller = ClientId{9, 9};
  older.caller_generation = 1;
  CHECK(session.introduce(older).refusal.code() == Code::kAborted);
  wire::Bind knowing = bind_of(ClientId{9, 9});
  knowing.generation = 4;
  const auto introduction = session.introduce(knowing);
  CHECK(introduction.refusal.code() == Code::kUnavailable);
  CHECK(introduction.superseded);
}

TEST_CASE_FIXTURE(Fixture, "callee session: the end of a link that was replaced unbinds nobody") {
  const auto older = bind();
  const auto newer = bind();
  CHECK_FALSE(session.unbind(kCaller, *older, kNow));
  CHECK(session.link(kCaller) == newer);
  CHECK(session.unbind(kCaller, *newer, kNow));
}

// A stream whose link broke before its first credit was heard waited for ever, and its actor with
// it.
TEST_CASE_FIXTURE(Fixture,
                  "callee session: a stream ends with its link, before its first credit, too") {
  const auto link = bind();
  REQUIRE(admit(1) == Verdict::kRun);
  REQUIRE(admit(2) == Verdict::kRun);
  CHECK(session.credit(kCaller, 1) == 0u);
  const auto stop = session.stop_token_of(kCaller, 1);
  auto change = session.unbind(kCaller, *link, kNow);
  REQUIRE(change);
  REQUIRE(change->stops.size() == 1);
  change->stops[0].request_stop();
  CHECK(stop.stop_requested());
  // The other one begins only now, or after its caller has come back.
  CHECK_FALSE(session.credit(kCaller, 2));
  bind();
  CHECK_FALSE(session.credit(kCaller, 2));
}

TEST_CASE_FIXTURE(Fixture, "callee session: who does not read is held back until it has") {
  const auto link = bind();
  REQUIRE(admit(1) == Verdict::kRun);
  link->is_unread = true;
  answer(1);
  CHECK(session.holds_back(kCaller));
  CHECK(session.held_back_count() == 1);
  CHECK(session.on_read(kCaller, *link));
  CHECK_FALSE(session.holds_back(kCaller));
}

TEST_CASE_FIXTURE(Fixture, "callee session: a process that ends gives back what it has not begun") {
  const auto link = bind();
  REQUIRE(admit(1) == Verdict::kRun);
  session.give_back_new();
  CHECK(std::holds_alternative<wire::Draining>(link->messages.back()));
  CHECK(admit(2) == Verdict::kNothing);
  CHECK(std::get<wire::CallGivenBack>(link->messages.back()).sequence == 2);
  session.give_back(kCaller, 1, wire::Bytes(4));
  CHECK(std::get<wire::CallGivenBack>(link->messages.back()).sequence == 1);
  // Its link broke with that: it is given back on the next one.
  const auto next = bind();
  CHECK(admit(1) == Verdict::kNothing);
  CHECK(std::get<wire::CallGivenBack>(next->messages.back()).sequence == 1);
}

// Callers 1 to `count`, each with one call that has been answered, and then without a link.
void come_and_go(CalleeSession& session, std::uint64_t count) {
  std::vector<std::shared_ptr<FakeLink>> links;
  for (std::uint64_t i = 1; i <= count; ++i) {
    const ClientId caller{5, i};
    links.push_back(Fixture::bind(session, bind_of(caller)));
    REQUIRE(session.admit(caller, 1, 0, kDeadline, {}).verdict == Verdict::kRun);
    REQUIRE(session.ended(caller, 1));
    session.reply(caller, 1, Reply(1, wire::Bytes(1), true), false, false);
  }
  for (std::uint64_t i = 1; i <= count; ++i) {
    session.unbind(ClientId{5, i}, *links[i - 1], kNow);
  }
}
// How many of them come back, send the call again, and have it run again.
std::uint64_t run_twice(CalleeSession& session, std::uint64_t count) {
  std::uint64_t twice = 0;
  for (std::uint64_t i = 1; i <= count; ++i) {
    Fixture::bind(session, bind_of(ClientId{5, i}));
    if (session.admit(ClientId{5, i}, 1, 0, kDeadline, {}).verdict == Verdict::kRun) ++twice;
  }
  return twice;
}

TEST_CASE("callee session: a caller that may send a call again is not forgotten") {
  CalleeSession session(
      {.actor_id = kActor, .generation = 3, .interface = kInterface, .idle_callers_max = 2});
  come_and_go(session, 50);
  SUBCASE("by the process") { CHECK(run_twice(session, 50) == 0); }
  SUBCASE("by the next process") {
    const auto late = kNow + std::chrono::seconds(59);
    const ClientId own{6, 6};
    const auto link = Fixture::bind(session, bind_of(own));
    REQUIRE(session.admit(own, 1, 0, kDeadline, {}).verdict == Verdict::kRun);
    CalleeSession next(
        {.actor_id = kActor, .generation = 4, .interface = kInterface, .idle_callers_max = 2});
    next.restore_answered(session.answered(own, 1, wire::Bytes(1), late), late);
    const auto there = Fixture::bind(next, bind_of(own));
    next.unbind(own, *there, late);
    CHECK(run_twice(next, 50) == 0);
  }
  SUBCASE("until its calls have reached their deadlines") {
    for (std::uint64_t i = 1; i <= 50; ++i) {
      const ClientId later{7, i};
      const auto link = Fixture::bind(session, bind_of(later));
      session.unbind(later, *link, kDeadline);
    }
    CHECK(run_twice(session, 50) == 50);
  }
}

}  // namespace
}  // namespace troupe::detail::callee_session_test
