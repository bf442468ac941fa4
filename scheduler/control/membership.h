#pragma once
// Nodes that join, come back with what runs on them, change, are drained, leave or are lost, and
// the end of the whole cluster: what follows for the actors and placement groups there.

#include "scheduler/control/supervision.h"

namespace troupe::scheduler {

class Membership {
 public:
  Membership(Context& context, WaitingLine& line, Nodes& nodes, Actors& actors, Groups& groups,
             Supervision& supervision)
      : context_(context),
        line_(line),
        nodes_(nodes),
        actors_(actors),
        groups_(groups),
        supervision_(supervision) {}

  void on(PeerId peer, wire::RegisterNode& message);
  void on(PeerId peer, wire::NodeUpdate& message);
  void on(PeerId peer, wire::NodeNote& message);
  Status on(PeerId peer, wire::DrainNode& message);
  Status on(PeerId peer, wire::StopCluster& message);
  void peer_closed(PeerId peer);
  void node_gone(const NodeGone& gone);
  void timer(const Timer& timer);
  // The head ends where the cluster was told to stop and all nodes have, or their time is over.
  void end_when_stopped();

 private:
  Status check_node(const wire::RegisterNode& message);
  void reconcile(const NodeRecord& node, const wire::RegisterNode& message,
                 wire::RegisterNodeReply& answer);
  void take_report(const NodeRecord& node, const wire::RegisterNode& message,
                   wire::RegisterNodeReply& answer);
  void keep_bundles_that_fit(const NodeRecord& node, const wire::RegisterNode& message);
  void was_lost(const NodeRecord& node, const ActorRecord& actor,
                const wire::RegisterNode& message);
  bool is_latest(const ActorRecord& actor, NodeId node_id, std::uint64_t generation) const;
  void resize(const NodeRecord& node, const wire::Resources& total);
  void drain(const NodeRecord& node, const std::string& reason,
             std::optional<std::int64_t> grace_ms);
  void declare_dead(const NodeRecord& node, const char* event, const std::string& why,
                    Duration restart_delay);

  Context& context_;
  WaitingLine& line_;
  Nodes& nodes_;
  Actors& actors_;
  Groups& groups_;
  Supervision& supervision_;
  TimePoint stop_by_{};
  bool ended_ = false;
};

}  // namespace troupe::scheduler
