// Placement groups, one decision at a time: reserved in two phases, used, lost, removed,
// remembered.
//
// Names in brackets are the cases of Ray's cluster_mode_test.cc that a test covers, too.

#include "desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;
using State = wire::PlacementGroupState;
using Strategy = wire::PlacementStrategy;

namespace {

const GroupId kGroup{5, 5};
const GroupId kOther{6, 6};

wire::ActorSpec in_group(ActorId id, GroupId group, std::int32_t index = -1, std::int64_t cpus = 1,
                         std::int32_t restarts = 0) {
  wire::ActorSpec spec = Desk::spec(id, cpus, restarts);
  spec.placement_group = group;
  spec.bundle_index = index;
  return spec;
}

wire::RunningActor running(wire::ActorSpec spec, std::uint64_t generation, std::int32_t bundle) {
  wire::RunningActor entry;
  entry.spec = std::move(spec);
  entry.spec.bundle_index = bundle;
  entry.generation = generation;
  entry.ready = true;
  return entry;
}

// Two nodes of 4 CPUs, a group with a bundle of 2 on each.
struct Spread : Desk {
  Spread() {
    node(kNodeOne, kIdOne, "one", cpus(4));
    node(kNodeTwo, kIdTwo, "two", cpus(4));
    create(group(kGroup, {2, 2}, Strategy::kStrictSpread));
    agree({kNodeOne, kNodeTwo});
    REQUIRE(group_info(kGroup).state == State::kCreated);
  }
  // The node and the peer where bundle 0 is, and the other ones.
  NodeId home() { return group_info(kGroup).bundles[0].node_id; }
  NodeId away() { return group_info(kGroup).bundles[1].node_id; }
  PeerId peer_of(NodeId id) { return head.nodes().at(id).peer; }
};

}  // namespace

TEST_CASE("a group is reserved in two phases [CreateAndRemovePlacementGroup]") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(2));
  desk.node(kNodeTwo, kIdTwo, "two", Desk::cpus(2));
  desk.create(Desk::group(kGroup, {2, 2}, Strategy::kSpread));
  CHECK(desk.answer().ok());
  const auto one = desk.sent<wire::PrepareBundles>(kNodeOne);
  const auto two = desk.sent<wire::PrepareBundles>(kNodeTwo);
  REQUIRE(one.size() == 1);
  REQUIRE(two.size() == 1);
  CHECK(one[0].reservation.resources == Desk::cpus(2));
  CHECK(desk.group_info(kGroup).state == State::kPreparing);
  // The room is taken from the first phase on.
  CHECK(desk.free_cpus(kIdOne) == 0);
  desk.say(kNodeOne, wire::BundlesPrepared{kGroup, 1, {}});
  CHECK(desk.group_info(kGroup).state == State::kPreparing);
  CHECK(desk.sent<wire::CommitBundles>(kNodeOne).empty());
  // A stale answer, and one of a node that was not asked, change nothing.
  desk.say(kNodeOne, wire::BundlesPrepared{kGroup, 1, {}});
  desk.say(kNodeTwo, wire::BundlesPrepared{kGroup, 7, {}});
  CHECK(desk.group_info(kGroup).state == State::kPreparing);
  desk.say(kNodeTwo, wire::BundlesPrepared{kGroup, 1, {}});
  CHECK(desk.sent<wire::CommitBundles>(kNodeOne).size() == 1);
  CHECK(desk.sent<wire::CommitBundles>(kNodeTwo).size() == 1);
  CHECK(desk.group_info(kGroup).state == State::kCreated);

  desk.remove(kGroup);
  CHECK(desk.answer().ok());
  CHECK(desk.sent<wire::ReleaseBundles>(kNodeOne).size() == 1);
  CHECK(desk.sent<wire::ReleaseBundles>(kNodeTwo).size() == 1);
  CHECK(desk.group_info(kGroup).state == State::kRemoved);
  CHECK(desk.free_cpus(kIdOne) == 2);
  desk.remove(kGroup);  // twice is as once
  CHECK(desk.answer().ok());
  CHECK(desk.sent<wire::ReleaseBundles>(kNodeOne).empty());
  desk.remove(kOther);
  CHECK(desk.answer().code() == Code::kNotFound);
}

