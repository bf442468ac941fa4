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

const troupe::Result<wire::Bytes> kResult = wire::Bytes(1);
AnsweredCalls all_answered(CalleeSession& session, ClientId caller, std::uint64_t sequence,
                           TimePoint now = kNow) {
  return session.answered({caller, sequence, kResult}, SavedAnswers::kAll, now);
}

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
  next.restore_answered({all_answered(session, kCaller, 1)}, kNow);
  bind(next, bind_of(kCaller));
  CHECK(next.admit(kCaller, 1, 0, kDeadline, {}).verdict == Verdict::kNothing);
  CHECK(next.admit(kCaller, 2, 0, kDeadline, {}).verdict == Verdict::kRun);
}

// An actor that is saved with every call, and its next process.
struct Saved : Fixture {
  std::vector<AnsweredCalls> saves;
  std::shared_ptr<FakeLink> link;  // to the next process
  CalleeSession next{{.actor_id = kActor, .generation = 4, .interface = kInterface}};

  Saved() { bind(); }
  // Calls up to this one have been admitted and answered, and nothing was saved after them.
  void look_up_to(std::uint64_t sequence) {
    for (; looked < sequence; answer(++looked)) REQUIRE(admit(looked + 1) == Verdict::kRun);
  }
  void run(std::uint64_t sequence, SavedAnswers which, TimePoint now = kNow, bool keep = true) {
    REQUIRE(admit(sequence) == Verdict::kRun);
    if (which == SavedAnswers::kAll) saves.clear();
    saves.push_back(session.answered({kCaller, sequence, kResult, keep}, which, now));
    answer(sequence);
    looked = sequence;
  }
  void die() {
    next.restore_answered(saves, kNow);
    link = bind(next, bind_of(kCaller));
  }
  bool answers(std::uint64_t sequence) {
    link->messages.clear();
    if (next.admit(kCaller, sequence, 0, kDeadline, {}).verdict != Verdict::kNothing) return false;
    return link->messages.size() == 1 &&
           std::get<wire::CallReply>(link->messages.front()).status.ok();
  }

  std::uint64_t looked = 0;
};

TEST_CASE_FIXTURE(Saved, "callee session: a save says what came since the one before") {
  run(1, SavedAnswers::kAll);
  look_up_to(4);
  run(5, SavedAnswers::kSince);
  run(6, SavedAnswers::kSince);
  run(7, SavedAnswers::kSince, kNow, /*keep=*/false);
  const auto numbers = [](const AnsweredCalls& calls) {
    REQUIRE(calls.callers.size() == 1);
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, frame] : calls.callers[0].answers) numbers.push_back(number);
    return numbers;
  };
  using Numbers = std::vector<std::uint64_t>;
  CHECK(numbers(saves[0]) == Numbers{1});
  CHECK(numbers(saves[1]) == Numbers{2, 3, 4, 5});
  CHECK(numbers(saves[2]) == Numbers{6});
  CHECK(numbers(saves[3]).empty());
  CHECK(saves[3].callers[0].highest == 7);
  die();
  for (std::uint64_t i = 1; i <= 6; ++i) CHECK(answers(i));
  CHECK_FALSE(answers(7));  // it has run, and is not asked for
  CHECK(next.admit(kCaller, 7, 0, kDeadline, {}).verdict == Verdict::kNothing);
  CHECK(next.admit(kCaller, 8, 0, kDeadline, {}).verdict == Verdict::kRun);
}

TEST_CASE_FIXTURE(Saved, "callee session: a save of all says again what others said") {
  run(1, SavedAnswers::kAll);
  run(2, SavedAnswers::kSince);
  look_up_to(3);
  run(4, SavedAnswers::kAll);
  REQUIRE(saves.size() == 1);
  die();
  for (std::uint64_t i = 1; i <= 4; ++i) CHECK(answers(i));
}

// What is answered out of turn, since it was refused or cancelled, runs when it is sent again; its
// answer is saved when the calls before it have run.
TEST_CASE_FIXTURE(Saved, "callee session: an answer is saved once the calls before it have run") {
  run(1, SavedAnswers::kAll);
  REQUIRE(admit(2) == Verdict::kRun);
  REQUIRE(admit(3) == Verdict::kRun);
  REQUIRE(admit(4) == Verdict::kRun);
  answer(4);
  const auto ran = [&](std::uint64_t sequence) {
    saves.push_back(session.answered({kCaller, sequence, kResult}, SavedAnswers::kSince, kNow));
    answer(sequence);
  };
  ran(2);
  CHECK(saves.back().callers[0].highest == 2);
  CHECK_FALSE(saves.back().callers[0].answers.contains(4));
  SUBCASE("killed before") {
    die();
    CHECK(next.admit(kCaller, 4, 0, kDeadline, {}).verdict == Verdict::kRun);
  }
  SUBCASE("killed behind it") {
    ran(3);
    CHECK(saves.back().callers[0].highest == 4);
    die();
    CHECK(answers(3));
    CHECK(answers(4));
  }
}

