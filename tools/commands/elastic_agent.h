#pragma once
// Runs a program in ranks on several machines, as torchrun's agents do together: all begin with the
// same world, one that fails ends the others, and all begin again while restarts are left.
//
// Here one agent decides for all machines: a failure anywhere is told to every rank at once, and
// restarts are counted for the whole run (torchrun counts them by machine, and the others learn of
// a failure in their next collective).

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/process/output.h"
#include "runtime/wire/types.h"
#include "scheduler/client/output_follower.h"
#include "tools/commands/command.h"
#include "tools/commands/run_machines.h"
#include "tools/ranks/console.h"
#include "tools/ranks/console_end.h"
#include "tools/ranks/failure_report.h"
#include "tools/ranks/rank_environment.h"
#include "tools/ranks/run_options.h"

namespace troupe::tools {

class ElasticAgent {
 public:
  // All outlive it; `console` stands behind the context's streams. `log_dir`: of this run,
  // absolute, on every machine.
  ElasticAgent(CommandContext& context, Console& console, RunMachines& machines,
               const RunOptions& options, std::string log_dir);
  ~ElasticAgent();
  ElasticAgent(const ElasticAgent&) = delete;
  ElasticAgent& operator=(const ElasticAgent&) = delete;

  // Until all ranks have ended with 0, restarts are used up, or a signal ended it: the exit code.
  // It has reported what failed. Called by one thread, which is no loop's.
  Result<int> run();
  // SIGINT, SIGTERM, SIGHUP, SIGQUIT end the run, the second one at once; others are passed on to
  // the ranks. Any thread.
  void on_signal(int signal);

 private:
  struct Rank {
    RankPlace place;
    RunMachine machine;
    ActorId id;
    std::string error_file;
    std::string prefix;       // of lines that are teed
    process::LogTail errors;  // of its standard error
    // Whether the last thing that it said on standard output, and on error, was no whole line.
    bool open_line[2] = {false, false};
    std::int64_t pid = 0;
    bool ended = false;
    bool failed = false;
    FailedRank failure;  // where it failed
  };
  // An interpreter that may become a rank of the next attempt on this machine.
  struct Standby {
    std::string pipe;
    std::int64_t pid = 0;
    bool taken = false;  // it is a rank of the attempt that is being prepared
    bool ended = false;
    Status death;
    std::vector<wire::OutputLine> early;  // said before the attempt's ranks were known
  };
  // How an attempt went.
  enum class Outcome { kSucceeded, kFailed, kNodesChanged, kSignalled };

  Result<Outcome> attempt();
  // The ranks of an attempt, and what is to be started for them.
  Result<std::vector<wire::ActorSpec>> prepare(const std::vector<RunMachine>& machines);
  Status start(const std::vector<RunMachine>& machines);
  Outcome watch(const std::vector<RunMachine>& machines);
  // Ends what still runs; until all have ended, or nobody can say any more.
  void stop_ranks(int signal);
  // As many as an attempt has ranks here, where a restart could use them.
  void start_standbys();
  // Makes one the rank with these words and variables; the rank's id is its then.
  bool take_standby(Rank& rank, const wire::ActorSpec& spec);
  void on_actor(ActorId id, const Result<wire::ActorInfo>& info);
  void on_line(const wire::OutputLine& line);
  void catch_up();
  void show(Rank& rank, const wire::OutputLine& line);
  void rank_ended(Rank& rank, const Status& death);
  bool all_ended() const;
  bool nodes_grew(const std::vector<RunMachine>& machines);
  std::vector<FailedRank> failures();
  void say(const std::string& line);
  void tell_parent(const FailedRank& root);
  int end_signal();  // 0: none came

  CommandContext& context_;
  Console& console_;
  RunMachines& machines_;
  const RunOptions& options_;
  const std::string log_dir_;
  std::string script_name_;
  int restarts_ = 0;
  int attempts_ = 0;
  // A rank of this machine, as the present attempt started it: the pattern of those that stand by.
  std::optional<wire::ActorSpec> example_;
  int ranks_here_ = 0;

  // Guards what follows.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<ActorId, std::unique_ptr<Rank>> ranks_;
  std::map<ActorId, Standby> standbys_;
  std::vector<ActorId> failed_order_;
  ConsoleEnd console_end_;
  bool nodes_changed_ = false;
  bool stopping_ = false;
  int end_signal_ = 0;
  int end_signals_ = 0;
  std::vector<scheduler::HeadClient::WatchId> watches_;
  std::unique_ptr<scheduler::OutputFollower> follower_;
};

// A run from its options to its exit code: machines, agent, logs. `address`: of a running cluster.
Result<int> run_ranks(CommandContext& context, const RunOptions& options,
                      const std::optional<std::string>& address);

}  // namespace troupe::tools
