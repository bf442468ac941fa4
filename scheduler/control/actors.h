#pragma once
// Actors: what is known of them, and their lives: created, started on a node, ready, gone,
// restarted within their budgets or moved, ended (actor_life.cpp); what they have saved
// (saved_state.cpp). Each step changes the record, the lease, the place in the line and the
// membership of a supervisor together. What a supervisor does where a member fails is decided in
// supervision.h.
//
// Names are unique among the living actors of a namespace: what a driver named when it connected,
// or its job's own. What an actor creates is in the actor's namespace. An actor that was told to
// end for good has lost its name already.
//
// An actor may be owned by another one as such, and then ends when that is dead for good; or by
// that one's process, and then ends with it, also where the owner comes back: what a process made
// for itself its successor makes anew.

#include "scheduler/control/nodes.h"
#include "scheduler/control/supervisors.h"

namespace troupe::scheduler {

class Actors : public Table<ActorId, ActorRecord> {
 public:
  Actors(Context& context, JournalRoom& room, Connections& connections, WaitingLine& line,
         Nodes& nodes, Supervisors& supervisors)
      : Table(context),
        room_(room),
        connections_(connections),
        line_(line),
        nodes_(nodes),
        supervisors_(supervisors) {}

  // --- names and owners --------------------------------------------------------------------------
  using Name = std::pair<std::string, std::string>;  // namespace, name
  static Name name_of(const wire::ActorSpec& spec) { return {spec.namespace_name, spec.name}; }
  static std::string describe_name(const Name& name);
  const ActorRecord* named(const Name& name) const;  // the living one, or null
  // The actor that has the name of `spec` already, or null. An error where that is not what would
  // be created.
  Result<const ActorRecord*> existing(const wire::ActorSpec& spec) const;
  // The living ones that an actor owns, and those that name a placement group.
  const std::set<ActorId>& owned_by(ActorId owner) const { return members_of(owned_, owner); }
  const std::set<ActorId>& in_group(GroupId group) const { return members_of(grouped_, group); }
  // Of something new: its owner lives, and has the process that asks.
  Status check_owner(ActorId owner, std::uint64_t generation, bool detached) const;
  bool lost_owner(ActorId owner, std::uint64_t generation, bool detached) const;
  std::string owner_name(ClientId owner, ActorId owner_actor) const;
  bool outlives_job(const ActorRecord& actor) const;  // detached, or owned by one that is

  // --- an actor's life ---------------------------------------------------------------------------
  // It waits for a place; those of a gang (a number, not 0) together.
  const ActorRecord& create(wire::ActorSpec spec, std::uint64_t gang);
  // On a node, and in a bundle there (-1: in none), that have room for it.
  void start_on(const ActorRecord& actor, const NodeRecord& node, std::int32_t bundle_index);
  void on(PeerId peer, wire::ActorStarted& message);
  void on(PeerId peer, wire::ActorReady& message);
  void on(PeerId peer, wire::ActorSaved& message);
  // It runs on a node that came back, as it should.
  void adopt(const ActorRecord& actor, const NodeRecord& node, const wire::RunningActor& running);
  void saw_generation(const ActorRecord& actor, std::uint64_t generation) {
    edit(actor).generation_seen = std::max(actor.generation_seen, generation);
  }
  // Its process only waits, and does without its CPUs; or does so no more.
  void lends(const ActorRecord& actor, bool does) {
    edit(actor).lending = does ? actor.info.generation : 0;
  }
  // The actor of a node's report, if the report is about its present process; else null.
  const ActorRecord* current(PeerId peer, ActorId actor_id, std::uint64_t generation) const;
  // The node says how the present process ended. The cause, as people read it.
  Status exited(const NodeRecord& node, const ActorRecord& actor, const wire::ActorExited& report);
  // The process group is gone, or its node is (then without its lease already). True where what
  // comes next is its supervisor's to decide.
  [[nodiscard]] bool process_gone(const ActorRecord& actor, Status& cause, Duration restart_delay);
  void back_off_over(const Timer& timer);
  // Its next process is no restart of the budget: its node is emptied, or never started this one.
  void will_move(const ActorRecord& actor) { edit(actor).moving = true; }
  void drained(const ActorRecord& actor);
  // Whether a next process may take over the lease that the actor holds.
  bool has_place(const ActorRecord& actor) const;
  void free_lease_of(const ActorRecord& actor);
  // The group that it names is not known any more: another one with that id is not its own.
  void leave_group(const ActorRecord& actor);
  void lost_lease(const ActorRecord& actor);  // with its node
  // For good, or for a next process. What has a process is told to its node.
  void end(const ActorRecord& actor, bool allow_restart, std::int64_t grace_ms,
           const std::string& reason, bool drain = false);
  void end_all(const std::vector<ActorId>& ids, const std::string& reason);
  void bury(const ActorRecord& actor, Status death);