TEST_CASE_FIXTURE(Saved, "callee session: a caller is known as long from its last save as then") {
  const auto second = std::chrono::seconds(1);
  run(1, SavedAnswers::kAll);
  // A minute's deadline, of which half is over when another caller's call is saved.
  const ClientId other{6, 6};
  bind(session, bind_of(other));
  REQUIRE(session.admit(other, 1, 0, kNow, {}).verdict == Verdict::kRun);
  saves.push_back(session.answered({other, 1, kResult}, SavedAnswers::kSince, kNow + 30 * second));
  CalleeSession strict(
      {.actor_id = kActor, .generation = 4, .interface = kInterface, .idle_callers_max = 0});
  strict.restore_answered(saves, kNow);
  const auto knows = [&](ClientId caller, TimePoint now) {
    const auto passing = bind(strict, bind_of(ClientId{9, 9}));
    strict.unbind(ClientId{9, 9}, *passing, now);
    bind(strict, bind_of(caller));
    const bool known = strict.admit(caller, 1, 0, now, {}).verdict == Verdict::kNothing;
    return known;
  };
  SUBCASE("before") { CHECK(knows(kCaller, kNow + 29 * second)); }
  SUBCASE("behind") { CHECK_FALSE(knows(kCaller, kNow + 31 * second)); }
  SUBCASE("the other") { CHECK_FALSE(knows(other, kNow)); }
}

TEST_CASE_FIXTURE(Saved, "callee session: who can ask no more is left out of a save of all") {
  const auto answers_of = [&](ClientId caller, const AnsweredCalls& calls) {
    for (const auto& of : calls.callers) {
      if (of.caller == caller) return of.answers.size();
    }
    FAIL("the caller is not saved");
    return std::size_t{0};
  };
  const auto answered_once = [&](const wire::Bind& bind_from) {
    auto link = bind(session, bind_from);
    REQUIRE(session.admit(bind_from.caller, 1, 0, kDeadline, {}).verdict == Verdict::kRun);
    REQUIRE(session.ended(bind_from.caller, 1));
    session.reply(bind_from.caller, 1, Reply(1, wire::Bytes(1), true), false, false);
    return link;
  };
  SUBCASE("a caller without a connection, whose calls have reached their deadlines") {
    const ClientId gone{6, 6};
    const auto link = answered_once(bind_of(gone));
    session.unbind(gone, *link, kNow);
    run(1, SavedAnswers::kAll);
    CHECK(answers_of(gone, saves[0]) == 1);
    run(2, SavedAnswers::kAll, kDeadline);
    CHECK(answers_of(gone, saves[0]) == 0);
    CHECK(answers_of(kCaller, saves[0]) == 2);
  }
  SUBCASE("an actor's process that has a successor, once that is saved") {
    wire::Bind older = bind_of(ClientId{6, 6});
    older.caller_actor = ActorId{7, 8};
    older.caller_generation = 1;
    wire::Bind newer = older;
    newer.caller = ClientId{6, 7};
    newer.caller_generation = 2;
    answered_once(older);
    bind(session, newer);
    run(1, SavedAnswers::kAll);
    CHECK(answers_of(older.caller, saves[0]) == 1);
    REQUIRE(session.admit(newer.caller, 1, 0, kDeadline, {}).verdict == Verdict::kRun);
    saves.push_back(session.answered({newer.caller, 1, kResult}, SavedAnswers::kSince, kNow));
    REQUIRE(session.ended(newer.caller, 1));
    next.restore_answered(saves, kNow);
    CHECK(next.introduce(older).refusal.code() == Code::kAborted);
    run(2, SavedAnswers::kAll);
    CHECK(answers_of(older.caller, saves[0]) == 0);
  }
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

// An item of a pipeline that was in hand when the line ended was answered with "there is no
// method": what a method's number means had gone with the line.
TEST_CASE_FIXTURE(Fixture,
                  "callee session: what a link said that has ended runs when it is said again") {
  const auto link = bind();
  REQUIRE(session.unbind(kCaller, *link, kNow));
  CHECK(admit(1) == Verdict::kNothing);
  bind();
  CHECK(admit(1) == Verdict::kRun);
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
    next.restore_answered({all_answered(session, own, 1, late)}, late);
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
