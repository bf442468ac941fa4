#pragma once
// Placement groups: what is known of them, and how they are reserved: in two phases, on all of
// their nodes or on none; lost with a node and reserved again; removed.

#include "scheduler/control/jobs.h"

namespace troupe::scheduler {

class Groups : public Table<GroupId, GroupRecord> {
 public:
  Groups(Context& context, JournalRoom& room, Connections& connections, WaitingLine& line,
         Nodes& nodes, Actors& actors, const Jobs& jobs)
      : Table(context),
        room_(room),
        connections_(connections),
        line_(line),
        nodes_(nodes),
        actors_(actors),
        jobs_(jobs) {}

  Status on(PeerId peer, wire::CreatePlacementGroup& message);
  Status on(PeerId peer, wire::RemovePlacementGroup& message);
  void on(PeerId peer, wire::BundlesPrepared& message);
  void timer(const Timer& timer);
  // The one that was not removed; null where there is none.
  const GroupRecord* named(const std::string& name) const;

  // What it needs: each bundle with its place before, and what its actors hold there still.
  std::vector<Bundle> bundles_of(const GroupRecord& group) const;
  // The bundle that has room for the actor besides what `used` takes, which it then takes, too;
  // `whole`: as if nothing ran in the group. The one it was in before (`last`) is preferred.
  using BundleUse = std::map<BundleKey, wire::Resources>;
  std::optional<std::int32_t> bundle_for(const wire::ActorSpec& spec, std::int32_t last,
                                         const GroupRecord& group, BundleUse& used,
                                         bool whole) const;
  // The node that holds a bundle of a group that is reserved.
  const NodeRecord& holder(const GroupRecord& group, std::size_t index) const {
    return nodes_.at(group.info.bundles[index].node_id);
  }

  // First phase: the room is taken here at once, and the nodes are asked. One node a bundle.
  void prepare(const GroupRecord& group, const std::vector<NodeId>& nodes);
  // It is absent as a whole, and waits to be reserved again, in its old place in line.
  void lose(const GroupRecord& group, const std::string& why);
  // Those that are being reserved on a node, or (`created_too`) that are reserved there as well.
  void lose_on(const NodeRecord& node, bool created_too, const std::string& why);
  void remove(const GroupRecord& group, const std::string& reason);
  void remove_all(const std::vector<GroupId>& ids, const std::string& reason);
  void end_apply();

  using Table::replay;
  Status replay(const GroupCreated& delta);
  Status replay(const GroupChanged& delta);
  void resume();
  std::optional<std::string> broken_invariant() const;

 private:
  Status check_new(const wire::PlacementGroupSpec& spec) const;
  void enqueue(GroupRecord& group);
  void reserve(const GroupRecord& group);
  void commit(GroupRecord& group);
  void release(GroupRecord& group);
  void unreserve(GroupRecord& group, const char* event, const std::string& why, Duration wait);
  void waits_again(GroupRecord& group);

  JournalRoom& room_;
  Connections& connections_;
  WaitingLine& line_;
  Nodes& nodes_;
  Actors& actors_;
  const Jobs& jobs_;
  std::map<std::string, GroupId, std::less<>> names_;  // of those not removed
};

}  // namespace troupe::scheduler
