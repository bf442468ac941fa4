#pragma once
// Clients: what they ask for (clients.cpp), and what they are told: lists, watches and the updates
// that follow (watches.cpp).

#include <unordered_map>

#include "scheduler/control/placement.h"
#include "scheduler/control/supervision.h"

namespace troupe::scheduler {

// Which connections watch which things of one kind.
template <typename Id>
class Watches {
 public:
  void begin(PeerId peer, const Id& id) {
    watchers_[id].insert(peer);
    watched_[peer].insert(id);
  }
  void end(PeerId peer, const Id& id) {
    erase(watchers_, id, peer);
    erase(watched_, peer, id);
  }
  void drop(PeerId peer) {
    const auto dropped = watched_.extract(peer);
    if (dropped.empty()) return;
    for (const Id& id : dropped.mapped()) erase(watchers_, id, peer);
  }
  // Null: nobody watches it.
  const std::set<PeerId>* of(const Id& id) const {
    const auto found = watchers_.find(id);
    return found == watchers_.end() ? nullptr : &found->second;
  }
  std::size_t count() const {
    std::size_t count = 0;
    for (const auto& [id, peers] : watchers_) count += peers.size();
    return count;
  }

 private:
  template <typename Map, typename Key, typename Value>
  static void erase(Map& map, const Key& key, const Value& value) {
    const auto found = map.find(key);
    if (found != map.end() && found->second.erase(value) != 0 && found->second.empty()) {
      map.erase(found);
    }
  }
  std::unordered_map<Id, std::set<PeerId>> watchers_;
  std::unordered_map<PeerId, std::set<Id>> watched_;
};

class Clients {
 public:
  Clients(Context& context, JournalRoom& room, Connections& connections, const WaitingLine& line,
          Nodes& nodes, Supervisors& supervisors, Actors& actors, Jobs& jobs, Groups& groups,
          Supervision& supervision, const Placement& placement)
      : context_(context),
        room_(room),
        connections_(connections),
        line_(line),
        nodes_(nodes),
        supervisors_(supervisors),
        actors_(actors),
        jobs_(jobs),
        groups_(groups),
        supervision_(supervision),
        placement_(placement) {}

  void on(PeerId peer, wire::ClientHello& message);
  void on(PeerId peer, wire::CreateActors& message);
  Status on(PeerId peer, wire::KillActor& message);
  Status on(PeerId peer, wire::SubmitJob& message);
  Status on(PeerId peer, wire::EndJob& message);
  void on(PeerId peer, wire::ListNodes& message);
  void on(PeerId peer, wire::ListActors& message);
  void on(PeerId peer, wire::ListPlacementGroups& message);
  void on(PeerId peer, wire::ListSupervisors& message);
  void on(PeerId peer, wire::ListJobs& message);
  void on(PeerId peer, wire::ListEvents& message);
  Status on(PeerId peer, wire::ReportWork& message);
  void on(PeerId peer, wire::ListWork& message);
  Status on(PeerId peer, wire::LendCpus& message);
  Status on(PeerId peer, wire::WatchNodes& message);
  void on(PeerId peer, wire::WatchActor& message);
  Status on(PeerId peer, wire::WatchPlacementGroup& message);
  Status on(PeerId peer, wire::WatchSupervisor& message);
  void peer_closed(PeerId peer);
  void client_timer(const Timer& timer);
  void expectation_timer(const Timer& timer);
  // At the end of an apply(): one journal record and one update for each thing that changed,
  // whatever happened to it in between.
  void push_updates();
  std::size_t actor_watch_count() const { return watched_actors_.count(); }

 private:
  Status check_new(const std::vector<wire::ActorSpec>& specs, bool gang, bool no_wait) const;
  Status check_specs(const std::vector<wire::ActorSpec>& specs) const;
  wire::Package package_for(const wire::ActorSpec& spec) const;
  Status check_bundles(const std::vector<wire::ActorSpec>& specs, bool no_wait) const;
  void create(const ClientRecord& client, std::vector<wire::ActorSpec> specs, bool gang);
  // As others see it.
  wire::ActorInfo visible(const ActorRecord& actor) const;
  wire::PlacementGroupInfo visible(const GroupRecord& group) const;
  static wire::SupervisorInfo visible(const SupervisorRecord& supervisor);
  wire::JobInfo visible(const JobRecord& job) const;
  template <typename Update, typename Message, typename Record, typename Id>
  Status watch(PeerId peer, const Message& message, const Record& record, Watches<Id>& watches);
  void begin_watch(PeerId peer, std::uint64_t request_id, const ActorRecord& actor);
  template <typename Update, typename Record, typename Id>
  void tell_watchers(const Record& record, Watches<Id>& watches);
  void tell_owner_of_wait(const ActorRecord& actor);
  void push_nodes();
  void expect(PeerId peer, std::uint64_t request_id, ActorId id);
  void meet_expectations(const ActorRecord& actor);
  void end_expectations(ActorId id);

  Context& context_;
  JournalRoom& room_;
  Connections& connections_;
  const WaitingLine& line_;
  Nodes& nodes_;
  Supervisors& supervisors_;
  Actors& actors_;
  Jobs& jobs_;
  Groups& groups_;
  Supervision& supervision_;
  const Placement& placement_;
  Watches<ActorId> watched_actors_;
  Watches<GroupId> watched_groups_;
  Watches<SupervisorId> watched_supervisors_;
  // Watches of actors that nobody has created yet: a handle may arrive by another way before the
  // request to create its actor does. Not journalled: they are asked for again.
  struct Expectation {
    PeerId peer = 0;
    std::uint64_t request_id = 0;
    TimePoint until;
  };
  std::map<ActorId, std::vector<Expectation>> expected_;
};

}  // namespace troupe::scheduler
