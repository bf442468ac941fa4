// What clients say of their tasks, groups and pipelines: kept while they are there, and listed.

#include "runtime/base/limits.h"
#include "tests/scheduler/control/desk.h"
#include "tests/support/text.h"

namespace troupe::scheduler::tests {
namespace {

using troupe::tests::contains;

wire::Work tasks(std::uint64_t waiting, std::uint64_t done) {
  wire::Work work;
  work.tasks.push_back({.resources = Desk::cpus(1), .waiting = waiting, .done = done});
  return work;
}

struct WorkDesk : Desk {
  std::vector<wire::ClientWork> listed() {
    say(kDriver, wire::ListWork{6});
    const auto lists = sent<wire::WorkList>(kDriver);
    REQUIRE(lists.size() == 1);
    CHECK_FALSE(lists[0].more);
    return lists[0].clients;
  }
};

TEST_CASE("what a client says replaces what it said, and goes with its connection") {
  WorkDesk desk;
  CHECK(desk.listed().empty());
  desk.say(kDriver, wire::ReportWork{5, tasks(3, 10)});
  CHECK(desk.answer().ok());
  desk.say(kDriver, wire::ReportWork{5, tasks(2, 14)});
  const auto listed = desk.listed();
  REQUIRE(listed.size() == 1);
  CHECK(listed[0].name == "driver");
  CHECK(listed[0].work == tasks(2, 14));
  CHECK(desk.head.work_done().tasks == 14);
  // The same again, as after a new connection; and one that has begun anew.
  desk.say(kDriver, wire::ReportWork{5, tasks(2, 14)});
  desk.say(kDriver, wire::ReportWork{5, tasks(0, 1)});
  CHECK(desk.head.work_done().tasks == 14);
  desk.say(kDriver, wire::ReportWork{5, {}});
  CHECK(desk.listed().empty());
  desk.say(kDriver, wire::ReportWork{5, tasks(1, 2)});
  wire::ClientHello other;
  other.client_id = ClientId{9, 8};
  desk.say(2, other);
  desk.lose(kDriver);
  desk.say(2, wire::ListWork{6});
  CHECK(desk.sent<wire::WorkList>(2).at(0).clients.empty());
  CHECK(desk.journal.empty());
}

TEST_CASE("only clients say what they have under way, and not without end") {
  WorkDesk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.say(kNodeOne, wire::ReportWork{5, tasks(1, 0)});
  CHECK(desk.sent<wire::Reply>(kNodeOne).at(0).status.code() == Code::kFailedPrecondition);
  wire::Work large;
  large.groups.push_back({.type = std::string(limits::kWorkBytesMax, 'x')});
  desk.say(kDriver, wire::ReportWork{5, large});
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  CHECK(desk.listed().empty());
}

TEST_CASE("a full pipeline is held up by the stage that has the oldest item, not by most items") {
  wire::PipelineWork pipeline{.pushed = 116,
                              .delivered = 100,
                              .in_flight_max = 16,
                              .stages = {{.name = "read", .waiting = 1},
                                         {.name = "map", .waiting = 3, .has_oldest = true},
                                         {.name = "sum", .waiting = 7},
                                         {.name = "write"}}};
  REQUIRE(pipeline.held_up_by() != nullptr);
  CHECK(pipeline.held_up_by()->name == "map");
  CHECK(pipeline.to_string() == "read → map → sum → write");
  pipeline.delivered = 110;
  CHECK(pipeline.held_up_by() == nullptr);
}

}  // namespace
}  // namespace troupe::scheduler::tests