  // --- restarts of several together --------------------------------------------------------------
  void join_barrier(const SupervisorRecord& supervisor, const ActorRecord& actor);
  void leave_barrier(const ActorRecord& actor);
  // If the last process of those that are restarted together is gone, all get their next ones.
  void release_barrier(SupervisorId id);

  // Whose process is gone, and its generation; 0: it is dead. In the order in which that happened.
  std::optional<std::pair<ActorId, std::uint64_t>> take_ended_owner();
  std::optional<JobId> take_changed_program();
  void settle_program(const ActorRecord& actor) { changed_programs_.insert(actor.spec.job_id); }
  bool has_lined_up(const ActorRecord& actor) const { return lined_up_.contains(actor.id()); }

  // As the table's; what the journal holds of each is counted anew.
  template <typename Tell>
  void journal_changes(Tell tell) {
    Table::journal_changes([&](const ActorRecord& actor) {
      room_.recount(edit(actor));
      tell(actor);
    });
  }
  void end_apply();
  using Table::replay;
  Status replay(ActorCreated& delta);
  Status replay(ActorChanged& delta);
  // Each is with its node, in the line, or waits for its next process.
  void resume();
  std::optional<std::string> broken_invariant() const;

 private:
  template <typename Key>
  using Members = std::map<Key, std::set<ActorId>>;
  template <typename Key>
  static const std::set<ActorId>& members_of(const Members<Key>& all, const Key& key) {
    static const std::set<ActorId> kNone;
    const auto found = all.find(key);
    return found == all.end() ? kNone : found->second;
  }
  void changed(const ActorRecord& actor);
  void index(const ActorRecord& actor);
  void release_name(const ActorRecord& actor);
  void enqueue(ActorRecord& actor, std::uint64_t order);
  void dequeue(ActorRecord& actor);
  void runs(ActorRecord& actor);
  void await_restart(ActorRecord& actor, const Status& cause, std::optional<Duration> wait,
                     const char* event = "actor_restarting");
  void restart_at(ActorRecord& actor, TimePoint at);
  void resume(ActorRecord& actor);
  bool lost_its_state(const NodeRecord& node, const ActorRecord& actor,
                      const wire::ActorExited& report) const;
  void lose_state(ActorRecord& actor, std::uint64_t generation);
  void tell_lost_state(ActorRecord& actor, std::uint64_t generation);
  void name_saved_state(ActorRecord& actor, wire::StartActor& start);

  JournalRoom& room_;
  Connections& connections_;
  WaitingLine& line_;
  Nodes& nodes_;
  Supervisors& supervisors_;
  std::map<Name, ActorId> living_names_;
  Members<ActorId> owned_;
  Members<GroupId> grouped_;
  std::deque<std::pair<ActorId, std::uint64_t>> ended_owners_;
  std::set<JobId> changed_programs_;  // the jobs whose programs changed
  std::set<ActorId> lined_up_;        // in the apply() that runs
};

}  // namespace troupe::scheduler
