#pragma once
// What a client of the head watches: actors, placement groups, supervisors; and which watches an
// update concerns: found by what it is about, however much else is watched.
//
// A watch ends by itself with the last update: an actor's death, a group's removal, a supervisor's
// end. The head forgets it then, too.

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {

// A watch of whoever uses the client; never used twice, never 0.
using WatchId = std::uint64_t;

enum class WatchKind : std::uint8_t { kActor, kGroup, kSupervisor };

// The id of an actor, a group or a supervisor. Empty: it is watched by name, and not known yet.
struct WatchedId {
  WatchKind kind = WatchKind::kActor;
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  WatchedId() = default;
  WatchedId(ActorId id) : WatchedId(WatchKind::kActor, id.high, id.low) {}
  WatchedId(GroupId id) : WatchedId(WatchKind::kGroup, id.high, id.low) {}
  WatchedId(SupervisorId id) : WatchedId(WatchKind::kSupervisor, id.high, id.low) {}
  bool empty() const { return high == 0 && low == 0; }
  auto operator<=>(const WatchedId&) const = default;

 private:
  WatchedId(WatchKind k, std::uint64_t h, std::uint64_t l) : kind(k), high(h), low(l) {}
};
struct WatchedName {
  std::string namespace_name;  // of actors
  std::string name;            // empty: it is watched by its id
  auto operator<=>(const WatchedName&) const = default;
};

// What an update says to its watches.
struct WatchedState {
  WatchedId id;
  WatchedName name;
  // Grows, or stays, from one update to the next; 0 of supervisors, which have none.
  std::uint64_t generation = 0;
  bool last = false;
};
// Nothing for a message that is no update of an actor, a group or a supervisor.
std::optional<WatchedState> watched_state(const wire::ControlMessage& message);
// The request to watch it; to watch it no longer (`stop`).
wire::ControlMessage watch_request(const WatchedId& id, const WatchedName& name, bool stop);

class WatchTable {
 public:
  struct Watch {
    WatchedId id;
    WatchedName name;
    TimePoint until{};             // when it is told that the head is away
    std::uint64_t request_id = 0;  // of a request to watch that was not answered yet
  };

  void add(WatchId watch_id, Watch watch);
  Watch* find(WatchId watch_id);
  std::optional<Watch> end(WatchId watch_id);
  bool watches(const WatchedId& id) const { return by_id_.contains(id); }
  // Whether a watch has been told of a later generation.
  bool is_outdated(const WatchedState& state) const;
  // Which are to be told of it, in the order in which they began.
  std::vector<WatchId> updated(const WatchedState& state);

  bool empty() const { return watches_.empty(); }
  // Those for which no request to watch is on its way.
  std::vector<WatchId> unasked() const;
  // The head has gone: all are told of it when it is away at that time still.
  void wait_until(TimePoint until);
  // Not later than the first `until`.
  TimePoint due() const { return watches_.empty() ? TimePoint::max() : due_; }
  // Which are to be told now that the head is away; they stay, and are told again at `next`.
  std::vector<WatchId> late(TimePoint now, TimePoint next);
  // Ends all.
  std::vector<WatchId> clear();

 private:
  struct Known {
    std::set<WatchId> watches;
    std::uint64_t generation = 0;  // of the last update
  };
  std::map<WatchId, Watch> watches_;
  std::map<WatchedId, Known> by_id_;
  // Of those whose id is not known yet.
  std::map<std::pair<WatchKind, WatchedName>, std::set<WatchId>> by_name_;
  TimePoint due_ = TimePoint::max();
};

}  // namespace troupe::scheduler