TEST_CASE("a node that refuses undoes the attempt on all nodes; another one follows") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(2));
  desk.node(kNodeTwo, kIdTwo, "two", Desk::cpus(2));
  desk.create(Desk::group(kGroup, {2, 2}, Strategy::kSpread));
  desk.say(kNodeOne, wire::BundlesPrepared{kGroup, 1, {}});
  desk.say(kNodeTwo, wire::BundlesPrepared{kGroup, 1, Status(Code::kResourceExhausted, "full")});
  CHECK(desk.sent<wire::ReleaseBundles>(kNodeOne).size() == 1);
  CHECK(desk.sent<wire::ReleaseBundles>(kNodeTwo).size() == 1);
  CHECK(desk.group_info(kGroup).state == State::kPending);
  CHECK(desk.free_cpus(kIdOne) == 2);
  CHECK(desk.seen_group(kGroup).why.find("node two could not hold it") != std::string::npos);
  desk.pass(milliseconds(1'100), {{kNodeOne, kIdOne}, {kNodeTwo, kIdTwo}});
  CHECK(desk.group_info(kGroup).state == State::kPreparing);
  CHECK(desk.group_info(kGroup).generation == 2);
  desk.agree({kNodeOne, kNodeTwo});
  CHECK(desk.group_info(kGroup).state == State::kCreated);
}

TEST_CASE("a node that does not answer undoes the attempt, too") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(2));
  desk.create(Desk::group(kGroup, {2}));
  SUBCASE("in time") {
    desk.pass(milliseconds(5'100), {{kNodeOne, kIdOne}});
    CHECK(desk.sent<wire::ReleaseBundles>(kNodeOne).size() == 1);
    CHECK(desk.group_info(kGroup).state == State::kPending);
    CHECK(desk.seen_group(kGroup).why.find("no answer from one") != std::string::npos);
  }
  SUBCASE("because its connection closes") {
    desk.lose(kNodeOne);
    CHECK(desk.group_info(kGroup).state == State::kPending);
    // Whatever it agreed to, it holds nothing when it comes back.
    desk.node(21, kIdOne, "one", Desk::cpus(2));
    CHECK(desk.sent<wire::RegisterNodeReply>(21).at(0).reservations.empty());
    desk.agree({21});
    CHECK(desk.group_info(kGroup).state == State::kCreated);
  }
}

TEST_CASE(
    "what exceeds the cluster waits and says why [CreatePlacementGroupExceedsClusterResource]") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(2));
  desk.create(Desk::group(kGroup, {10'000}));
  CHECK(desk.answer().ok());
  CHECK(desk.group_info(kGroup).state == State::kPending);
  const std::string why = desk.seen_group(kGroup).why;
  CHECK(why.find("needs CPU 10000") != std::string::npos);
  CHECK(why.find("one has CPU 2 of 2 free") != std::string::npos);
  CHECK(why.find("could not hold it even if they were idle") != std::string::npos);
  desk.node(kNodeTwo, kIdTwo, "large", Desk::cpus(10'000));
  desk.agree({kNodeTwo});
  CHECK(desk.group_info(kGroup).state == State::kCreated);
}

TEST_CASE("groups that make no sense are refused by name") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(8));
  desk.create(Desk::group(kGroup, {}));
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  desk.create(Desk::group(kGroup, {1, 0}));
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  CHECK(desk.answer().message().find("bundle 1") != std::string::npos);
  desk.create(Desk::group(kGroup, {-1}));
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  desk.create(Desk::group({}, {1}));
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  desk.create(Desk::group(kGroup, std::vector<std::int64_t>(1'001, 1)));
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  CHECK(desk.head.groups().empty());
}

TEST_CASE("a group's name is unique until it is removed [CreateAndRemovePlacementGroup]") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(8));
  auto named = Desk::group(kGroup, {1});
  named.name = "train";
  desk.create(named);
  CHECK(desk.answer().ok());
  desk.create(named);  // the same request again
  CHECK(desk.answer().ok());
  auto second = Desk::group(kOther, {1});
  second.name = "train";
  desk.create(second);
  CHECK(desk.answer().code() == Code::kAlreadyExists);
  desk.say(kDriver, wire::WatchPlacementGroup{4, {}, "train", false});
  REQUIRE(desk.sent<wire::PlacementGroupUpdate>(kDriver).size() == 1);
  CHECK(desk.sent<wire::PlacementGroupUpdate>(kDriver)[0].group.group_id == kGroup);
  desk.say(kDriver, wire::WatchPlacementGroup{4, {}, "absent", false});
  CHECK(desk.answer().code() == Code::kNotFound);
  desk.remove(kGroup);
  desk.say(kDriver, wire::WatchPlacementGroup{4, {}, "train", false});
  CHECK(desk.answer().code() == Code::kNotFound);
  desk.create(second);
  CHECK(desk.answer().ok());
}

TEST_CASE("actors run in bundles and take their resources there [CreateActorWithPlacementGroup]") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(4));
  desk.create(Desk::group(kGroup, {2, 1}));
  // The group is not reserved yet: its actors wait for it.
  desk.create({in_group(kActor, kGroup, 1)});
  CHECK(desk.info().state == wire::ActorState::kPending);
  CHECK(desk.seen(kActor).pending_why.find("which is preparing") != std::string::npos);
  desk.create(Desk::group(kOther, {1}));  // so that commands hold what follows only
  desk.say(kNodeOne, wire::BundlesPrepared{kGroup, 1, {}});
  const auto starts = desk.sent<wire::StartActor>(kNodeOne);
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].spec.bundle_index == 1);
  CHECK(desk.info().bundle_index == 1);
  CHECK(desk.free_cpus(kIdOne) == 0);  // two groups hold everything
  CHECK(desk.seen_group(kGroup).bundles[1].available.at("CPU") == 0);

  SUBCASE("an exceeding one is refused, in words") {
    desk.create({in_group({8, 8}, kGroup, 1, 2)});
    CHECK(desk.answer().code() == Code::kResourceExhausted);
    CHECK(desk.answer().message().find("bundle 1 has CPU 1") != std::string::npos);
    desk.create({in_group({8, 8}, kGroup, -1, 3)});
    CHECK(desk.answer().code() == Code::kResourceExhausted);
    desk.create({in_group({8, 8}, kGroup, 2)});
    CHECK(desk.answer().code() == Code::kInvalidArgument);
    desk.create({in_group({8, 8}, GroupId{1, 9})});
    CHECK(desk.answer().code() == Code::kNotFound);
    desk.create({in_group({8, 8}, {}, 0)});
    CHECK(desk.answer().code() == Code::kInvalidArgument);
  }
  SUBCASE("one that asks for any bundle takes what is free, then waits and says for what") {
    desk.create({in_group({8, 1}, kGroup), in_group({8, 2}, kGroup), in_group({8, 3}, kGroup)});
    CHECK(desk.info({8, 1}).bundle_index == 0);
    CHECK(desk.info({8, 2}).bundle_index == 0);
    CHECK(desk.info({8, 3}).state == wire::ActorState::kPending);
    const std::string why = desk.seen(ActorId{8, 3}).pending_why;
    CHECK(why.find("bundle 0 on one has CPU 0 of 2 free") != std::string::npos);
    CHECK(why.find("bundle 1 on one has CPU 0 of 1 free") != std::string::npos);
    desk.create({in_group({8, 4}, kGroup)}, false, true);
    CHECK(desk.answer().code() == Code::kResourceExhausted);
    desk.killed(kNodeOne, kActor, 1);
    CHECK(desk.info({8, 3}).state == wire::ActorState::kStarting);
    CHECK(desk.info({8, 3}).bundle_index == 1);
  }
  SUBCASE("a restarted one keeps its bundle's place") {
    desk.create({in_group({8, 1}, kGroup, 0, 2, 5)});
    desk.create({in_group({8, 2}, kGroup, 0, 1)});
    desk.killed(kNodeOne, {8, 1}, 1);
    CHECK(desk.info({8, 2}).state == wire::ActorState::kPending);
    desk.pass(milliseconds(10), {{kNodeOne, kIdOne}});
    CHECK(desk.info({8, 1}).state == wire::ActorState::kStarting);
    CHECK(desk.info({8, 1}).generation == 2);
  }
}

