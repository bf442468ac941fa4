// Numbers that a peer makes up, as large as they come: budgets hold, waits end, leases add up.

#include <doctest/doctest.h>

#include <limits>

#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLargestAmount = std::int64_t{1} << 62;
constexpr PeerId kClientPeer = 1;
constexpr PeerId kNodePeer = 2;
constexpr NodeId kNode{1, 1};
constexpr ActorId kVictim{7, 7};

struct Court {
  HeadState head;
  Moment now{TimePoint(std::chrono::hours(1)), 1'700'000'000'000'000};

  Court() {
    say(kClientPeer, wire::ClientHello{1, ClientId{9, 9}, JobId{1, 1}, "driver", "driver"});
  }
  std::vector<Command> say(PeerId peer, wire::ControlMessage message) {
    return apply(MessageArrived{peer, std::move(message)});
  }
  std::vector<Command> apply(Event event) {
    auto outcome = head.apply(std::move(event), now);
    const auto broken = head.broken_invariant();
    REQUIRE_MESSAGE(!broken, *broken);
    return std::move(outcome.commands);
  }
  // The answer to a node that registers.
  Status join(std::int64_t total, std::vector<wire::RunningActor> running = {}) {
    wire::RegisterNode node;
    node.node.node_id = kNode;
    node.node.total = {{"CPU", total}};
    node.running = std::move(running);
    for (const Command& command : say(kNodePeer, node)) {
      const auto* send = get_if<SendMessage>(&command);
      if (send == nullptr) continue;
      if (const auto* reply = get_if<wire::RegisterNodeReply>(&send->message)) {
        return reply->status;
      }
    }
    return Status(Code::kInternal, "no answer");
  }
  void create(const wire::RestartPolicy& restart) {
    wire::CreateActors create;
    wire::ActorSpec spec;
    spec.actor_id = kVictim;
    spec.type = "Counter";
    spec.resources = {{"CPU", wire::kResourceUnit}};
    spec.restart = restart;
    create.specs.push_back(std::move(spec));
    say(kClientPeer, create);
  }
  const ActorRecord& victim() const { return head.actors().at(kVictim); }
  // The process ends; time goes on to when its next one is due.
  Duration die() {
    say(kNodePeer,
        wire::ActorExited{
            .actor_id = kVictim, .generation = victim().info.generation, .exit = {0, 9}});
    if (!victim().restart_at) return Duration::zero();
    const Duration wait = *victim().restart_at - now.steady;
    now.steady += wait;
    now.unix_us += std::chrono::duration_cast<std::chrono::microseconds>(wait).count();
    say(kNodePeer, wire::Heartbeat{kNode, 1});
    apply(Tick{});
    return wait;
  }
};

HeadConfig without_heartbeats() {
  HeadConfig config;
  config.heartbeats = false;
  return config;
}

TEST_CASE("a window of any length is a window: the budget holds") {
  for (const std::int64_t window_ms : {kHuge, kHuge / 1000, kHuge / 1000 + 1}) {
    Court court;
    REQUIRE(court.join(4 * wire::kResourceUnit).ok());
    court.create({.max_restarts = 1, .window_ms = window_ms});
    court.die();
    CHECK(court.victim().has_process());
    court.die();
    CHECK(court.victim().dead());
  }
}

TEST_CASE("a back-off of any length ends within a day") {
  Court court;
  court.head = HeadState(without_heartbeats());
  court.say(kClientPeer, wire::ClientHello{1, ClientId{9, 9}, JobId{1, 1}, "driver", "driver"});
  REQUIRE(court.join(4 * wire::kResourceUnit).ok());
  court.create(
      {.max_restarts = -1, .window_ms = 0, .backoff_initial_ms = kHuge, .backoff_max_ms = kHuge});
  for (int deaths = 0; deaths < 40; ++deaths) {
    const Duration wait = court.die();
    REQUIRE(court.victim().has_process());
    CHECK(wait > Duration::zero());
    CHECK(wait <= std::chrono::hours(24));
  }
}

TEST_CASE("a node that says it runs a process of a number that nobody gave is refused") {
  for (const std::uint64_t generation : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    Court court;
    wire::RunningActor actor;
    actor.spec.actor_id = kVictim;
    actor.generation = generation;
    CHECK(court.join(4 * wire::kResourceUnit, {actor}).code() == Code::kInvalidArgument);
  }
}

TEST_CASE("a node that says it runs more than there can be is refused") {
  Court court;
  const auto running = [](std::uint64_t number, std::int64_t amount) {
    wire::RunningActor actor;
    actor.spec.actor_id = ActorId{8, number};
    actor.spec.resources = {{"CPU", amount}};
    actor.generation = 1;
    return actor;
  };
  CHECK(court.join(kHuge).code() == Code::kInvalidArgument);
  // Four of them are nothing, where sums wrap around.
  CHECK(court
            .join(kLargestAmount, {running(1, kLargestAmount), running(2, kLargestAmount),
                                   running(3, kLargestAmount), running(4, kLargestAmount)})
            .code() == Code::kInvalidArgument);
  CHECK(court.join(kLargestAmount, {running(1, kLargestAmount)}).ok());
}

}  // namespace
}  // namespace troupe::scheduler
