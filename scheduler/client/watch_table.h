#pragma once
// What a client of the head watches of one kind (actors, placement groups, supervisors), and which
// watches an update concerns: found by what it is about, however much else is watched.
//
// A watch ends by itself with the last update: an actor's death, a group's removal, a supervisor's
// end. The head forgets it then, too.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/wire/types.h"

namespace troupe::scheduler {

// A watch of whoever uses the client; never used twice, never 0.
using WatchId = std::uint64_t;
using WatchedName = std::pair<std::string, std::string>;  // namespace, name

inline ActorId watched_id(const wire::ActorInfo& info) { return info.actor_id; }
inline GroupId watched_id(const wire::PlacementGroupInfo& info) { return info.group_id; }
inline SupervisorId watched_id(const wire::SupervisorInfo& info) { return info.supervisor_id; }

inline WatchedName watched_name(const wire::ActorInfo& info) {
  return {info.namespace_name, info.name};
}
inline WatchedName watched_name(const wire::PlacementGroupInfo& info) { return {{}, info.name}; }
inline WatchedName watched_name(const wire::SupervisorInfo&) { return {}; }

// Grows, or stays, from one update to the next. A supervisor has no such number.
inline std::uint64_t watched_generation(const wire::ActorInfo& info) { return info.generation; }
inline std::uint64_t watched_generation(const wire::PlacementGroupInfo& info) {
  return info.generation;
}
inline std::uint64_t watched_generation(const wire::SupervisorInfo&) { return 0; }

inline bool is_last_update(const wire::ActorInfo& info) {
  return info.state == wire::ActorState::kDead;
}
inline bool is_last_update(const wire::PlacementGroupInfo& info) {
  return info.state == wire::PlacementGroupState::kRemoved;
}
inline bool is_last_update(const wire::SupervisorInfo& info) {
  return info.state == wire::SupervisorState::kEnded;
}

template <typename Id, typename Info>
class WatchTable {
 public:
  struct Watch {
    Id id;  // empty until a watch by name has its first update
    WatchedName name;
    TimePoint until{};             // when it is told that the head is away
    std::uint64_t request_id = 0;  // of a request to watch that was not answered yet
  };
  struct Ended {
    Watch watch;
    bool last = false;  // nobody else watches the same
  };

  void add(WatchId watch_id, Watch watch) {
    index(watch_id, watch);
    due_ = watches_.empty() ? watch.until : std::min(due_, watch.until);
    watches_.emplace(watch_id, std::move(watch));
  }
  Watch* find(WatchId watch_id) {
    const auto found = watches_.find(watch_id);
    return found != watches_.end() ? &found->second : nullptr;
  }
  std::optional<Ended> end(WatchId watch_id) {
    const auto found = watches_.find(watch_id);
    if (found == watches_.end()) return std::nullopt;
    Ended ended{std::move(found->second), false};
    watches_.erase(found);
    unindex(watch_id, ended.watch);
    ended.last = !by_id_.contains(ended.watch.id);
    return ended;
  }
  // Whether a watch has been told of a later generation.
  bool is_outdated(const Info& info) const {
    const auto found = by_id_.find(watched_id(info));
    return found != by_id_.end() && watched_generation(info) < found->second.generation;
  }
  // Which are to be told of `info`, in the order in which they began.
  std::vector<WatchId> updated(const Info& info) {
    const Id id = watched_id(info);
    if (const auto named = by_name_.extract(watched_name(info)); !named.empty()) {
      for (const WatchId watch_id : named.mapped()) {
        watches_.at(watch_id).id = id;
        by_id_[id].watches.insert(watch_id);
      }
    }
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return {};
    found->second.generation = watched_generation(info);
    const std::set<WatchId>& concerned = found->second.watches;
    std::vector<WatchId> told(concerned.begin(), concerned.end());
    if (is_last_update(info)) {
      for (const WatchId watch_id : told) watches_.erase(watch_id);
      by_id_.erase(found);
    }
    return told;
  }

  bool empty() const { return watches_.empty(); }
  // Those for which no request to watch is on its way.
  std::vector<WatchId> unasked() const {
    std::vector<WatchId> found;
    for (const auto& [watch_id, watch] : watches_) {
      if (watch.request_id == 0) found.push_back(watch_id);
    }
    return found;
  }
  // The head has gone: all are told of it when it is away at that time still.
  void wait_until(TimePoint until) {
    due_ = until;
    for (auto& [watch_id, watch] : watches_) watch.until = until;
  }
  // Not later than the first `until`.
  TimePoint due() const { return watches_.empty() ? TimePoint::max() : due_; }
  // Which are to be told now that the head is away; they stay, and are told again at `next`.
  std::vector<WatchId> late(TimePoint now, TimePoint next) {
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
  // Ends all.
  std::vector<WatchId> clear() {
    std::vector<WatchId> ended;
    for (const auto& [watch_id, watch] : watches_) ended.push_back(watch_id);
    watches_.clear();
    by_id_.clear();
    by_name_.clear();
    return ended;
  }

 private:
  struct Known {
    std::set<WatchId> watches;
    std::uint64_t generation = 0;  // of the last update
  };

  void index(WatchId watch_id, const Watch& watch) {
    if (!watch.id.empty()) {
      by_id_[watch.id].watches.insert(watch_id);
    } else if (!watch.name.second.empty()) {
      by_name_[watch.name].insert(watch_id);
    }
  }
  void unindex(WatchId watch_id, const Watch& watch) {
    if (const auto found = by_id_.find(watch.id); found != by_id_.end()) {
      found->second.watches.erase(watch_id);
      if (found->second.watches.empty()) by_id_.erase(found);
    } else if (const auto named = by_name_.find(watch.name); named != by_name_.end()) {
      named->second.erase(watch_id);
      if (named->second.empty()) by_name_.erase(named);
    }
  }

  std::map<WatchId, Watch> watches_;
  std::map<Id, Known> by_id_;
  std::map<WatchedName, std::set<WatchId>> by_name_;  // of those whose id is not known yet
  TimePoint due_ = TimePoint::max();
};

}  // namespace troupe::scheduler
