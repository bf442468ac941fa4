#include "scheduler/control/delta.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::scheduler;

namespace {

std::vector<Delta> examples() {
  wire::NodeInfo node;
  node.node_id = NodeId{1, 2};
  node.name = "alpha";
  node.endpoint = {"10.0.0.2", 7000, "troupe-node-1"};
  node.total = {{"CPU", 20'000}};
  wire::ActorSpec spec;
  spec.actor_id = ActorId{3, 4};
  spec.type = "Counter";
  spec.constructor_arguments = {std::byte{1}, std::byte{2}};
  spec.restart.max_restarts = -1;
  wire::ActorInfo info;
  info.actor_id = spec.actor_id;
  info.type = spec.type;
  info.state = wire::ActorState::kRestarting;
  info.generation = 7;
  info.death = Status(Code::kActorDied, "killed");
  wire::EventRecord event;
  event.sequence = 9;
  event.kind = "actor_died";
  event.text = "it died";
  spec.label_selector = {{"zone", true, {"a", "b"}}};
  spec.placement_group = GroupId{5, 6};
  spec.priority = -3;
  wire::PlacementGroupSpec group;
  group.group_id = GroupId{5, 6};
  group.strategy = wire::PlacementStrategy::kStrictSpread;
  group.bundles = {{{{"CPU", 5'000}}, {}}, {{{"GPU", 10'000}}, {{"zone", false, {"a"}}}}};
  wire::PlacementGroupInfo placed;
  placed.group_id = group.group_id;
  placed.state = wire::PlacementGroupState::kCreated;
  placed.generation = 3;
  placed.bundles = {
      {group.bundles[0].resources, {}, {}, NodeId{1, 2}},
      {group.bundles[1].resources, {}, group.bundles[1].label_selector, NodeId{3, 4}}};
  wire::JobInfo job;
  job.job_id = JobId{7, 8};
  job.name = "nightly";
  job.state = wire::JobState::kFailed;
  job.exit = wire::ExitStatus{.exit_code = 3};
  spec.program = {{"./train.sh", "--all"}, "/work"};
  wire::SupervisorSpec supervisor;
  supervisor.supervisor_id = SupervisorId{7, 8};
  supervisor.strategy = wire::RestartStrategy::kRestForOne;
  supervisor.parent = SupervisorId{9, 9};
  wire::SupervisorInfo supervised;
  supervised.supervisor_id = supervisor.supervisor_id;
  supervised.state = wire::SupervisorState::kEnded;
  supervised.why = Status(Code::kAborted, "it gave up");
  return {SupervisorCreated{supervisor},
          SupervisorChanged{supervised, {4, 5}},
          SupervisorForgotten{supervisor.supervisor_id},
          GroupCreated{group},
          GroupChanged{placed, 12, true},
          GroupForgotten{group.group_id},
          NodeKnown{node},
          NodeForgotten{node.node_id},
          ActorCreated{spec, 5},
          ActorChanged{info, 7, 11, true, true, false, {1, 2, 3}},
          ActorChanged{info, 7, 11, true, true, false, {}, true, SupervisorId{7, 8}},
          ActorForgotten{spec.actor_id},
          EventLogged{event},
          JobKnown{job},
          JobForgotten{job.job_id}};
}

}  // namespace

TEST_CASE("every delta survives its encoding") {
  for (const Delta& delta : examples()) {
    CAPTURE(delta.index());
    const auto decoded = decode_delta(encode_delta(delta));
    REQUIRE(decoded.ok());
    CHECK(*decoded == delta);
  }
}

TEST_CASE("a cut record is an error wherever it is cut") {
  for (const Delta& delta : examples()) {
    CAPTURE(delta.index());
    const auto bytes = encode_delta(delta);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto decoded = decode_delta(std::span(bytes).first(size));
      REQUIRE_FALSE(decoded.ok());
    }
  }
}

TEST_CASE("records of later versions and kinds are refused by name") {
  auto bytes = encode_delta(NodeForgotten{NodeId{1, 2}});
  bytes[0] = std::byte{9};
  CHECK(decode_delta(bytes).status().code() == Code::kUnsupported);
  bytes[0] = std::byte{1};
  bytes[1] = std::byte{99};
  CHECK(decode_delta(bytes).status().code() == Code::kUnsupported);
}
