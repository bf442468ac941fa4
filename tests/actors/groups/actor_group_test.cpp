// Groups of actors: their shapes, and calls of all of them.

#include "troupe/actor_group.h"

#include <doctest/doctest.h>

#include <functional>
#include <numeric>

#include "tests/actors/groups/group_actors.h"
#include "tests/support/test_data.h"
#include "troupe/chaos_cluster.h"
#include "troupe/cluster.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

struct GroupCluster {
  Cluster cluster =
      Cluster::start_embedded({.num_cpus = 4,
                               .on_output = [](const std::string&, std::string_view) {},
                               .program = bin_dir() + "/test_actors_groups_host"})
          .value();
  ActorGroup<Member> group(std::vector<GroupAxis> axes, ActorOptions options = {}) {
    options.num_cpus = 0;
    return ActorGroup<Member>::spawn_each(cluster, std::move(axes), options,
                                          [](std::size_t rank) { return static_cast<int>(rank); })
        .value();
  }
};
const ActorOptions kLight{.isolation = Isolation::kShared, .light_per_host = 5};

std::vector<int> numbers(std::size_t count) {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST_CASE_FIXTURE(GroupCluster, "all members are called, by rank, whatever they are") {
  for (const ActorOptions& options : {ActorOptions{.name = "m"}, kLight}) {
    CAPTURE(static_cast<int>(options.isolation));
    const auto group = this->group({{"dp", 2}, {"tp", 3}}, options);
    REQUIRE(group.size() == 6);
    CHECK(group.gather<&Member::number>().get().value() == numbers(6));
    CHECK(group.gather<&Member::greet>("x", 2).get().value().at(3) == "x5");
    CHECK(group
              .gather_each<&Member::greet>(
                  [](std::size_t rank) { return std::tuple("r", static_cast<int>(rank)); })
              .get()
              .value()
              .at(4) == "r8");
    const auto added =
        group.cast_each<&Member::add>([](std::size_t r) { return 10 * int(r); }).get();
    CHECK(added.value().at(5).value() == 50);
    CHECK(group.reduce<&Member::number>(std::plus<int>()).get().value() == 15);
    CHECK(group.gather<&Member::nothing>().get().ok());
    CHECK(group.cast<&Member::nothing>().get().value().size() == 6);
    CHECK(group[5] == group.at({1, 2}).value());
  }
  CHECK(cluster.get_actor<Member>("m-4").value().call<&Member::number>().get().value() == 4);
}

TEST_CASE_FIXTURE(GroupCluster, "places, slices, and shapes that make no sense") {
  const auto group = this->group({{"dp", 2}, {"pp", 3}, {"tp", 2}}, kLight);
  const auto of = [](const Result<ActorGroup<Member>>& part) {
    return part.value().gather<&Member::number>().get().value();
  };
  CHECK(of(group.slice("dp", 1)) == std::vector{6, 7, 8, 9, 10, 11});
  CHECK(of(group.slice("tp", 1)) == std::vector{1, 3, 5, 7, 9, 11});
  CHECK(of(group.slice("pp", 1, 3)) == std::vector{2, 3, 4, 5, 8, 9, 10, 11});
  const auto middle = group.slice("pp", 1, 2).value();
  CHECK(middle.axes() == std::vector<GroupAxis>{{"dp", 2}, {"pp", 1}, {"tp", 2}});
  CHECK(of(middle.slice("dp", 1)) == std::vector{8, 9});
  const auto one = group.slice("dp", 1).value().slice("pp", 2).value().slice("tp", 1).value();
  CHECK(one.axes().empty());
  CHECK(one.at({}).value() == group[11]);
  CHECK(group.coordinates(9) == std::vector<std::size_t>{1, 1, 1});
  CHECK(group.rank_of({1, 1, 1}).value() == 9);

  const auto code = [](const Status& status) { return status.code(); };
  CHECK(code(group.slice("xp", 0).status()) == Code::kInvalidArgument);
  CHECK(code(group.slice("dp", 2).status()) == Code::kInvalidArgument);
  CHECK(code(group.slice("dp", 1, 1).status()) == Code::kInvalidArgument);
  CHECK(code(group.slice("dp", 0, 3).status()) == Code::kInvalidArgument);
  CHECK(code(group.at({0, 0}).status()) == Code::kInvalidArgument);
  CHECK(code(group.at({0, 3, 0}).status()) == Code::kInvalidArgument);
  CHECK(code(group.slice("dp", ~std::size_t{0}).status()) == Code::kInvalidArgument);
  const auto shape = [&](std::vector<GroupAxis> axes) {
    return code(ActorGroup<Member>::of(group.handles(), std::move(axes)).status());
  };
  CHECK(shape({{"a", 12}}) == Code::kOk);
  CHECK(shape({{"a", 11}}) == Code::kInvalidArgument);
  CHECK(shape({{"a", 6}, {"a", 2}}) == Code::kInvalidArgument);
  CHECK(shape({{"a", 0}}) == Code::kInvalidArgument);
  CHECK(shape({{"", 12}}) == Code::kInvalidArgument);
  CHECK(shape({{"a", 1ull << 40}, {"b", 1ull << 40}}) == Code::kInvalidArgument);
  CHECK(code(ActorGroup<Member>::of(std::vector<ActorHandle<Member>>()).status()) ==
        Code::kInvalidArgument);
  CHECK(code(ActorGroup<Member>::of({group[0], group[0]}).status()) == Code::kInvalidArgument);
  CHECK(code(ActorGroup<Member>::of({group[0], {}}).status()) == Code::kFailedPrecondition);
  const ActorGroup<Member> none;
  CHECK(code(none.gather<&Member::number>().get().status()) == Code::kFailedPrecondition);
  CHECK(code(none.cast<&Member::nothing>().get().status()) == Code::kFailedPrecondition);
  CHECK(code(none.slice("a", 0).status()) == Code::kFailedPrecondition);
}

TEST_CASE_FIXTURE(GroupCluster,
                  "failures are named by rank, and are those of their members alone") {
  for (const ActorOptions& options : {ActorOptions{}, kLight}) {
    const auto group = this->group({{"dp", 2}, {"tp", 3}}, options);
    const auto each = group.cast<&Member::fail_if>(4).get().value();
    for (std::size_t rank = 0; rank < 6; ++rank) CHECK(each[rank].ok() == (rank != 4));
    CHECK(each[4].status().context("rank") == "4");
    CHECK(each[4].status().context("method") == "Member::fail_if");
    const Status failed = group.gather<&Member::fail_if>(4).get().status();
    CHECK(failed.code() == Code::kActorError);
    CHECK_MESSAGE(failed.message().find("rank 4 (dp 1, tp 1): ") == 0, failed.message());
    const auto sum = [](int, int) -> int { throw std::runtime_error("no sum"); };
    CHECK(group.reduce<&Member::number>(sum).get().status().message().find("no sum") !=
          std::string::npos);
    // One that is dead for good says so; the others go on.
    REQUIRE(cluster.kill(group[2]).ok());
    const auto after = group.cast<&Member::number>().get().value();
    for (std::size_t rank = 0; rank < 6; ++rank) CHECK(after[rank].ok() == (rank != 2));
    CHECK(after[2].status().code() == Code::kActorDied);
    CHECK(group.slice("dp", 1).value().gather<&Member::number>().get().value() ==
          std::vector{3, 4, 5});
    const Status two = group.gather<&Member::fail_if>(4).get().status();
    CHECK_MESSAGE(two.message().find("2 of 6 members failed; rank 2 (dp 0, tp 2): ") == 0,
                  two.message());
  }
}

TEST_CASE_FIXTURE(GroupCluster, "the same bits each time: op(op(r0, r1), r2) …") {
  const auto group = this->group({{"x", 40}}, kLight);
  const auto plus = std::plus<double>();
  double expected = 0.3;
  for (int i = 1; i < 40; ++i) expected += 0.3 / (1.0 + i);
  for (int i = 0; i < 5; ++i)
    CHECK(group.reduce<&Member::part>(plus, 0.3).get().value() == expected);
}

TEST_CASE_FIXTURE(GroupCluster,
                  "a group is an argument; calls from inside, also before it is made") {
  const auto caller = cluster.spawn<Member>({.num_cpus = 0}, 100).value();
  std::vector<ActorHandle<Member>> one_by_one;
  for (int i = 0; i < 20; ++i) one_by_one.push_back(cluster.spawn<Member>(kLight, i).value());
  const auto lights = ActorGroup<Member>::of(one_by_one, {{"a", 4}, {"b", 5}}).value();
  CHECK(caller.call<&Member::sum_of>(lights).get().value() == 190);
  CHECK(caller.call<&Member::sum_of>(this->group({{"x", 3}})).get().value() == 3);
  // One that waits for itself, or for who shares its thread, would wait in vain.
  CHECK(lights[0].call<&Member::sum_of>(lights).get().status().code() == Code::kFailedPrecondition);
  const auto self = ActorGroup<Member>::of({one_by_one[0], caller}).value();
  CHECK(caller.call<&Member::sum_of>(self).get().status().code() == Code::kFailedPrecondition);
  CHECK(caller.call<&Member::sum_of>(ActorGroup<Member>()).get().status().code() ==
        Code::kFailedPrecondition);
}

TEST_CASE_FIXTURE(GroupCluster, "deadlines and cancellation") {
  const TemporaryDirectory folder;
  const std::string gate = folder.file("gate");
  for (const ActorOptions& options : {ActorOptions{}, kLight}) {
    const auto group = this->group({{"x", 3}}, options);
    REQUIRE(group.gather<&Member::number>().get().ok());
    auto waits = group.gather<&Member::wait_for>(gate);
    const Status late = waits.get(20ms).status();
    CHECK(late.code() == Code::kDeadlineExceeded);
    CHECK_MESSAGE(late.message().find("3 of 3 members have not answered") != std::string::npos,
                  late.message());
    waits.cancel();
    CHECK(waits.get().status().code() == Code::kCancelled);
    const auto over = group.with({.timeout = 30ms}).cast<&Member::wait_for>(gate).get();
    for (const auto& one : over.value()) CHECK(one.status().code() == Code::kDeadlineExceeded);
  }
}

TEST_CASE_FIXTURE(GroupCluster, "all of a group start anew where one fails: a supervisor's rule") {
  const auto whole = cluster.supervise({.strategy = RestartStrategy::kAllForOne}).value();
  const auto group = this->group({{"x", 3}}, {.supervisor = whole.id()});
  const auto before = group.gather<&Member::pid>().get().value();
  CHECK_FALSE(group[1].call<&Member::crash>().get().ok());
  const auto again = group.with({.retry = true});
  const Deadline patience = Deadline::after(20s);
  auto now = before;
  const auto same = [&](std::size_t i) { return now[i] == before[i]; };
  while ((same(0) || same(1) || same(2)) && !patience.passed()) {
    now = again.gather<&Member::pid>().get().value();
  }
  CHECK((!same(0) && !same(1) && !same(2)));
}

// On several nodes, of which one is lost.
TEST_CASE("a node is lost: its ranks fail, and are told once that what they had saved is gone") {
  auto nodes = ChaosCluster::start({.nodes = 2, .cpus_per_node = 2}, Deadline::after(30s)).value();
  auto cluster =
      nodes->connect({.program = bin_dir() + "/test_actors_groups_host", .follow_output = false})
          .value();
  const auto group = ActorGroup<Member>::spawn(cluster, {{"x", 10}},
                                               {.num_cpus = 2,
                                                .max_restarts = -1,
                                                .start_empty_on_state_loss = true,
                                                .isolation = Isolation::kShared,
                                                .light_per_host = 5},
                                               0)
                         .value();
  REQUIRE(group.gather<&Member::add>(3).get(30s).value() == std::vector<int>(10, 3));
  const Deadline soon = Deadline::after(30s);
  const int first = nodes->node_of(cluster, group[0], soon).value();
  REQUIRE(nodes->node_of(cluster, group[9], soon).value() == 1 - first);
  REQUIRE(nodes->kill_node(1 - first).ok());
  REQUIRE(nodes->join(1 - first).ok());
  const auto add = [&] {
    return group.with({.timeout = 30s, .retry = true}).cast<&Member::add>(1).get().value();
  };
  const auto told = add();
  for (std::size_t rank = 0; rank < 5; ++rank) CHECK(told[rank].value() == 4);
  for (std::size_t rank = 5; rank < 10; ++rank) {
    CHECK_MESSAGE(told[rank].status().code() == Code::kDataLoss, told[rank].status().to_string());
  }
  const auto after = add();
  for (std::size_t rank = 0; rank < 10; ++rank) CHECK(after[rank].value() == (rank < 5 ? 5 : 1));
}

}  // namespace
}  // namespace troupe::tests
