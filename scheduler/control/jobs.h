#pragma once
// Jobs: programs that were submitted to run on the cluster as drivers. A job's program stands among
// the actors, so that room, the line, explanations and the end of its process group are the actors'
// own; its end is the job's, and the end of everything in it (ownership.cpp).

#include "scheduler/control/actors.h"

namespace troupe::scheduler {

class Jobs : public Table<JobId, JobRecord> {
 public:
  Jobs(Context& context, JournalRoom& room, const Connections& connections, Actors& actors)
      : Table(context), room_(room), connections_(connections), actors_(actors) {}

  // Makes the client's job, and that job's priority where it has none of its own, those of
  // something that it creates. kFailedPrecondition where the job has ended.
  Status join(const ClientRecord& client, JobId& job_id, std::int32_t& priority) const;
  Status check_runs(JobId job_id, const std::string& kind_of_client) const;
  // A program that belongs to a client, as its actors do: it may stand in a placement group and a
  // gang. Who runs several beside each other decides itself what the end of one means for others.
  static Status check_clients_program(const wire::ActorSpec& spec);

  Status check_new(const wire::ActorSpec& driver) const;
  // As it would be created, for counting and for creating it.
  wire::JobInfo describe_new(const wire::SubmitJob& message) const;
  void submit(const wire::JobInfo& info);
  Status on(PeerId peer, wire::StopJob& message);
  // Follows what has become of the programs, up to the first job that has ended by it: what is in
  // the job is then to be ended. Null: there is none.
  const JobRecord* settle();
  void end_apply() {
    forget_old(context_.config().ended_jobs_max, [](const JobRecord&) { return true; });
  }

  using Table::replay;
  Status replay(const JobKnown& delta);
  // The journal may end in the middle of what was decided together.
  void resume();
  std::optional<std::string> broken_invariant() const;

 private:
  Status no_such_job(JobId id) const;
  void record(const JobRecord& job) { context_.record(job.delta()); }
  void started(JobRecord& job, const ActorRecord& driver);
  void ended(JobRecord& job, const ActorRecord& driver);
  // The program of a job that goes on; else null.
  const ActorRecord* program_of(const JobRecord& job) const;

  JournalRoom& room_;
  const Connections& connections_;
  Actors& actors_;
};

}  // namespace troupe::scheduler
