// Communicators among the members of a group: formed, lost with a member, formed again.

#include "troupe/group_communicator.h"

#include <doctest/doctest.h>

#include "tests/actors/groups/group_actors.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

struct RankedCluster {
  Cluster cluster =
      Cluster::start_embedded({.num_cpus = 4,
                               .on_output = [](const std::string&, std::string_view) {},
                               .program = bin_dir() + "/test_actors_groups_host"})
          .value();
  ActorGroup<Ranked> group(std::vector<GroupAxis> axes, const ActorOptions& options) {
    return ActorGroup<Ranked>::spawn(cluster, std::move(axes), options).value();
  }
};

TEST_CASE_FIXTURE(RankedCluster,
                  "a group's members add up, broadcast and gather; slices of it too") {
  const auto group = this->group({{"dp", 2}, {"tp", 2}}, {.num_cpus = 0});
  const std::vector<float> ones(1000, 1.0f);
  const Status before = group.gather<&Ranked::sum>(ones).get().status();
  CHECK(before.code() == Code::kFailedPrecondition);
  REQUIRE(group.communicator<&Ranked::join>().get().ok());
  const auto sums = group.gather<&Ranked::sum>(ones).get().value();
  for (const auto& sum : sums) CHECK(sum == std::vector<float>(1000, 4.0f));
  const auto all = group
                       .gather_each<&Ranked::gather_after_broadcast>(
                           [](std::size_t rank) { return static_cast<int>(10 * rank); })
                       .get()
                       .value();
  for (const auto& one : all) CHECK(one == std::vector{10, 11, 12, 13});
  for (const std::size_t place : {0, 1}) {
    const auto half = group.slice("dp", place).value();
    REQUIRE(half.communicator<&Ranked::join_half>().get().ok());
    const auto largest = half.gather_each<&Ranked::largest_of_half>(
                                 [](std::size_t rank) { return static_cast<std::int64_t>(rank); })
                             .get();
    CHECK(largest.value() == std::vector<std::int64_t>{1, 1});
  }
  // Not all of them come: the others' operation ends at its deadline.
  const auto some = group.slice("dp", 0).value().with({.timeout = 100ms});
  for (const auto& one : some.cast<&Ranked::sum>(ones).get().value()) {
    CHECK(one.status().code() == Code::kDeadlineExceeded);
  }
}

TEST_CASE_FIXTURE(RankedCluster,
                  "a member dies: the others' operation names it; then the next generation") {
  const auto group = this->group({{"x", 3}}, {.num_cpus = 0, .max_restarts = -1});
  REQUIRE(group.communicator<&Ranked::join>().get().ok());
  const auto generation = group[0].call<&Ranked::generation>().get().value();
  const std::vector<float> ones(10, 1.0f);
  auto others = group.slice("rank", 0, 2);
  CHECK(others.status().code() == Code::kInvalidArgument);  // it has the axis "x"
  auto waiting = group.slice("x", 0, 2).value().cast<&Ranked::sum>(ones);
  CHECK_FALSE(group[2].call<&Ranked::crash>().get().ok());
  for (const auto& one : waiting.get().value()) {
    CHECK_MESSAGE(one.status().context("peer") == "2", one.status().to_string());
  }
  CHECK(group[0].call<&Ranked::sum>(ones).get().status().code() == Code::kAborted);
  REQUIRE(group.with({.retry = true}).communicator<&Ranked::join>().get().ok());
  CHECK(group[0].call<&Ranked::generation>().get().value() > generation);
  CHECK(group.gather<&Ranked::sum>(ones).get().value().at(1) == std::vector<float>(10, 3.0f));
}

TEST_CASE_FIXTURE(RankedCluster, "who cannot come is named at once") {
  const auto group = this->group({{"x", 3}}, {.num_cpus = 0});
  REQUIRE(group.gather<&Ranked::generation>().get().ok());
  REQUIRE(cluster.kill(group[1]).ok());
  const Status status = group.communicator<&Ranked::join>().get();
  CHECK(status.code() == Code::kActorDied);
  CHECK_MESSAGE(status.message().find("rank 1 (x 1)") != std::string::npos, status.to_string());
  const auto lights = this->group({{"x", 2}}, {.num_cpus = 0, .isolation = Isolation::kShared});
  CHECK(lights.communicator<&Ranked::join>().get().code() == Code::kUnsupported);
  // A seat that is another one's.
  CHECK(group[0].call<&Ranked::join>(CommunicatorSeat{}).get().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::tests
