#include "scheduler/control/waiting_line.h"

#include <algorithm>

#include "runtime/base/check.h"

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

const QueueEntry* WaitingLine::find(QueueKey key) const {
  const auto found = line_.find(key);
  return found == line_.end() ? nullptr : &found->second;
}

QueueEntry& WaitingLine::line_up(QueueKey key) {
  const auto [entry, added] = line_.try_emplace(key);
  if (added) entry->second.since = context_.now();
  fresh_.insert(key);
  pass_needed_ = true;
  return entry->second;
}

void WaitingLine::leave(Line::iterator entry) {
  TROUPE_CHECK(entry != line_.end());
  fresh_.erase(entry->first);
  if (entry->second.demand) (*entry->second.demand)->second.erase(entry->first);
  if (turn_ == entry->first) {
    turn_.reset();
    came_room();  // what was kept free for it
  }
  line_.erase(entry);
}

void WaitingLine::remove(const ActorRecord& actor) {
  const auto entry = line_.find(key_of(actor));
  TROUPE_CHECK(entry != line_.end());
  std::erase(entry->second.members, actor.id());
  if (entry->second.members.empty()) leave(entry);
}

void WaitingLine::set_demand(QueueKey key, Demand demand) {
  QueueEntry& entry = line_.at(key);
  entry.demand = demands_.try_emplace(std::move(demand)).first;
  (*entry.demand)->second.insert(key);
}

const KeptFree* WaitingLine::kept_free_before(QueueKey key) const {
  return turn_ && *turn_ < key ? &line_.at(*turn_).kept_free : nullptr;
}

void WaitingLine::consider_turn(QueueKey key, KeptFree room, const ClusterView& view) {
  QueueEntry& entry = line_.at(key);
  const Turn turn = turn_after(context_.config(), context_.now() - entry.since);
  look_again_at(entry.since + turn.ends);
  if (!turn.holds) return;
  const bool lost_a_node =
      std::any_of(entry.kept_free.begin(), entry.kept_free.end(),
                  [&](const auto& kept) { return view.row_of(kept.first) == ClusterView::kNoRow; });
  if (entry.turn != turn.number || lost_a_node) {
    entry.turn = turn.number;
    entry.kept_free = std::move(room);
  }
  turn_ = key;
}

void WaitingLine::look_again_after_patience(QueueKey key) {
  if (!look_again_at_) look_again_at(line_.at(key).since + context_.config().turn_patience);
}

void WaitingLine::look_again_at(TimePoint at) {
  if (at <= context_.now() || (look_again_at_ && *look_again_at_ <= at)) return;
  look_again_at_ = at;
  context_.arm({at, TimerKind::kLine});
}

void WaitingLine::timer() {
  if (!look_again_at_ || *look_again_at_ > context_.now()) return;
  look_again_at_.reset();
  came_room();
}

std::optional<std::string> WaitingLine::broken_invariant() const {
  for (const auto& [key, entry] : line_) {
    const bool known = entry.demand ? (*entry.demand)->second.contains(key) : fresh_.contains(key);
    TROUPE_HOLDS(known, "queue entry {} is in no line", key.order);
    TROUPE_HOLDS(entry.group.empty() == !entry.members.empty(),
                 "queue entry {} is neither actors nor a group", key.order);
  }
  TROUPE_HOLDS(!turn_ || line_.contains(*turn_), "the turn is nobody's");
  return std::nullopt;
}

}  // namespace troupe::scheduler
