#pragma once
// A head's state machine with a driver and nodes that the test speaks for, word by word. The
// invariants are checked after everything that is said.

#include <doctest/doctest.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler::tests {

using std::chrono::milliseconds;

inline constexpr PeerId kDriver = 1;
inline constexpr PeerId kNodeOne = 11;
inline constexpr PeerId kNodeTwo = 12;
inline constexpr PeerId kNodeThree = 13;
inline const NodeId kIdOne{1, 1};
inline const NodeId kIdTwo{2, 2};
inline const NodeId kIdThree{3, 3};
inline const ActorId kActor{7, 7};

struct Desk {
  HeadState head;
  Moment now;
  std::vector<Delta> journal;
  std::vector<Command> commands;

  Desk() {
    now.unix_us = 1'000'000'000;
    introduce_driver();
  }
  // Also to a head that has come back.
  void introduce_driver() {
    wire::ClientHello hello;
    hello.request_id = 1;
    hello.client_id = ClientId{9, 9};
    hello.name = "driver";
    say(kDriver, hello);
  }
  void take(Outcome outcome) {
    commands = std::move(outcome.commands);
    journal.insert(journal.end(), outcome.deltas.begin(), outcome.deltas.end());
    const auto broken = head.broken_invariant();
    REQUIRE_MESSAGE(!broken, broken.value_or(""));
  }
  void say(PeerId peer, wire::ControlMessage message) {
    take(head.apply(MessageArrived{peer, std::move(message)}, now));
  }
  void lose(PeerId peer) { take(head.apply(PeerClosed{peer}, now)); }
  // Time passes while `alive` nodes send heartbeats.
  void pass(milliseconds time, std::vector<std::pair<PeerId, NodeId>> alive = {}) {
    const TimePoint end = now.steady + time;
    while (now.steady < end) {
      now.steady += milliseconds(10);
      now.unix_us += 10'000;
      for (const auto& [peer, id] : alive)
        keep(head.apply(MessageArrived{peer, wire::Heartbeat{id, 1}}, now));
      keep(head.apply(Tick{}, now));
    }
  }
  void node(PeerId peer, NodeId id, std::int64_t cpus,
            std::vector<wire::RunningActor> running = {}) {
    wire::RegisterNode message;
    message.request_id = 2;
    message.node.node_id = id;
    message.node.name = "machine";
    message.node.total = {{"CPU", cpus * wire::kResourceUnit}};
    message.running = std::move(running);
    say(peer, std::move(message));
  }
  static wire::ActorSpec spec(ActorId id, std::int64_t cpus = 1, std::int32_t restarts = 0) {
    wire::ActorSpec spec;
    spec.actor_id = id;
    spec.type = "Counter";
    spec.resources = {{"CPU", cpus * wire::kResourceUnit}};
    spec.restart.max_restarts = restarts;
    return spec;
  }
  void create(std::vector<wire::ActorSpec> specs, bool gang = false, bool no_wait = false) {
    wire::CreateActors message;
    message.request_id = 3;
    message.specs = std::move(specs);
    message.gang = gang;
    message.no_wait = no_wait;
    say(kDriver, std::move(message));
  }
  void ready(PeerId peer, ActorId id, std::uint64_t generation) {
    say(peer, wire::ActorStarted{id, generation, 42});
    say(peer, wire::ActorReady{id, generation});
  }
  void killed(PeerId peer, ActorId id, std::uint64_t generation) {
    wire::ActorExited exited;
    exited.actor_id = id;
    exited.generation = generation;
    exited.exit.signal = 9;
    say(peer, std::move(exited));
  }
  const wire::ActorInfo& info(ActorId id = kActor) { return head.actors().at(id).info; }
  template <typename Message>
  std::vector<Message> sent(PeerId peer) const {
    std::vector<Message> found;
    for (const Command& command : commands) {
      const auto* send = get_if<SendMessage>(&command);
      if (send == nullptr || send->peer != peer) continue;
      if (const auto* message = get_if<Message>(&send->message)) found.push_back(*message);
    }
    return found;
  }
  // --- nodes that are more than CPUs, and placement groups ---
  void node(PeerId peer, NodeId id, const std::string& name, wire::Resources total,
            std::map<std::string, std::string> labels = {},
            std::vector<wire::RunningActor> running = {}) {
    wire::RegisterNode message;
    message.request_id = 2;
    message.node.node_id = id;
    message.node.name = name;
    message.node.total = std::move(total);
    message.node.labels = std::move(labels);
    message.running = std::move(running);
    say(peer, std::move(message));
  }
  static wire::Resources cpus(std::int64_t count) { return {{"CPU", count * wire::kResourceUnit}}; }
  static wire::PlacementGroupSpec group(
      GroupId id, std::vector<std::int64_t> bundle_cpus,
      wire::PlacementStrategy strategy = wire::PlacementStrategy::kPack) {
    wire::PlacementGroupSpec spec;
    spec.group_id = id;
    spec.strategy = strategy;
    for (std::int64_t count : bundle_cpus) spec.bundles.push_back({cpus(count), {}});
    return spec;
  }
  void create(wire::PlacementGroupSpec spec) {
    wire::CreatePlacementGroup message;
    message.request_id = 8;
    message.spec = std::move(spec);
    say(kDriver, std::move(message));
  }
  void remove(GroupId id) { say(kDriver, wire::RemovePlacementGroup{9, id, ""}); }
  // The nodes hold what they were just asked to hold. Collects what the head says to that.
  void agree(const std::vector<PeerId>& peers) {
    std::vector<std::pair<PeerId, wire::Reservation>> asked;
    for (PeerId peer : peers) {
      for (const auto& prepare : sent<wire::PrepareBundles>(peer)) {
        asked.emplace_back(peer, prepare.reservation);
      }
    }
    std::vector<Command> all;
    for (const auto& [peer, reservation] : asked) {
      say(peer, wire::BundlesPrepared{reservation.group_id, reservation.generation, {}});
      all.insert(all.end(), commands.begin(), commands.end());
    }
    commands = std::move(all);
  }
  const wire::PlacementGroupInfo& group_info(GroupId id) { return head.groups().at(id).info; }
  // As others see it.
  wire::PlacementGroupInfo seen_group(GroupId id) {
    say(kDriver, wire::WatchPlacementGroup{10, id, "", false});
    const auto updates = sent<wire::PlacementGroupUpdate>(kDriver);
    REQUIRE(updates.size() == 1);
    return updates[0].group;
  }
  wire::ActorInfo seen(ActorId id) {
    say(kDriver, wire::WatchActor{11, id, "", false});
    const auto updates = sent<wire::ActorUpdate>(kDriver);
    REQUIRE(updates.size() == 1);
    return updates[0].actor;
  }
  std::int64_t free_cpus(NodeId id) {
    return amount_of(head.nodes().at(id).info.available, "CPU") / wire::kResourceUnit;
  }
  // The head is killed, and comes back from its journal.
  void restart() {
    HeadState second;
    for (const Delta& delta : journal) REQUIRE(second.replay(delta).ok());
    CHECK(second.snapshot() == head.snapshot());
    head = std::move(second);
    take(head.resume(now));
  }
  Status answer() {
    const auto replies = sent<wire::Reply>(kDriver);
    REQUIRE(replies.size() == 1);
    return replies[0].status;
  }

 private:
  // Collects over several applies.
  void keep(Outcome outcome) {
    std::vector<Command> before = std::move(commands);
    take(std::move(outcome));
    before.insert(before.end(), commands.begin(), commands.end());
    commands = std::move(before);
  }
};

}  // namespace troupe::scheduler::tests
