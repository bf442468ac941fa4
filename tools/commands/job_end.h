#pragma once
// Jobs for those who name one, and wait for its end.

#include <memory>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "scheduler/client/head_client.h"
#include "tools/commands/cluster_options.h"

namespace troupe::tools {

// The job whose name is `word`, or whose id begins with it (four digits at least). One that has not
// ended goes before those that have. kNotFound; kInvalidArgument where several are meant.
Result<wire::JobInfo> find_job(ClusterConnection& cluster, const std::string& word);

// "exit code 3", "killed by signal 9 (SIGKILL)", or why; of a job that has ended.
std::string how_it_ended(const wire::JobInfo& job);
// The first line of such a sentence, without what it was about to quote.
std::string in_short(const std::string& how);

// What --grace gives; 10 s where it does not. kInvalidArgument when negative or more than a day.
Result<Duration> grace_option(const std::optional<double>& seconds);

// Watches a job's program. Waiting ends when the job has, or nobody knows any more.
class JobEnd {
 public:
  // `head` outlives it. A job without a program never ends here.
  JobEnd(scheduler::HeadClient& head, const wire::JobInfo& job);
  ~JobEnd();
  JobEnd(const JobEnd&) = delete;
  JobEnd& operator=(const JobEnd&) = delete;

  // False: not by then, or give_up() was called.
  bool wait(Deadline deadline);
  // Lets wait() return. Any thread.
  void give_up();
  // What the program waits for as long as it does; empty: it waits no more.
  std::string pending_why() const;
  // Not ok: the head was away for so long that nobody knows.
  Status status() const;
  // The job as the head knows it now.
  Result<wire::JobInfo> info(Deadline deadline) const;

 private:
  struct State;
  scheduler::HeadClient& head_;
  const JobId job_id_;
  std::shared_ptr<State> state_;
  scheduler::HeadClient::WatchId watch_;
};

}  // namespace troupe::tools
