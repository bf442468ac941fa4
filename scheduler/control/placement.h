#pragma once
// Who of those that wait is placed where, and why the others are not: passes over the waiting line.
//
// What does not fit lets the next ones try, nothing that runs is stopped to make room, and of those
// that ask for the same only the first is tried. Where no room came, only what has just lined up
// is.

#include "scheduler/control/groups.h"

namespace troupe::scheduler {

// Without state of its own.
struct Placement {
  Context& context_;
  WaitingLine& line_;
  Nodes& nodes_;
  Actors& actors_;
  Groups& groups_;

  // A pass over the line.
  void schedule();

  static Bundle bundle_of(const wire::ActorSpec& spec);
  // In words: the nodes that could hold it as they are, and those that take nothing new.
  std::string explain_room(const PlacementRequest& request, const KeptFree* kept_free) const;
  // Empty where it does not wait.
  std::string why_pending(const ActorRecord& actor) const;
  std::string why_pending(const GroupRecord& group) const;

 private:
  void schedule_all();
  Demand demand_of(const QueueEntry& entry) const;
  bool try_place(QueueKey key);
  bool try_place_actors(QueueKey key);
  bool try_place_group(QueueKey key);
  bool consider_turn(QueueKey key);
  std::vector<Bundle> bundles_of(const QueueEntry& entry) const;
  std::string explain_entry(QueueKey key, const std::vector<Bundle>& bundles,
                            wire::PlacementStrategy strategy) const;
  std::string explain_bundles(const ActorRecord& actor, const GroupRecord& group) const;
};

}  // namespace troupe::scheduler
