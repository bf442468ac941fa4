#pragma once
// What follows when something ends: a process, a supervisor's budget (supervision.cpp); an owner,
// be it a client, an actor or its process; a job (ownership.cpp).
//
// Where a member's process is gone, its supervisor's strategy says who gets a new one: their
// processes are stopped, and when the last of them is gone (the barrier), all start anew, after the
// back-off. Where that was needed too often in the supervisor's window, it gives up: to its parent
// that is a failure of one member, whose restart is that of the whole group; where it has no
// parent, it and everything in it ends. A member that was ended on purpose has left.
//
// What an actor owns ends with it, or with its process. Ends go down the tree one level at a time:
// the children of an actor that is ended end when its process is gone.

#include "scheduler/control/groups.h"

namespace troupe::scheduler {

// Without state of its own.
struct Supervision {
  Context& context_;
  JournalRoom& room_;
  Connections& connections_;
  Nodes& nodes_;
  Supervisors& supervisors_;
  Actors& actors_;
  Jobs& jobs_;
  Groups& groups_;

  Status on(PeerId peer, wire::CreateSupervisor& message);
  Status on(PeerId peer, wire::EndSupervisor& message);
  void on(PeerId peer, wire::ActorExited& message);
  // The node says how the actor's present process ended.
  void process_exited(const NodeRecord& node, const ActorRecord& actor,
                      const wire::ActorExited& report);
  void process_gone(const ActorRecord& actor, Status cause, Duration restart_delay);

  void client_gone(const ClientRecord& client);
  void end_job(JobId job_id, const std::string& reason);
  // What the owners leave that died or lost their processes in this apply().
  void end_owned();
  // What the jobs leave whose programs ended in this apply(), and what follows from that.
  void settle();
  // After the actors: what a journal that breaks off left half done.
  void resume();
  std::optional<std::string> broken_invariant() const;

 private:
  void member_failed(SupervisorId id, std::uint64_t order, Status cause);
  void restart_members(const SupervisorRecord& supervisor, std::uint64_t failed,
                       const Status& cause);
  // For good, and with it every member.
  void end(const SupervisorRecord& supervisor, Status why);
  void end_all(const std::vector<SupervisorId>& ids, const std::string& reason);
  void end_all(const std::vector<SupervisorId>& supervisors, const std::vector<ActorId>& actors,
               const std::vector<GroupId>& groups, const std::string& reason);
  void resume_supervisors();
  void resume_jobs();
};

}  // namespace troupe::scheduler
