#pragma once
// A cluster in virtual time around the head's state machine: nodes, clients and their mistakes, all
// from one seed. After every event it checks what must always hold.

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "scheduler/control/head_state.h"

namespace troupe::scheduler::tests {

struct VirtualNode {
  NodeId id;
  wire::Resources total;  // that it has now
  wire::Resources whole;  // … and when nothing of it has failed
  PeerId peer = 0;
  bool alive = true;
  bool silent = false;  // its link is cut, both ways
  Duration slowness{};  // how much later than it should a node that hears nothing stops its actors
  TimePoint heard_of_head;
  TimePoint back_at;  // connection lost: when it registers again
  std::map<LeaseKey, wire::RunningActor> running;
  std::vector<LeaseKey> to_stop;
  std::map<GroupId, wire::Reservation> held;  // for placement groups, prepared or committed
  std::vector<wire::Reservation> asked;       // not answered yet
};

struct VirtualClient {
  ClientId id;
  PeerId peer = 0;
};

class World {
 public:
  explicit World(std::uint64_t seed);

  // One random thing happens.
  void step();
  // Nothing bad happens any more: everybody reports, time passes, until all is quiet.
  void settle();
  void restart_head();
  const HeadState& head() const { return *head_; }
  // Of everything that was decided.
  std::uint64_t trace_hash() const { return trace_hash_; }

  VirtualNode& join_node(std::int64_t cpus);
  VirtualClient& join_client();
  std::vector<ActorId> create(VirtualClient& client, std::size_t count, std::int64_t cpus,
                              bool gang, wire::RestartPolicy restart);
  GroupId create_group(VirtualClient& client);
  void create_supervisor(VirtualClient& client);
  void advance(Duration by);
  std::size_t unanswered() const { return expected_replies_.size(); }
  std::map<NodeId, VirtualNode>& nodes() { return nodes_; }

 private:
  void feed(Event event);
  void take(const Outcome& outcome);
  void deliver(PeerId peer, const wire::ControlMessage& message);
  void check();
  void check_processes() const;
  void check_gangs() const;
  void check_groups() const;
  void check_budgets() const;
  template <typename Owned>
  void owned_by_somebody(Owned& spec);
  void request(VirtualClient& client, wire::ControlMessage message, std::uint64_t id);
  void register_node(VirtualNode& node);
  void resize(VirtualNode& node, wire::Resources total);
  void close(PeerId peer);
  void node_acts(VirtualNode& node);
  void exit_of(VirtualNode& node, LeaseKey key);
  void answer_asked(VirtualNode& node);
  void heartbeats();
  void fence(VirtualNode& node) const;
  VirtualNode* any_node();
  VirtualClient* any_client();

  SeededRandom random_;
  HeadConfig config_;
  std::optional<HeadState> head_;
  Moment now_;
  PeerId next_peer_ = 1;
  std::uint64_t next_request_ = 1;
  std::map<NodeId, VirtualNode> nodes_;
  std::vector<VirtualClient> clients_;
  std::set<PeerId> open_peers_;
  std::map<std::uint64_t, PeerId> expected_replies_;
  std::vector<std::vector<std::byte>> journal_;
  std::vector<ActorId> actor_ids_;
  std::vector<GroupId> group_ids_;
  std::vector<SupervisorId> supervisor_ids_;
  std::map<ActorId, std::vector<std::int64_t>> restarts_;
  std::uint64_t trace_hash_ = 0;
};

}  // namespace troupe::scheduler::tests
