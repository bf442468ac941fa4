#include "scheduler/client/watch_table.h"

#include <algorithm>

namespace troupe::scheduler {

std::optional<WatchedState> watched_state(const wire::ControlMessage& message) {
  if (const auto* update = get_if<wire::ActorUpdate>(&message)) {
    const wire::ActorInfo& info = update->actor;
    return WatchedState{info.actor_id,
                        {info.namespace_name, info.name},
                        info.generation,
                        info.state == wire::ActorState::kDead};
  }
  if (const auto* update = get_if<wire::PlacementGroupUpdate>(&message)) {
    const wire::PlacementGroupInfo& info = update->group;
    return WatchedState{info.group_id,
                        {{}, info.name},
                        info.generation,
                        info.state == wire::PlacementGroupState::kRemoved};
  }
  if (const auto* update = get_if<wire::SupervisorUpdate>(&message)) {
    const wire::SupervisorInfo& info = update->supervisor;
    return WatchedState{info.supervisor_id, {}, 0, info.state == wire::SupervisorState::kEnded};
  }
  return std::nullopt;
}

wire::ControlMessage watch_request(const WatchedId& id, const WatchedName& name, bool stop) {
  switch (id.kind) {
    case WatchKind::kActor:
      return wire::WatchActor{.actor_id = {id.high, id.low},
                              .name = name.name,
                              .stop = stop,
                              .namespace_name = name.namespace_name};
    case WatchKind::kGroup:
      return wire::WatchPlacementGroup{
          .group_id = {id.high, id.low}, .name = name.name, .stop = stop};
    case WatchKind::kSupervisor:
      return wire::WatchSupervisor{.supervisor_id = {id.high, id.low}, .stop = stop};
  }
  return {};
}

void WatchTable::add(WatchId watch_id, Watch watch) {
  if (!watch.id.empty()) {
    by_id_[watch.id].watches.insert(watch_id);
  } else if (!watch.name.name.empty()) {
    by_name_[{watch.id.kind, watch.name}].insert(watch_id);
  }
  due_ = watches_.empty() ? watch.until : std::min(due_, watch.until);
  watches_.emplace(watch_id, std::move(watch));
}

WatchTable::Watch* WatchTable::find(WatchId watch_id) {
  const auto found = watches_.find(watch_id);
  return found != watches_.end() ? &found->second : nullptr;
}

std::optional<WatchTable::Watch> WatchTable::end(WatchId watch_id) {
  const auto ended = watches_.extract(watch_id);
  if (ended.empty()) return std::nullopt;
  const Watch& watch = ended.mapped();
  if (const auto known = by_id_.find(watch.id); known != by_id_.end()) {
    known->second.watches.erase(watch_id);
    if (known->second.watches.empty()) by_id_.erase(known);
  } else if (const auto named = by_name_.find({watch.id.kind, watch.name});
             named != by_name_.end()) {
    named->second.erase(watch_id);
    if (named->second.empty()) by_name_.erase(named);
  }
  return watch;
}

bool WatchTable::is_outdated(const WatchedState& state) const {
  const auto known = by_id_.find(state.id);
  return known != by_id_.end() && state.generation < known->second.generation;
}

std::vector<WatchId> WatchTable::updated(const WatchedState& state) {
  if (const auto named = by_name_.extract({state.id.kind, state.name}); !named.empty()) {
    for (const WatchId watch_id : named.mapped()) watches_.at(watch_id).id = state.id;
    by_id_[state.id].watches.merge(named.mapped());
  }
  const auto known = by_id_.find(state.id);
  if (known == by_id_.end()) return {};
  known->second.generation = state.generation;
  const std::vector<WatchId> told(known->second.watches.begin(), known->second.watches.end());
  if (state.last) {
    for (const WatchId watch_id : told) watches_.erase(watch_id);
    by_id_.erase(known);
  }
  return told;
}

std::vector<WatchId> WatchTable::unasked() const {
  std::vector<WatchId> found;
  for (const auto& [watch_id, watch] : watches_) {
    if (watch.request_id == 0) found.push_back(watch_id);
  }
  return found;
}

void WatchTable::wait_until(TimePoint until) {
  due_ = until;
  for (auto& [watch_id, watch] : watches_) watch.until = until;
}

std::vector<WatchId> WatchTable::late(TimePoint now, TimePoint next) {
  std::vector<WatchId> found;
  due_ = next;
  for (auto& [watch_id, watch] : watches_) {
    if (watch.until <= now) {
      watch.until = next;
      found.push_back(watch_id);
    }
    due_ = std::min(due_, watch.until);
  }
  return found;
}

std::vector<WatchId> WatchTable::clear() {
  std::vector<WatchId> ended;
  for (const auto& [watch_id, watch] : watches_) ended.push_back(watch_id);
  *this = {};
  return ended;
}

}  // namespace troupe::scheduler
