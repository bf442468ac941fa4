#pragma once
// The head's state machine: events in, decisions out. It hands each event to the part that it is
// for; the parts (README.md) own the state.
//
// Pure: equal events at equal times give equal outcomes. Not thread-safe; one loop owns it.

#include <memory>

#include "scheduler/control/event.h"
#include "scheduler/control/head_config.h"
#include "scheduler/control/waiting_line.h"

namespace troupe::scheduler {

class HeadState {
 public:
  explicit HeadState(const HeadConfig& config = {});
  ~HeadState();
  HeadState(HeadState&&) noexcept;
  HeadState& operator=(HeadState&&) noexcept;

  Outcome apply(Event event, Moment now);
  // When apply(Tick) is due; may be early, never late. Nothing: no timer runs.
  std::optional<TimePoint> next_deadline() const;

  // Takes in one journalled decision. kDataLoss when it contradicts what came before.
  Status replay(Delta delta);
  // After the last one: everything known gets its grace period, what waited waits again.
  Outcome resume(Moment now);
  // The journalled state as the shortest list of deltas that makes it: for compaction.
  std::vector<Delta> snapshot() const;

  const std::map<NodeId, NodeRecord>& nodes() const;
  const std::map<ActorId, ActorRecord>& actors() const;
  const std::map<GroupId, GroupRecord>& groups() const;
  const std::map<JobId, JobRecord>& jobs() const;
  const std::map<SupervisorId, SupervisorRecord>& supervisors() const;
  // Who is connected, or may come back; and what they have said that they have done.
  const std::map<ClientId, ClientRecord>& clients() const;
  const WorkDone& work_done() const;
  // What the journal holds of what lives; at most, as journal_bytes.h counts.
  std::uint64_t kept_bytes() const;
  const HeadConfig& config() const;
  bool stopping() const;
  // Of actors, by all connections.
  std::size_t actor_watch_count() const;
  // What must always be true, as a sentence when it is not.
  std::optional<std::string> broken_invariant() const;

 private:
  struct Parts;
  void dispatch(MessageArrived& arrived);
  void peer_closed(PeerId peer);
  void run_timers();
  Outcome finish();

  std::unique_ptr<Parts> parts_;
};

}  // namespace troupe::scheduler
