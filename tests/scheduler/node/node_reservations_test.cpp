// A node's side of reserving placement groups.

#include <doctest/doctest.h>

#include "tests/scheduler/node/node_driver.h"

namespace troupe::scheduler::tests {
namespace {

const GroupId kGroupOne{5, 1};
const GroupId kGroupTwo{5, 2};

wire::Resources node_cpus(std::int64_t count) { return {{"CPU", count * wire::kResourceUnit}}; }

// A node of 4 CPUs that has joined.
struct HoldingNode : NodeDriver {
  HoldingNode() {
    config.node.total = node_cpus(4);
    restart();
    join();
  }
  Status prepare(GroupId id, std::uint64_t generation, std::int64_t cpus) {
    apply(node_event::FromHead{wire::PrepareBundles{{id, generation, node_cpus(cpus)}}});
    const auto* answer = said<wire::BundlesPrepared>();
    REQUIRE(answer != nullptr);
    CHECK(answer->group_id == id);
    CHECK(answer->generation == generation);
    return answer->status;
  }
  void commit(GroupId id, std::uint64_t generation) {
    apply(node_event::FromHead{wire::CommitBundles{id, generation}});
  }
  void release(GroupId id, std::uint64_t generation) {
    apply(node_event::FromHead{wire::ReleaseBundles{id, generation}});
  }
  // Whether it was started.
  bool start(std::uint64_t n, std::int64_t cpus, GroupId group = {}) {
    auto message = start_message(n, 1);
    message.spec.resources = node_cpus(cpus);
    message.spec.placement_group = group;
    apply(node_event::FromHead{message});
    return did<node_command::SpawnHost>() != nullptr;
  }
};

TEST_CASE("a node agrees to no more than it has") {
  HoldingNode d;
  CHECK(d.prepare(kGroupOne, 1, 3).ok());
  const Status refused = d.prepare(kGroupTwo, 1, 2);
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK(refused.message().find("CPU 1 left") != std::string::npos);
  CHECK(d.prepare(kGroupTwo, 2, 1).ok());
  d.release(kGroupOne, 1);
  CHECK(d.prepare(kGroupOne, 2, 3).ok());
  // Said of an attempt before: nothing.
  d.release(kGroupOne, 1);
  CHECK(d.prepare(kGroupTwo, 3, 2).code() == Code::kResourceExhausted);
  // The same group again, larger.
  CHECK(d.prepare(kGroupTwo, 3, 1).ok());
}

TEST_CASE("what runs counts until its whole process group is gone") {
  HoldingNode d;
  REQUIRE(d.start(1, 2));
  const HostId host = d.spawned();
  CHECK(d.prepare(kGroupOne, 1, 3).code() == Code::kResourceExhausted);
  d.leader_ends(host);
  CHECK(d.prepare(kGroupOne, 1, 3).code() == Code::kResourceExhausted);
  d.group_goes(host);
  CHECK(d.prepare(kGroupOne, 1, 3).ok());
}

TEST_CASE("actors of a group start when it is committed, and are inside of it") {
  HoldingNode d;
  CHECK(d.prepare(kGroupOne, 1, 4).ok());
  CHECK_FALSE(d.start(1, 2, kGroupOne));
  REQUIRE(d.said<wire::ActorExited>());
  CHECK(d.said<wire::ActorExited>()->cause.code() == Code::kFailedPrecondition);
  d.commit(kGroupOne, 7);
  CHECK_FALSE(d.start(1, 2, kGroupOne));
  d.commit(kGroupOne, 1);
  REQUIRE(d.start(1, 2, kGroupOne));
  const HostId host = d.spawned();
  // Reserved anew around it.
  CHECK(d.prepare(kGroupOne, 2, 4).ok());
  // Released while it runs: then it is outside.
  d.release(kGroupOne, 2);
  CHECK(d.prepare(kGroupTwo, 1, 3).code() == Code::kResourceExhausted);
  CHECK(d.prepare(kGroupTwo, 1, 2).ok());
  d.end(host);
  CHECK_FALSE(d.start(2, 1, kGroupOne));
}

TEST_CASE("at each registration the head says all that is held") {
  HoldingNode d;
  CHECK(d.prepare(kGroupOne, 1, 2).ok());
  d.apply(node_event::HeadDown{error(Code::kUnavailable, "x")});
  d.advance(std::chrono::seconds(1));
  d.apply(node_event::HeadUp{});
  wire::RegisterNodeReply reply;
  reply.reservations = {{kGroupTwo, 4, node_cpus(3)}};
  d.apply(node_event::FromHead{reply});
  CHECK(d.start(1, 1, kGroupTwo));
  CHECK_FALSE(d.start(2, 1, kGroupOne));
  CHECK(d.prepare(kGroupOne, 2, 2).code() == Code::kResourceExhausted);
}

TEST_CASE("a node that is ending agrees to nothing") {
  HoldingNode d;
  REQUIRE(d.start(1, 1));
  d.spawned();
  d.apply(node_event::ShutDown{"enough"});
  CHECK(d.prepare(kGroupOne, 1, 1).code() == Code::kUnavailable);
}

}  // namespace
}  // namespace troupe::scheduler::tests
