#pragma once
// What a client of the head watches of one kind (actors, placement groups, supervisors), and whom
// an update concerns: found by what it is about, however much else is watched.
//
// A watch ends by itself with the last update: an actor's death, a group's removal, a supervisor's
// end. The head forgets it then, too.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"

namespace troupe::scheduler {

using WatchedName = std::pair<std::string, std::string>;  // namespace, name

inline ActorId watched_id(const wire::ActorInfo& info) { return info.actor_id; }
inline GroupId watched_id(const wire::PlacementGroupInfo& info) { return info.group_id; }
inline SupervisorId watched_id(const wire::SupervisorInfo& info) { return info.supervisor_id; }

inline WatchedName watched_name(const wire::ActorInfo& info) {
  return {info.namespace_name, info.name};
}
inline WatchedName watched_name(const wire::PlacementGroupInfo& info) { return {{}, info.name}; }
inline WatchedName watched_name(const wire::SupervisorInfo&) { return {}; }

inline bool is_last_update(const wire::ActorInfo& info) {
  return info.state == wire::ActorState::kDead;
}
inline bool is_last_update(const wire::PlacementGroupInfo& info) {
  return info.state == wire::PlacementGroupState::kRemoved;
}
inline bool is_last_update(const wire::SupervisorInfo& info) {
  return info.state == wire::SupervisorState::kEnded;
}

template <typename WatchId, typename Id, typename Info>
class WatchTable {
 public:
  using OnChange = std::function<void(Result<Info>)>;
  struct Watch {
    Id id;  // empty until a watch by name has its first update
    WatchedName name;
    OnChange on_change;
    std::uint64_t request_id = 0;  // of a request to watch that was not answered yet
    TimePoint until{};             // when it is told that the head is away
  };
  struct Ended {
    Watch watch;
    bool last = false;  // nobody else watches the same
  };

  void add(WatchId watch_id, Watch watch) {
    index(watch_id, watch);
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
  // Whom to tell of `info`, in the order in which they began.
  std::vector<OnChange> updated(const Info& info) {
    const Id id = watched_id(info);
    if (const auto named = by_name_.extract(watched_name(info)); !named.empty()) {
      for (const WatchId watch_id : named.mapped()) {
        watches_.at(watch_id).id = id;
        by_id_[id].insert(watch_id);
      }
    }
    std::vector<OnChange> concerned;
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return concerned;
    for (const WatchId watch_id : found->second) {
      concerned.push_back(watches_.at(watch_id).on_change);
    }
    if (is_last_update(info)) {
      for (const WatchId watch_id : found->second) watches_.erase(watch_id);
      by_id_.erase(found);
    }
    return concerned;
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
    for (auto& [watch_id, watch] : watches_) watch.until = until;
  }
  // Whom to tell now that it is away; they stay, and are told again at `next`.
  std::vector<OnChange> late(TimePoint now, TimePoint next) {
    std::vector<OnChange> found;
    for (auto& [watch_id, watch] : watches_) {
      if (watch.until > now) continue;
      watch.until = next;
      found.push_back(watch.on_change);
    }
    return found;
  }
  // Ends all; whom to tell.
  std::vector<OnChange> clear() {
    std::vector<OnChange> found;
    for (auto& [watch_id, watch] : watches_) found.push_back(std::move(watch.on_change));
    watches_.clear();
    by_id_.clear();
    by_name_.clear();
    return found;
  }

 private:
  void index(WatchId watch_id, const Watch& watch) {
    if (!watch.id.empty()) {
      by_id_[watch.id].insert(watch_id);
    } else if (!watch.name.second.empty()) {
      by_name_[watch.name].insert(watch_id);
    }
  }
  void unindex(WatchId watch_id, const Watch& watch) {
    const auto forget = [watch_id](auto& index, const auto& key) {
      const auto found = index.find(key);
      if (found == index.end()) return;
      found->second.erase(watch_id);
      if (found->second.empty()) index.erase(found);
    };
    if (!watch.id.empty()) {
      forget(by_id_, watch.id);
    } else {
      forget(by_name_, watch.name);
    }
  }

  std::map<WatchId, Watch> watches_;
  std::map<Id, std::set<WatchId>> by_id_;
  std::map<WatchedName, std::set<WatchId>> by_name_;  // of those whose id is not known yet
};

}  // namespace troupe::scheduler
