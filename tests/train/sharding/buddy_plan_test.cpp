#include "train/sharding/buddy_plan.h"

#include <doctest/doctest.h>

#include <numeric>

namespace troupe::train::buddy_plan_test {
namespace {

// `ranks`: of each machine, in order.
std::vector<std::uint64_t> on_machines(const std::vector<int>& ranks) {
  std::vector<std::uint64_t> machines;
  for (std::size_t machine = 0; machine < ranks.size(); ++machine)
    machines.insert(machines.end(), static_cast<std::size_t>(ranks[machine]), 100 - machine);
  return machines;
}

std::vector<int> all_different(std::size_t ranks) {
  std::vector<int> states(ranks);
  std::iota(states.begin(), states.end(), 0);
  return states;
}

TEST_CASE("every rank's buddy is on another machine, and every rank is one rank's buddy") {
  for (const std::vector<int>& ranks : std::vector<std::vector<int>>{
           {1, 1}, {1, 1, 1}, {2, 2}, {8, 8, 8}, {1, 2, 1}, {3, 2, 1}, {2, 1, 2, 1, 1}}) {
    const auto machines = on_machines(ranks);
    const BuddyPlan plan = BuddyPlan::make(all_different(machines.size()), machines);
    REQUIRE_FALSE(plan.none());
    std::vector<int> serves(101, 0);
    for (int rank = 0; rank < static_cast<int>(machines.size()); ++rank) {
      const int buddy = plan.buddy_of(rank);
      CHECK(machines[static_cast<std::size_t>(rank)] != machines[static_cast<std::size_t>(buddy)]);
      CHECK(plan.kept_by(buddy) == rank);
      // Nobody sends and receives in one turn.
      CHECK(plan.turn_of(rank) != plan.turn_of(buddy));
      CHECK(plan.turn_of(rank) < BuddyPlan::kTurns);
      ++serves[machines[static_cast<std::size_t>(buddy)]];
    }
    for (std::size_t machine = 0; machine < ranks.size(); ++machine)
      CHECK(serves[100 - machine] == ranks[machine]);
  }
}

TEST_CASE("on equal machines a buddy has its rank's place on the next machine") {
  const auto machines = on_machines({2, 2, 2});
  const BuddyPlan plan = BuddyPlan::make(all_different(6), machines);
  for (int rank = 0; rank < 6; ++rank) CHECK(plan.buddy_of(rank) == (rank + 2) % 6);
}

TEST_CASE(
    "a buddy is in another failure domain where there are several, if that leaves nobody alone") {
  const auto machines = on_machines({1, 1, 1, 1});
  const std::vector<std::uint64_t> two{7, 7, 8, 8}, one{7, 7, 7, 7}, most{7, 7, 7, 8};
  const BuddyPlan across = BuddyPlan::make(all_different(4), machines, two);
  for (int rank = 0; rank < 4; ++rank) CHECK(across.buddy_of(rank) == (rank + 2) % 4);
  CHECK(across.across_domains());
  // Where nobody said which machines are lost together, each is a domain by itself.
  CHECK_FALSE(BuddyPlan::make(all_different(4), machines, machines).across_domains());
  const auto buddies = [](const BuddyPlan& plan) {
    std::vector<int> of;
    for (int rank = 0; rank < 4; ++rank) of.push_back(plan.buddy_of(rank));
    return of;
  };
  const auto next = buddies(BuddyPlan::make(all_different(4), machines));
  CHECK(buddies(BuddyPlan::make(all_different(4), machines, one)) == next);
  CHECK(buddies(BuddyPlan::make(all_different(4), machines, most)) == next);
  // Two shard groups, each in a rack: their states lie in both.
  CHECK(BuddyPlan::make(std::vector{0, 1, 0, 1}, machines, two).none());
  // Both copies of a state in one rack are lost with it.
  CHECK_FALSE(BuddyPlan::make(std::vector{0, 0, 1, 1}, machines, two).none());
}

TEST_CASE("nobody keeps anything where it would be of no use, and the plan says why") {
  CHECK(BuddyPlan::make(all_different(4), on_machines({4})).why_none() ==
        "all ranks are on one machine");
  // DDP, and HSDP whose shard groups are machines.
  CHECK(BuddyPlan::make(std::vector{0, 0}, on_machines({1, 1})).why_none() ==
        "every state lies on several machines anyway");
  CHECK(BuddyPlan::make(std::vector{0, 1, 0, 1}, on_machines({2, 2})).none());
  // Shard groups across machines: each state lies on one.
  CHECK_FALSE(BuddyPlan::make(std::vector{0, 0, 1, 1}, on_machines({2, 2})).none());
  const BuddyPlan lopsided = BuddyPlan::make(all_different(4), on_machines({3, 1}));
  CHECK(lopsided.none());
  CHECK(lopsided.leaves_some_alone());
  CHECK(lopsided.why_none() == "one machine has 3 of the 4 ranks, more than half");
  CHECK(lopsided.buddy_of(0) == -1);
  CHECK(lopsided.kept().empty());
}

}  // namespace
}  // namespace troupe::train::buddy_plan_test
