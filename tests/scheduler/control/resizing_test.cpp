// Nodes whose devices fail, and come back.

#include "desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;

namespace {

const ActorId kFirst{1, 1};
const ActorId kSecond{2, 2};
const ActorId kThird{3, 3};

struct Devices : Desk {
  Devices() { node(kNodeOne, kIdOne, "one", devices(2)); }
  static wire::Resources devices(std::int64_t count) {
    return {{"CPU", 8 * wire::kResourceUnit}, {"GPU", count * wire::kResourceUnit}};
  }
  static wire::ActorSpec with_gpu(ActorId id, std::int32_t restarts = 3) {
    wire::ActorSpec spec = Desk::spec(id, 1, restarts);
    spec.resources["GPU"] = wire::kResourceUnit;
    return spec;
  }
  void resized(std::int64_t count, PeerId peer = kNodeOne, NodeId id = kIdOne) {
    wire::NodeUpdate update;
    update.node.node_id = id;
    update.node.total = devices(count);
    say(peer, std::move(update));
  }
  std::int64_t gpus(const wire::Resources& amounts) const {
    return amount_of(amounts, "GPU") / wire::kResourceUnit;
  }
  std::int64_t total() const { return gpus(head.nodes().at(kIdOne).info.total); }
  std::int64_t free() const { return gpus(head.nodes().at(kIdOne).info.available); }
};

}  // namespace

TEST_CASE("what a node loses goes when it is free, and nobody is placed on it") {
  Devices desk;
  desk.create({Devices::with_gpu(kFirst), Devices::with_gpu(kSecond)});
  desk.ready(kNodeOne, kFirst, 1);
  desk.ready(kNodeOne, kSecond, 1);
  desk.resized(1);
  CHECK(desk.total() == 2);  // both are held
  desk.killed(kNodeOne, kFirst, 1);
  CHECK(desk.total() == 1);
  CHECK(desk.free() == 0);
  CHECK(desk.info(kFirst).state == wire::ActorState::kRestarting);
  // Its place is not kept, and there is none: it waits, and says for what.
  desk.pass(milliseconds(500), {{kNodeOne, kIdOne}});
  CHECK(desk.sent<wire::StartActor>(kNodeOne).empty());
  CHECK(desk.seen(kFirst).pending_why.find("GPU") != std::string::npos);
  desk.node(kNodeTwo, kIdTwo, "two", Devices::devices(1));
  desk.pass(milliseconds(100), {{kNodeOne, kIdOne}, {kNodeTwo, kIdTwo}});
  CHECK(desk.info(kFirst).node_id == kIdTwo);
  // A head that comes back knows what is left.
  desk.restart();
  CHECK(desk.total() == 1);
}

TEST_CASE("what is free is lost at once, and comes back") {
  Devices desk;
  desk.resized(1);
  CHECK(desk.total() == 1);
  desk.create({Devices::with_gpu(kFirst)});
  desk.create({Devices::with_gpu(kSecond)});
  CHECK(desk.info(kFirst).state == wire::ActorState::kStarting);
  CHECK(desk.info(kSecond).state == wire::ActorState::kPending);
  desk.resized(2);
  CHECK(desk.total() == 2);
  CHECK(desk.info(kSecond).state == wire::ActorState::kStarting);
  // Said again: nothing changes.
  desk.resized(2);
  CHECK(desk.total() == 2);
  CHECK(desk.free() == 0);
  // What nobody has any more is refused, not waited for.
  desk.node(kNodeTwo, kIdTwo, "two", Devices::devices(4));
  desk.resized(0, kNodeTwo, kIdTwo);
  CHECK(desk.gpus(desk.head.nodes().at(kIdTwo).info.total) == 0);
  wire::ActorSpec large = Devices::with_gpu(kThird);
  large.resources["GPU"] = 3 * wire::kResourceUnit;
  desk.create({large});
  CHECK(desk.answer().code() == Code::kResourceExhausted);
}

TEST_CASE("a place that is kept for a next process is lost with the device") {
  Devices desk;
  wire::ActorSpec slow = Devices::with_gpu(kFirst);
  slow.restart.backoff_initial_ms = 1000;
  desk.create({slow, Devices::with_gpu(kSecond)});
  desk.ready(kNodeOne, kFirst, 1);
  desk.ready(kNodeOne, kSecond, 1);
  desk.killed(kNodeOne, kFirst, 1);
  CHECK(desk.free() == 0);  // its place
  desk.resized(1);
  CHECK(desk.total() == 1);
  desk.create({Devices::with_gpu(kThird)});
  CHECK(desk.info(kThird).state == wire::ActorState::kPending);
  desk.resized(2);
  CHECK(desk.info(kThird).state == wire::ActorState::kStarting);
}

TEST_CASE("one that loses nothing which an actor needs keeps the actor's place") {
  Devices desk;
  wire::ActorSpec slow = Desk::spec(kFirst, 1, 3);
  slow.restart.backoff_initial_ms = 1000;
  desk.create({slow, Devices::with_gpu(kSecond)});
  desk.ready(kNodeOne, kFirst, 1);
  desk.ready(kNodeOne, kSecond, 1);
  desk.killed(kNodeOne, kFirst, 1);
  desk.resized(0);
  CHECK(desk.total() == 1);
  CHECK(desk.free_cpus(kIdOne) == 6);
}

TEST_CASE("a placement group that stood on what was lost is reserved elsewhere") {
  Devices desk;
  desk.node(kNodeTwo, kIdTwo, "two", Devices::devices(0));
  const GroupId group{5, 5};
  wire::PlacementGroupSpec wanted;
  wanted.group_id = group;
  wanted.bundles = {{{{"GPU", 2 * wire::kResourceUnit}}, {}}};
  desk.create(wanted);
  desk.agree({kNodeOne});
  wire::ActorSpec member = Devices::with_gpu(kFirst);
  member.placement_group = group;
  desk.create({member});
  desk.ready(kNodeOne, kFirst, 1);
  CHECK(desk.free() == 0);
  desk.resized(1);
  CHECK(desk.group_info(group).state == wire::PlacementGroupState::kRescheduling);
  CHECK(desk.total() == 1);
  CHECK(desk.seen_group(group).why.find("lost GPU 1") != std::string::npos);
  desk.resized(2, kNodeTwo, kIdTwo);
  CHECK(desk.group_info(group).state == wire::PlacementGroupState::kPreparing);
  CHECK(desk.group_info(group).bundles[0].node_id == kIdTwo);
}

TEST_CASE("a node that registers anew says what it has") {
  Devices desk;
  desk.create({Devices::with_gpu(kFirst), Devices::with_gpu(kSecond)});
  desk.ready(kNodeOne, kFirst, 1);
  desk.ready(kNodeOne, kSecond, 1);
  desk.resized(1);
  desk.lose(kNodeOne);
  desk.node(kNodeOne, kIdOne, "one", Devices::devices(2), {},
            {{Devices::with_gpu(kFirst), 1, 42, true}, {Devices::with_gpu(kSecond), 1, 42, true}});
  desk.killed(kNodeOne, kFirst, 1);
  CHECK(desk.total() == 2);
}
