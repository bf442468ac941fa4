#pragma once
// What is known of nodes: who is there (nodes.cpp), what its leases and bundles take of it
// (leases.cpp), whether it is heard (heartbeats.cpp). What follows for actors and groups where one
// joins or is lost is membership.h's.

#include "scheduler/control/connections.h"
#include "scheduler/control/waiting_line.h"
#include "scheduler/policy/labels.h"

namespace troupe::scheduler {

// A node that is dead by now.
struct LostNode {
  const NodeRecord& node;
  std::string why;
  Duration restart_delay{};  // how much later its actors start elsewhere
};

class Nodes : public Table<NodeId, NodeRecord> {
 public:
  Nodes(Context& context, Connections& connections, WaitingLine& line);

  // The nodes that take actors, as placement sees them.
  const ClusterView& view() const { return view_; }
  // The node at the other end; null where it is none, or has another connection by now.
  const NodeRecord* of_peer(PeerId peer) const;
  // Whether a node that does not take anything now may again.
  bool awaits_nodes() const;
  static wire::NodeInfo visible(const NodeRecord& node);

  const NodeRecord& joined(PeerId peer, const wire::NodeInfo& info);
  void disconnected(const NodeRecord& node);
  void awaits_return(const NodeRecord& node);
  void drains(const NodeRecord& node);
  void died(const NodeRecord& node);
  void forget_old();
  // Those of which only what is free changed, in the apply() that runs: told, not journalled.
  std::set<NodeId> take_resized() { return std::exchange(resized_, {}); }

  void on(PeerId peer, wire::Heartbeat& message);
  void on(PeerId peer, wire::NodePackages& message);
  void on(PeerId peer, wire::FindPackage& message);
  // That a node lacks the package, and whether it can have it from another one; else nothing.
  std::string why_package_is_awaited(NodeId id, const wire::Package& package) const;
  // Whatever a node says, it is there. Only a heartbeat renews its lease.
  void spoke(PeerId peer);
  void renew_lease(const NodeRecord& node) { edit(node).last_heard = context_.now(); }
  std::optional<LostNode> judge(const Timer& timer);
  // The head stood still: no part of the time in which nodes may come back.
  void excuse_away(Duration pause);

  // From the node, or from the bundle on it. False, and nothing taken, where that has not so much.
  bool keep_lease(const NodeRecord& node, const LeaseKey& key, const wire::Resources& amount,
                  const BundleKey* bundle);
  // The same of what was found to fit.
  void take_lease(const NodeRecord& node, const LeaseKey& key, const wire::Resources& amount,
                  const BundleKey* bundle);
  void free_lease(const NodeRecord& node, const LeaseKey& key);
  // Of what runs there whatever CPUs are free: where others have those that it had lent, without
  // them. False where something else is lacking.
  bool keep_running(const NodeRecord& node, const LeaseKey& key, const wire::Resources& amount);
  // The holder only waits, and others may have its CPUs.
  void lend_cpus(const NodeRecord& node, const LeaseKey& key);
  // It goes on, with those that are free; it has the others as soon as they are.
  void take_back_cpus(const NodeRecord& node, const LeaseKey& key);
  // What `inside` hold on the node already is inside of the bundle then.
  void take_bundle(const NodeRecord& node, const BundleKey& key, const wire::Resources& amount,
                   const std::vector<LeaseKey>& inside);
  // What its actors hold stays a lease of the node.
  void free_bundle(const NodeRecord& node, const BundleKey& key);
  // The node says anew what runs on it: its leases so far, which are dropped.
  struct Leases {
    std::map<LeaseKey, wire::Resources> amounts;
    std::map<LeaseKey, BundleKey> inside;
  };
  Leases take_leases(const NodeRecord& node);
  // What it has, from now on. What of it is held goes when it comes free (shrink()).
  struct Resized {
    bool grew = false;
    std::string lost;  // "2 GPU, 1 CPU"; empty: nothing
  };
  Resized resize(const NodeRecord& node, const wire::Resources& total);
  void shrink(const NodeRecord& node);
  void is_resized(const NodeRecord& node);
  void refresh(const NodeRecord& node);

  // Processes of actors that this head knows nothing of, until they are gone: the highest
  // generation of each. Their actors may be created yet, by a driver that asks once more.
  void note_stray(const LeaseKey& key) {
    strays_[key.first] = std::max(strays_[key.first], key.second);
  }
  std::uint64_t stray_generation(ActorId id) const;

  Status replay(const NodeKnown& delta) {
    records_[delta.node.node_id].info = delta.node;
    return {};
  }
  using Table::replay;
  void resume();
  void restore_bundle(const NodeRecord& node, const BundleKey& key, const wire::Resources& amount);

  std::optional<std::string> broken_invariant() const;

 private:
  static bool has_package(const NodeRecord& node, const wire::Package& package);
  std::string unique_name(const std::string& wanted, NodeId node_id) const;
  // Takes the labels that the head numbers out of the node's; those of `before` it had already.
  void number(NodeRecord& node, const Labels& before);
  // Whether there was a free number for a label that waits for one.
  bool give_numbers(NodeRecord& node);
  // What a node that died had goes to those that wait, the first to have joined first.
  void pass_numbers_on();
  void look_at(NodeRecord& node, TimePoint at);
  // It has until then to come back.
  void await(NodeRecord& node, TimePoint until);
  void suspect(NodeRecord& node, bool suspected);
  void forget_stray(const LeaseKey& key);
  static void give_back_cpus(NodeRecord& node);
  std::optional<std::string> broken_leases(const NodeRecord& node) const;
  static std::optional<std::string> broken_bundles(const NodeRecord& node);

  Connections& connections_;
  WaitingLine& line_;
  double suspicion_deviations_;  // what HeadConfig::suspicion_phi comes to
  ClusterView view_;
  std::set<NodeId> resized_;
  std::map<ActorId, std::uint64_t> strays_;
};

}  // namespace troupe::scheduler
