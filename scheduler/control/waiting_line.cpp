// The line of those that wait for room: actors, gangs and placement groups.
//
// Larger priorities first, then in the order of asking; what does not fit lets the next ones try.
// Nobody is overtaken for ever: the first in line that the cluster could hold has turns, in which
// room is kept free for it (HeadConfig::turn_patience).

#include <algorithm>

#include "runtime/base/check.h"
#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

// Where in its turns something is that has waited so long.
struct Turn {
  std::uint64_t number = 0;  // 0: it has had none
  bool holds = false;        // room is kept free for it
  Duration ends{};           // since the waiting began: when the next phase begins
};

Turn turn_after(const HeadConfig& config, Duration waited) {
  Duration at = config.turn_patience;
  if (waited < at) return {0, false, at};
  Duration hold = std::min(config.turn_hold, config.turn_hold_max);
  for (std::uint64_t number = 1;; ++number) {
    const Duration cycle = hold + config.turn_rest;
    if (hold == config.turn_hold_max && cycle > Duration::zero()) {
      const auto passed = (waited - at) / cycle;
      number += static_cast<std::uint64_t>(passed);
      at += passed * cycle;
    }
    at += hold;
    if (waited < at) return {number, true, at};
    at += config.turn_rest;
    if (waited < at) return {number, false, at};
    hold = std::min(2 * hold, config.turn_hold_max);
  }
}

}  // namespace

struct HeadState::Place {
  NodeId node_id;
  std::int32_t bundle_index = -1;
};

// --- who stands where ----------------------------------------------------------------------------

QueueKey HeadState::key_of(const ActorRecord& actor) {
  return {-static_cast<std::int64_t>(actor.spec.priority), actor.queue_order};
}
QueueKey HeadState::key_of(const GroupRecord& group) {
  return {-static_cast<std::int64_t>(group.spec.priority), group.queue_order};
}

QueueEntry& HeadState::line_up(QueueKey key) {
  const auto [entry, added] = queue_.try_emplace(key);
  if (added) entry->second.since = now_.steady;
  fresh_.insert(key);
  schedule_needed_ = true;
  return entry->second;
}

void HeadState::leave_line(Line::iterator entry) {
  fresh_.erase(entry->first);
  if (entry->second.wish) (*entry->second.wish)->second.erase(entry->first);
  if (turn_ == entry->first) {
    turn_.reset();
    came_room();  // what was kept free for it
  }
  queue_.erase(entry);
}

void HeadState::enqueue(ActorRecord& actor, std::uint64_t order) {
  actor.queue_order = order;
  line_up(key_of(actor)).members.push_back(actor.spec.actor_id);
  lined_up_.insert(actor.spec.actor_id);
  changed(actor);
}

void HeadState::dequeue(ActorRecord& actor) {
  if (actor.queue_order == 0) return;
  const auto entry = queue_.find(key_of(actor));
  TROUPE_CHECK(entry != queue_.end());
  std::erase(entry->second.members, actor.spec.actor_id);
  if (entry->second.members.empty()) leave_line(entry);
  actor.queue_order = 0;
}

// In its old place where it had one: it was there before those that came since.
void HeadState::enqueue(GroupRecord& group) {
  if (group.queue_order == 0) group.queue_order = next_order_++;
  group.waiting = true;
  group.retry_at.reset();
  line_up(key_of(group)).group = group.spec.group_id;
  changed(group);
}

void HeadState::dequeue(GroupRecord& group) {
  if (!std::exchange(group.waiting, false)) return;
  const auto entry = queue_.find(key_of(group));
  TROUPE_CHECK(entry != queue_.end());
  leave_line(entry);
}

// --- a pass --------------------------------------------------------------------------------------

// Where no room came, those that waited before cannot be placed: only the fresh ones are tried.
void HeadState::schedule() {
  schedule_needed_ = false;
  const bool all = std::exchange(room_came_, false);
  if (stopping()) return;
  const std::set<QueueKey> fresh = std::exchange(fresh_, {});
  for (const QueueKey& key : fresh) {
    QueueEntry& entry = queue_.at(key);
    if (entry.wish) continue;
    entry.wish = wishes_.try_emplace(wish_of(entry)).first;
    (*entry.wish)->second.insert(key);
  }
  if (all) {
    schedule_all();
  } else {
    std::set<const Wish*> refused;
    for (const QueueKey& key : fresh) {
      const Wish* wish = &(*queue_.at(key).wish)->first;
      if (refused.contains(wish) || try_place(key)) continue;
      refused.insert(wish);
      if (!look_again_at_) look_again_at(queue_.at(key).since + config_.turn_patience);
    }
  }
  std::erase_if(wishes_, [](const auto& entry) { return entry.second.empty(); });
}

// In the order of the line, of equal wishes only the first that is refused.
void HeadState::schedule_all() {
  turn_.reset();
  bool turn_is_known = false;
  std::set<std::pair<QueueKey, Wishes::const_pointer>> next;
  for (const auto& wish : wishes_) {
    if (!wish.second.empty()) next.emplace(*wish.second.begin(), &wish);
  }
  while (!next.empty()) {
    const auto [key, wish] = *next.begin();
    next.erase(next.begin());
    if (try_place(key)) {
      const auto following = wish->second.upper_bound(key);
      if (following != wish->second.end()) next.emplace(*following, wish);
    } else if (!turn_is_known) {
      turn_is_known = consider_turn(key);
    }
  }
}

