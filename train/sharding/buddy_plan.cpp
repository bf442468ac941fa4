#include "train/sharding/buddy_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>

#include "runtime/base/check.h"

namespace troupe::train {

BuddyPlan BuddyPlan::make(std::span<const int> states, std::span<const std::uint64_t> machines) {
  TROUPE_CHECK(states.size() == machines.size());
  BuddyPlan plan;
  const std::size_t ranks = states.size();
  std::map<std::uint64_t, std::vector<int>> by_machine;
  std::map<int, std::set<std::uint64_t>> machines_of_state;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    by_machine[machines[rank]].push_back(static_cast<int>(rank));
    machines_of_state[states[rank]].insert(machines[rank]);
  }
  if (by_machine.size() < 2) {
    plan.why_none_ = "all ranks are on one machine";
    return plan;
  }
  if (std::ranges::all_of(machines_of_state, [](const auto& at) { return at.second.size() > 1; })) {
    plan.lies_on_several_ = true;
    plan.why_none_ = "every state lies on several machines anyway";
    return plan;
  }
  // The machines' ranks in a row, in the order of the machines' first ranks: whoever stands as far
  // behind as the largest machine is wide is on another one.
  std::vector<const std::vector<int>*> groups;
  std::size_t widest = 0;
  for (const auto& [machine, group] : by_machine) {
    groups.push_back(&group);
    widest = std::max(widest, group.size());
  }
  if (2 * widest > ranks) {
    plan.leaves_some_alone_ = true;
    plan.why_none_ =
        fmt::format("one machine has {} of the {} ranks, more than half", widest, ranks);
    return plan;
  }
  std::ranges::sort(groups, {}, [](const std::vector<int>* group) { return group->front(); });
  std::vector<int> row;
  for (const std::vector<int>* group : groups) row.insert(row.end(), group->begin(), group->end());
  plan.why_none_.clear();
  plan.buddy_of_.assign(ranks, -1);
  plan.kept_by_.assign(ranks, -1);
  plan.turns_.assign(ranks, -1);
  for (std::size_t i = 0; i < ranks; ++i) {
    const int rank = row[i], buddy = row[(i + widest) % ranks];
    plan.buddy_of_[static_cast<std::size_t>(rank)] = buddy;
    plan.kept_by_[static_cast<std::size_t>(buddy)] = rank;
  }
  // Along each ring of buddies in turns; an odd one's last needs a turn for itself.
  for (const int first : row) {
    if (plan.turn_of(first) >= 0) continue;
    int turn = 0, rank = first;
    do {
      const int next = plan.buddy_of(rank);
      plan.turns_[static_cast<std::size_t>(rank)] = next == first && turn % 2 == 0 ? 2 : turn % 2;
      ++turn;
      rank = next;
    } while (rank != first);
  }
  return plan;
}

BuddyPlan BuddyPlan::make(std::span<const int> states, std::span<const std::uint64_t> machines,
                          std::span<const std::uint64_t> domains) {
  const bool several = std::ranges::adjacent_find(domains, std::not_equal_to()) != domains.end();
  if (several) {
    BuddyPlan plan = make(states, domains);
    // Where each machine is a domain by itself, that says nothing.
    plan.across_domains_ = !plan.none() && !std::ranges::equal(domains, machines);
    if (!plan.leaves_some_alone()) return plan;
  }
  return make(states, machines);
}

}  // namespace troupe::train