TEST_CASE("a gang in a group is placed whole or not at all") {
  Spread desk;
  desk.create({in_group({1, 1}, kGroup, 0, 2), in_group({1, 2}, kGroup, 1, 2)}, true);
  CHECK(desk.info({1, 1}).node_id == desk.home());
  CHECK(desk.info({1, 2}).node_id == desk.away());
  desk.create({in_group({2, 1}, kGroup, 0, 1), Desk::spec({2, 2}, 1)}, true);
  CHECK(desk.info({2, 1}).state == wire::ActorState::kPending);
  CHECK(desk.info({2, 2}).state == wire::ActorState::kPending);  // though there is room for it
  desk.killed(desk.peer_of(desk.home()), {1, 1}, 1);
  CHECK(desk.info({2, 1}).state == wire::ActorState::kStarting);
  CHECK(desk.info({2, 2}).state == wire::ActorState::kStarting);
}

TEST_CASE("a removed group's actors end, and their room is free when their processes are gone") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(2));
  desk.create(Desk::group(kGroup, {2}));
  desk.agree({kNodeOne});
  desk.create({in_group(kActor, kGroup, 0, 1, 5)});
  desk.ready(kNodeOne, kActor, 1);
  desk.create({in_group({8, 8}, kGroup, 0, 2)});  // waits for the first
  desk.create({Desk::spec({9, 1}, 1), Desk::spec({9, 2}, 1)});
  CHECK(desk.info({9, 1}).state == wire::ActorState::kPending);
  desk.remove(kGroup);
  REQUIRE(desk.sent<wire::StopActor>(kNodeOne).size() == 1);
  CHECK(desk.info({8, 8}).state == wire::ActorState::kDead);
  CHECK(desk.info({8, 8}).death.message().find("placement group was removed") != std::string::npos);
  // What nobody used is free at once; what the actor holds is not.
  CHECK(desk.info({9, 1}).state == wire::ActorState::kStarting);
  CHECK(desk.info({9, 2}).state == wire::ActorState::kPending);
  desk.killed(kNodeOne, kActor, 1);
  CHECK(desk.info().state == wire::ActorState::kDead);  // it does not restart
  CHECK(desk.info({9, 2}).state == wire::ActorState::kStarting);
  desk.create({in_group({8, 9}, kGroup)});
  CHECK(desk.answer().code() == Code::kFailedPrecondition);
}

