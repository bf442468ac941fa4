#pragma once
// What is known of supervisors: records, members, budgets of restarts. What a failure leads to is
// decided in supervision.h.

#include "scheduler/control/journal_room.h"
#include "scheduler/control/table.h"

namespace troupe::scheduler {

class Supervisors : public Table<SupervisorId, SupervisorRecord> {
 public:
  Supervisors(Context& context, JournalRoom& room) : Table(context), room_(room) {}

  // Of a supervisor whose owner is as `owner` says, or an actor under one, that is to be created.
  Status check_new(const wire::SupervisorSpec& spec, Status owner) const;
  Status check_member(const wire::ActorSpec& spec) const;
  bool is_within(SupervisorId inner, SupervisorId outer) const;
  bool has_ended(SupervisorId id) const;  // or is not known

  void create(wire::SupervisorSpec spec, std::string owner_name);
  // An actor is to be created: its supervisor, where it has one, decides about its restarts.
  void join(wire::ActorSpec& spec);
  bool leave(const ActorRecord& actor);  // false: it has none
  // Whether the budget allows a restart for one more failure. Those of one apply(), as of actors
  // that die with their node, are one.
  bool may_restart_members(const SupervisorRecord& supervisor);
  void failed(const SupervisorRecord& supervisor, const Status& cause);
  // The actors that its strategy restarts where the member with this order fails. Supervisors among
  // them begin anew, with all of their budget.
  std::vector<ActorId> restart_members(const SupervisorRecord& supervisor, std::uint64_t failed);
  // Who waits at its barrier: restarted together, when the last of their processes is gone.
  void joins_barrier(SupervisorId barrier, ActorId id) {
    records_.at(barrier).restarting.insert(id);
  }
  void leaves_barrier(SupervisorId barrier, ActorId id);
  std::set<ActorId> open_barrier(const SupervisorRecord& supervisor);
  // With all of its members, which are to be ended.
  void ended(const SupervisorRecord& supervisor, Status why);

  void end_apply();
  using Table::replay;
  Status replay(const SupervisorCreated& delta);
  Status replay(const SupervisorChanged& delta);
  void resume();
  // Where the journal has an actor under a supervisor: it is a member, and at its barrier.
  void resume_member(const ActorRecord& actor);
  std::optional<std::string> broken_invariant() const;

 private:
  void restart_member(const wire::SupervisorMember& member, std::vector<ActorId>& actors);

  JournalRoom& room_;
  std::set<SupervisorId> counted_;  // that have counted a failure, in the apply() that runs
};

}  // namespace troupe::scheduler
