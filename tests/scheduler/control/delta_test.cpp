#include "scheduler/control/delta.h"

#include <doctest/doctest.h>

#include "runtime/base/hash.h"
#include "runtime/base/record.h"
#include "scheduler/control/delta_batch.h"
#include "scheduler/control/journal_bytes.h"

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

// A journal of another build holds them.
TEST_CASE("every delta has the bytes that it always had") {
  constexpr std::uint64_t kHashes[] = {0x20329c7565e2d012, 0x9c0e4ab77fa4ee0e, 0x3577ae70077d00dd,
                                       0x54947b6bb3557322, 0xcd2fac1a656f2905, 0x8528c79d73dd7c4a,
                                       0x7a8c1e8f40e5a147, 0xec42f0c2e88cf8bc, 0xc9e450f0bc3d5378,
                                       0x9da01e643b1dce32, 0x818212960ba5dfbb, 0xd2fc8912169d3edd,
                                       0x08afed894502f580, 0x632c7461b881d0f2, 0x25fe36d76feeb380};
  const std::vector<Delta> deltas = examples();
  REQUIRE(deltas.size() == std::size(kHashes));
  for (std::size_t i = 0; i < deltas.size(); ++i) {
    CAPTURE(deltas[i].index());
    CHECK(xxh3_64(encode_delta(deltas[i])) == kHashes[i]);
  }
}

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

TEST_CASE("what a delta takes in the journal is never more than was counted, nor much less") {
  const auto check = [](const Delta& delta) {
    CAPTURE(delta.index());
    const std::size_t bytes = encode_deltas(std::span(&delta, 1)).size() + kRecordHeaderBytes;
    CHECK(bytes <= journal_bytes(delta));
    CHECK(journal_bytes(delta) <= 5 * bytes + 400);
  };
  for (const Delta& delta : examples()) check(delta);
  // Of everything that may be many, or long.
  for (const std::size_t count : {1u, 7u, 50u, 400u}) {
    CAPTURE(count);
    wire::Resources resources;
    std::map<std::string, std::string> pairs;
    wire::LabelSelector selector;
    std::vector<std::string> texts;
    std::vector<std::int64_t> times;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string text = std::to_string(i);
      resources[text] = 1;
      pairs[text] = text;
      selector.push_back({text, false, {text, "b"}});
      texts.push_back(text);
      times.push_back(1);
    }
    const std::string text(count, 't');
    wire::ActorSpec spec;
    spec.type = spec.name = spec.run = spec.log_path = spec.namespace_name = text;
    spec.constructor_arguments.assign(count * 1'000, std::byte{1});
    spec.resources = resources;
    spec.environment = pairs;
    spec.label_selector = spec.label_preference = selector;
    spec.image.path = text;
    spec.program = {texts, text};
    spec.node_affinity = NodeId{1, 1};
    check(ActorCreated{spec, 1});
    wire::ActorInfo info;
    info.type = info.name = info.namespace_name = info.owner_name = info.pending_why = text;
    info.endpoint = {text, 1, text};
    info.resources = resources;
    info.death = Status(Code::kActorDied, text).with("actor", text).with("node", text);
    check(ActorChanged{info, 1, 1, true, true, true, times, true, SupervisorId{1, 1}});
    wire::NodeInfo node;
    node.name = text;
    node.endpoint = {text, 1, text};
    node.total = node.available = resources;
    node.labels = pairs;
    check(NodeKnown{node});
    wire::PlacementGroupSpec group;
    wire::PlacementGroupInfo placed;
    group.name = placed.name = placed.why = text;
    for (std::size_t i = 0; i < count; ++i) {
      group.bundles.push_back({{{"CPU", 1}}, {}});
      placed.bundles.push_back({{{"CPU", 1}}, {{"CPU", 1}}, {}, NodeId{1, 1}});
    }
    group.bundles[0] = {resources, selector};
    check(GroupCreated{group});
    check(GroupChanged{placed, 1, true});
    wire::JobInfo job;
    job.name = job.command = job.why = text;
    job.exit = wire::ExitStatus{.exit_code = 3};
    check(JobKnown{job});
    wire::SupervisorSpec supervisor;
    wire::SupervisorInfo supervised;
    supervisor.name = supervised.name = supervised.owner_name = text;
    supervised.why = Status(Code::kAborted, text);
    check(SupervisorCreated{supervisor});
    check(SupervisorChanged{supervised, times});
    wire::EventRecord event;
    event.kind = event.text = text;
    check(EventLogged{event});
  }
}