TEST_CASE("groups end with their owner or job, unless detached") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(4));
  auto detached = Desk::group(kOther, {1});
  detached.detached = true;
  desk.create(Desk::group(kGroup, {1}));
  desk.agree({kNodeOne});
  desk.create(detached);
  desk.agree({kNodeOne});
  SUBCASE("the owner goes") {
    desk.lose(kDriver);
    desk.pass(milliseconds(900), {{kNodeOne, kIdOne}});
    CHECK(desk.group_info(kGroup).state == State::kCreated);
    desk.pass(milliseconds(200), {{kNodeOne, kIdOne}});
  }
  SUBCASE("the job ends") { desk.say(kDriver, wire::EndJob{5, JobId{}, "done"}); }
  CHECK(desk.group_info(kGroup).state == State::kRemoved);
  CHECK(desk.group_info(kOther).state == State::kCreated);
  CHECK(desk.free_cpus(kIdOne) == 3);
}

TEST_CASE("a group that loses a node is absent as a whole, and reserved again") {
  Spread desk;
  const NodeId home = desk.home();
  const NodeId away = desk.away();
  const PeerId home_peer = desk.peer_of(home);
  const PeerId away_peer = desk.peer_of(away);
  desk.create({in_group({1, 1}, kGroup, 0, 1, 3), in_group({1, 2}, kGroup, 1, 1, 3)});
  desk.ready(home_peer, {1, 1}, 1);
  desk.ready(away_peer, {1, 2}, 1);
  desk.say(home_peer, [&] {
    wire::NodeUpdate farewell;
    farewell.node.node_id = home;
    farewell.node.state = wire::NodeState::kDead;
    return farewell;
  }());
  CHECK(desk.group_info(kGroup).state == State::kRescheduling);
  CHECK(desk.sent<wire::ReleaseBundles>(away_peer).size() == 1);
  CHECK(desk.seen_group(kGroup).why.find("it was lost whole with node") != std::string::npos);
  CHECK(desk.free_cpus(away) == 3);  // its actor there runs on
  CHECK(desk.info({1, 2}).state == wire::ActorState::kAlive);
  CHECK(desk.info({1, 1}).state == wire::ActorState::kRestarting);

  SUBCASE("where the others were: what runs there stays") {
    desk.node(kNodeThree, kIdThree, "three", Desk::cpus(2));
    CHECK(desk.group_info(kGroup).state == State::kPreparing);
    CHECK(desk.group_info(kGroup).bundles[1].node_id == away);
    desk.agree({kNodeThree, away_peer});
    CHECK(desk.group_info(kGroup).state == State::kCreated);
    CHECK(desk.free_cpus(away) == 2);
    CHECK(desk.sent<wire::StopActor>(away_peer).empty());
    desk.pass(milliseconds(20), {{kNodeThree, kIdThree}, {away_peer, away}});
    CHECK(desk.info({1, 1}).node_id == kIdThree);
    CHECK(desk.info({1, 2}).generation == 1);
  }
  SUBCASE("elsewhere, where others took the room: what runs there follows its bundle") {
    desk.create({Desk::spec({9, 9}, 3)});
    CHECK(desk.info({9, 9}).node_id == away);
    desk.node(kNodeThree, kIdThree, "three", Desk::cpus(2));
    CHECK(desk.group_info(kGroup).state == State::kRescheduling);
    desk.node(14, {4, 4}, "four", Desk::cpus(2));
    CHECK(desk.group_info(kGroup).state == State::kPreparing);
    desk.agree({kNodeThree, 14});
    REQUIRE(desk.sent<wire::StopActor>(away_peer).size() == 1);
    CHECK(desk.sent<wire::StopActor>(away_peer)[0].comes_back);
    desk.killed(away_peer, {1, 2}, 1);
    desk.pass(milliseconds(20), {{kNodeThree, kIdThree}, {14, {4, 4}}, {away_peer, away}});
    CHECK(desk.info({1, 2}).state == wire::ActorState::kStarting);
    CHECK(desk.info({1, 2}).node_id == desk.group_info(kGroup).bundles[1].node_id);
  }
}

