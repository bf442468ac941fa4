#pragma once
// The line of those that wait for room: actors, gangs and placement groups; what they ask for, and
// whose turn it is. Who is placed where is placement.h's to say.
//
// Larger priorities first, then in the order of asking; what does not fit lets the next ones try.
// Nobody is overtaken for ever: the first in line that the cluster could hold has turns, in which
// room is kept free for it (HeadConfig::turn_patience).

#include "scheduler/control/table.h"

namespace troupe::scheduler {

// Where something stands in the line of those that wait for room: larger priorities first, then in
// the order of asking.
struct QueueKey {
  std::int64_t minus_priority = 0;
  std::uint64_t order = 0;
  friend auto operator<=>(const QueueKey&, const QueueKey&) = default;
};

// What something that waits asks for. Where it cannot be had in a pass over the line, those behind
// that ask for the same cannot have it either.
struct Demand {
  struct Part {
    wire::Resources need;
    std::optional<NodeId> affinity;
    wire::LabelSelector selector;
    GroupId in_group;
    std::int32_t bundle_index = -1;
    friend auto operator<=>(const Part&, const Part&) = default;
  };
  wire::PlacementStrategy strategy = wire::PlacementStrategy::kPack;
  std::vector<Part> parts;
  GroupId own;  // a group that was reserved before has a demand of its own: its actors hold places
  friend auto operator<=>(const Demand&, const Demand&) = default;
};
// Those that wait, by what they ask for.
using Demands = std::map<Demand, std::set<QueueKey>>;

// A gang, one actor, or a placement group that waits.
struct QueueEntry {
  std::vector<ActorId> members;
  GroupId group;  // empty: it is actors
  TimePoint since;
  std::optional<Demands::iterator> demand;  // nothing until a pass has looked at it
  // The turn for which `kept_free` was chosen (waiting_line.cpp), 0 for none.
  std::uint64_t turn = 0;
  KeptFree kept_free;
};

// Where an actor, or a placement group, stands if it waits.
template <typename Record>
QueueKey key_of(const Record& record) {
  return {-static_cast<std::int64_t>(record.spec.priority), record.queue_order};
}

class WaitingLine {
 public:
  using Line = std::map<QueueKey, QueueEntry>;
  explicit WaitingLine(Context& context) : context_(context) {}

  const Line& all() const { return line_; }
  bool contains(QueueKey key) const { return line_.contains(key); }
  const QueueEntry* find(QueueKey key) const;  // null where nothing stands there
  const QueueEntry& at(QueueKey key) const { return line_.at(key); }

  void add(const ActorRecord& actor) { line_up(key_of(actor)).members.push_back(actor.id()); }
  void add(const GroupRecord& group) { line_up(key_of(group)).group = group.id(); }
  void remove(const ActorRecord& actor);
  void remove(const GroupRecord& group) { leave(line_.find(key_of(group))); }
  // Something may fit now that did not before: all that waits is looked at.
  void came_room() { pass_needed_ = room_came_ = true; }

  bool pass_needed() const { return pass_needed_; }
  // Whether room came, since which all are to be tried; else only what has just lined up.
  bool begin_pass() {
    pass_needed_ = false;
    return std::exchange(room_came_, false);
  }
  std::set<QueueKey> take_fresh() { return std::exchange(fresh_, {}); }
  void set_demand(QueueKey key, Demand demand);
  const Demands& demands() const { return demands_; }
  void end_pass() {
    std::erase_if(demands_, [](const auto& entry) { return entry.second.empty(); });
  }

  std::optional<QueueKey> turn() const { return turn_; }
  void end_turn() { turn_.reset(); }
  // `key` is the first in line that the nodes could hold, on `room` of them if they were idle.
  // While its turn lasts, the same nodes are kept for it, unless one of them is not in `view` any
  // more.
  void consider_turn(QueueKey key, KeptFree room, const ClusterView& view);
  // What is kept free for somebody who stands before `key`.
  const KeptFree* kept_free_before(QueueKey key) const;
  // Nobody has a turn before `entry` has waited for HeadConfig::turn_patience.
  void look_again_after_patience(QueueKey key);
  void timer();

  std::optional<std::string> broken_invariant() const;

 private:
  QueueEntry& line_up(QueueKey key);
  void leave(Line::iterator entry);
  void look_again_at(TimePoint at);

  Context& context_;
  Line line_;
  Demands demands_;
  std::set<QueueKey> fresh_;                // lined up since the last pass
  std::optional<QueueKey> turn_;            // whose turn it is: room is kept free for it
  std::optional<TimePoint> look_again_at_;  // the next kLine timer that counts
  bool pass_needed_ = false;
  bool room_came_ = false;
};

}  // namespace troupe::scheduler