Wish HeadState::wish_of(const QueueEntry& entry) const {
  Wish wish;
  if (!entry.group.empty()) {
    const GroupRecord& group = groups_.at(entry.group);
    wish.strategy = group.spec.strategy;
    if (group.was_created) wish.own = entry.group;
    for (const wire::BundleSpec& bundle : group.spec.bundles) {
      wish.parts.push_back({bundle.resources, {}, bundle.label_selector, {}, -1});
    }
  }
  for (const ActorId& id : entry.members) {
    const wire::ActorSpec& spec = actors_.at(id).spec;
    const bool bound = spec.node_affinity.has_value() && !spec.node_affinity_soft;
    wish.parts.push_back({spec.resources, bound ? spec.node_affinity : std::nullopt,
                          spec.label_selector, spec.placement_group, spec.bundle_index});
  }
  return wish;
}

bool HeadState::try_place(QueueKey key) {
  return queue_.at(key).group.empty() ? try_place_actors(key) : try_place_group(key);
}

bool HeadState::try_place_group(QueueKey key) {
  GroupRecord& group = groups_.at(queue_.at(key).group);
  const std::vector<Bundle> bundles = bundles_of(group);
  const auto nodes = place({bundles, group.spec.strategy}, view_, kept_free_before(key));
  if (!nodes) return false;
  dequeue(group);
  prepare(group, *nodes);
  return true;
}

// All of them, those in bundles of placement groups and the others, or none.
bool HeadState::try_place_actors(QueueKey key) {
  const std::vector<ActorId> members = queue_.at(key).members;
  std::vector<Place> places(members.size());
  std::vector<Bundle> bundles;
  std::vector<std::size_t> outside;
  BundleUse used;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const ActorRecord& actor = actors_.at(members[i]);
    if (!actor.in_group()) {
      bundles.push_back(bundle_of(actor));
      outside.push_back(i);
      continue;
    }
    const GroupRecord& group = groups_.at(actor.spec.placement_group);
    const auto index = bundle_for(actor.spec, actor.info.bundle_index, group, used, false);
    if (!index) return false;
    places[i] = {group.info.bundles[static_cast<std::size_t>(*index)].node_id, *index};
  }
  if (!bundles.empty()) {
    const auto nodes = place({bundles}, view_, kept_free_before(key));
    if (!nodes) return false;
    for (std::size_t i = 0; i < outside.size(); ++i) places[outside[i]].node_id = (*nodes)[i];
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    ActorRecord& actor = actors_.at(members[i]);
    dequeue(actor);
    actor.info.bundle_index = places[i].bundle_index;
    start_on(actor, nodes_.at(places[i].node_id));
  }
  return true;
}

// --- turns ---------------------------------------------------------------------------------------

// What is kept free for somebody who stands before `key`.
const KeptFree* HeadState::kept_free_before(QueueKey key) const {
  return turn_ && *turn_ < key ? &queue_.at(*turn_).kept_free : nullptr;
}

// Whether this is the first in line that the cluster could hold. Then it has turns.
bool HeadState::consider_turn(QueueKey key) {
  QueueEntry& entry = queue_.at(key);
  std::vector<Bundle> bundles;
  auto strategy = wire::PlacementStrategy::kPack;
  if (!entry.group.empty()) {
    const GroupRecord& group = groups_.at(entry.group);
    bundles = bundles_of(group);
    strategy = group.spec.strategy;
  }
  for (const ActorId& id : entry.members) {
    const ActorRecord& actor = actors_.at(id);
    if (!actor.in_group()) bundles.push_back(bundle_of(actor));
  }
  // Actors of a group wait for its bundles, which nobody else can take.
  if (bundles.empty()) return false;
  const auto nodes = place_on_empty({bundles, strategy}, view_);
  if (!nodes) return false;
  const Turn turn = turn_after(config_, now_.steady - entry.since);
  look_again_at(entry.since + turn.ends);
  if (!turn.holds) return true;
  const bool lost_a_node = std::any_of(
      entry.kept_free.begin(), entry.kept_free.end(),
      [&](const auto& kept) { return view_.row_of(kept.first) == ClusterView::kNoRow; });
  // The same nodes during a turn, so that room gathers there.
  if (entry.turn != turn.number || lost_a_node) {
    entry.turn = turn.number;
    entry.kept_free.clear();
    for (std::size_t i = 0; i < bundles.size(); ++i) {
      add(entry.kept_free[(*nodes)[i]], bundles[i].need);
    }
  }
  turn_ = key;
  return true;
}

void HeadState::look_again_at(TimePoint at) {
  if (at <= now_.steady || (look_again_at_ && *look_again_at_ <= at)) return;
  look_again_at_ = at;
  arm(at, TimerKind::kLine);
}

}  // namespace troupe::scheduler