TEST_CASE("a group whose node comes back in time stays as it is") {
  Spread desk;
  const NodeId home = desk.home();
  desk.create({in_group({1, 1}, kGroup, 0, 1, 3)});
  desk.ready(desk.peer_of(home), {1, 1}, 1);
  desk.lose(desk.peer_of(home));
  CHECK(desk.group_info(kGroup).state == State::kCreated);
  SUBCASE("with its actor inside") {
    desk.node(21, home, "one", Desk::cpus(4), {},
              {running(in_group({1, 1}, kGroup, 0, 1, 3), 1, 0)});
    const auto reply = desk.sent<wire::RegisterNodeReply>(21).at(0);
    CHECK(reply.stop.empty());
    REQUIRE(reply.reservations.size() == 1);
    CHECK(reply.reservations[0].group_id == kGroup);
    CHECK(reply.reservations[0].resources == Desk::cpus(2));
    CHECK(desk.group_info(kGroup).state == State::kCreated);
    CHECK(desk.seen_group(kGroup).bundles[0].available.at("CPU") == wire::kResourceUnit);
  }
  SUBCASE("smaller than it was: then the group is lost") {
    desk.node(21, home, "one", Desk::cpus(1), {},
              {running(in_group({1, 1}, kGroup, 0, 1, 3), 1, 0)});
    CHECK(desk.group_info(kGroup).state == State::kRescheduling);
    CHECK(desk.free_cpus(home) == 0);
  }
  SUBCASE("with more inside than the bundle holds: the rest is outside") {
    std::vector<wire::RunningActor> many;
    for (std::uint64_t i = 1; i <= 4; ++i) {
      many.push_back(running(in_group({1, i}, kGroup, 0, 1, 3), 1, 0));
    }
    desk.node(21, home, "one", Desk::cpus(4), {}, many);
    CHECK(desk.sent<wire::RegisterNodeReply>(21).at(0).stop.size() == 3);
    CHECK(desk.group_info(kGroup).state == State::kCreated);
    CHECK(desk.free_cpus(home) == 0);
  }
}

TEST_CASE("an actor that a lost node still runs is ended when its bundle is elsewhere by now") {
  Spread desk;
  const NodeId home = desk.home();
  const PeerId home_peer = desk.peer_of(home);
  const NodeId away = desk.away();
  const PeerId away_peer = desk.peer_of(away);
  desk.create({in_group({1, 1}, kGroup, 0, 1, 3)});
  desk.ready(home_peer, {1, 1}, 1);
  desk.node(kNodeThree, kIdThree, "three", Desk::cpus(2));
  desk.pass(milliseconds(3'200), {{away_peer, away}, {kNodeThree, kIdThree}});
  REQUIRE(desk.head.nodes().at(home).info.state == wire::NodeState::kDead);
  desk.agree({away_peer, kNodeThree});
  REQUIRE(desk.group_info(kGroup).state == State::kCreated);
  desk.node(21, home, "one", Desk::cpus(4), {}, {running(in_group({1, 1}, kGroup, 0, 1, 3), 1, 0)});
  const auto reply = desk.sent<wire::RegisterNodeReply>(21).at(0);
  REQUIRE(reply.stop.size() == 1);
  CHECK(reply.reservations.empty());
  CHECK(desk.free_cpus(home) == 3);  // until it is gone
  desk.killed(21, {1, 1}, 1);
  CHECK(desk.free_cpus(home) == 4);
}

TEST_CASE("groups survive a restart of the head") {
  Spread desk;
  const NodeId home = desk.home();
  desk.create({in_group({1, 1}, kGroup, 0, 1, 3)});
  desk.ready(desk.peer_of(home), {1, 1}, 1);
  desk.create(Desk::group(kOther, {3}));  // waits
  auto removed = Desk::group({7, 7}, {1});
  removed.name = "gone";
  desk.create(removed);
  desk.remove({7, 7});
  SUBCASE("whole ones") {
    desk.restart();
    CHECK(desk.group_info(kGroup).state == State::kCreated);
    CHECK(desk.group_info(kOther).state == State::kPending);
    CHECK(desk.group_info(GroupId{7, 7}).state == State::kRemoved);
    desk.node(21, home, "one", Desk::cpus(4), {},
              {running(in_group({1, 1}, kGroup, 0, 1, 3), 1, 0)});
    CHECK(desk.sent<wire::RegisterNodeReply>(21).at(0).reservations.size() == 1);
    CHECK(desk.info({1, 1}).state == wire::ActorState::kAlive);
    CHECK(desk.free_cpus(home) == 2);
    wire::ClientHello hello;
    hello.client_id = ClientId{9, 9};
    hello.reconnect = true;
    desk.say(2, hello);
    // The other node never comes back.
    desk.pass(milliseconds(10'100), {{21, home}});
    CHECK(desk.group_info(kGroup).state == State::kRescheduling);
    CHECK(desk.info({1, 1}).state == wire::ActorState::kAlive);
  }
  SUBCASE("one that was being reserved waits again") {
    desk.node(kNodeThree, kIdThree, "three", Desk::cpus(3));
    CHECK(desk.group_info(kOther).state == State::kPreparing);
    desk.restart();
    CHECK(desk.group_info(kOther).state == State::kPending);
    desk.node(21, kIdThree, "three", Desk::cpus(3));
    CHECK(desk.sent<wire::RegisterNodeReply>(21).at(0).reservations.empty());
    CHECK(desk.group_info(kOther).generation == 2);
    desk.agree({21});
    CHECK(desk.group_info(kOther).state == State::kCreated);
  }
}

TEST_CASE("a journal that ends before the first state of a group is one without that group") {
  HeadState head;
  REQUIRE(head.replay(GroupCreated{Desk::group(kOther, {3})}).ok());
  static_cast<void>(head.resume(Moment{}));
  CHECK(head.groups().empty());
  CHECK_FALSE(head.broken_invariant());
}

TEST_CASE("labels of nodes choose where bundles and actors go") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, "one", Desk::cpus(4), {{"zone", "a"}});
  desk.node(kNodeTwo, kIdTwo, "two", Desk::cpus(4), {{"zone", "b"}, {"disk", "ssd"}});
  auto picky = Desk::group(kGroup, {1, 1});
  picky.bundles[0].label_selector = {{"zone", false, {"b", "c"}}};
  picky.bundles[1].label_selector = {{"disk", true, {}}};
  desk.create(picky);
  CHECK(desk.group_info(kGroup).bundles[0].node_id == kIdTwo);
  CHECK(desk.group_info(kGroup).bundles[1].node_id == kIdOne);
  desk.agree({kNodeOne, kNodeTwo});
  auto hard = Desk::spec({1, 1});
  hard.label_selector = {{"zone", false, {"b"}}};
  auto soft = Desk::spec({1, 2});
  soft.label_preference = {{"zone", false, {"a"}}};
  auto nowhere = Desk::spec({1, 3});
  nowhere.label_selector = {{"zone", false, {"z"}}};
  auto kept_off = Desk::spec({1, 4});
  kept_off.node_affinity = kIdTwo;
  kept_off.node_affinity_soft = true;
  desk.create({hard, soft, kept_off});
  CHECK(desk.answer().ok());
  CHECK(desk.info({1, 1}).node_id == kIdTwo);
  CHECK(desk.info({1, 2}).node_id == kIdOne);
  CHECK(desk.info({1, 4}).node_id == kIdTwo);
  desk.create({nowhere});
  CHECK(desk.answer().code() == Code::kResourceExhausted);
  CHECK(desk.answer().message().find("one does not do for zone=z: it has zone=a") !=
        std::string::npos);
  // A preferred node that is full: another one does.
  desk.create({Desk::spec({2, 1}, 1)});
  auto again = kept_off;
  again.actor_id = {2, 2};
  again.resources = Desk::cpus(2);
  desk.create({again});
  CHECK(desk.info({2, 2}).state == wire::ActorState::kStarting);
}

TEST_CASE("the oldest removed groups are forgotten") {
  HeadConfig config;
  config.removed_groups_max = 2;
  Desk desk;
  desk.head = HeadState(config);
  desk.journal.clear();
  wire::ClientHello hello;
  hello.client_id = ClientId{9, 9};
  desk.say(kDriver, hello);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    desk.create(Desk::group({i, i}, {1}));
    desk.remove({i, i});
  }
  CHECK(desk.head.groups().size() == 2);
  CHECK(desk.head.groups().contains({4, 4}));
}
