#pragma once
// Where `troupe train` trains: a cluster of its own, several machines that were told each other's
// address (NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT), or a running cluster (--address).

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/commands/command.h"
#include "tools/commands/remote_hosts.h"
#include "tools/ranks/run_options.h"
#include "train/config/load.h"
#include "train/report/progress.h"
#include "train/trainer/driver.h"

namespace troupe::tools {

// The hosts of a run that starts them itself, over ssh.
struct HostsOfRun {
  std::vector<RunHost> hosts;
  // This machine among them, which is the first then. Nothing: it leads, and has no trainers.
  std::optional<std::size_t> own;
  std::string address;                  // of this machine, where the others reach it
  std::unique_ptr<RemoteHosts> remote;  // while the run's cluster is there

  bool starts_others() const { return hosts.size() > 1 || !own; }
};

// The flags of hosts among the arguments, which lose them: --hostfile FILE, --include and --exclude
// (deepspeed's filters), --hosts HOST:SLOT,… . Null: there are none.
Result<std::unique_ptr<HostsOfRun>> take_hosts(CommandContext& context,
                                               std::vector<std::string>& arguments);
// The variables that a launcher would set for the run of these hosts.
std::map<std::string, std::string> launch_variables(const HostsOfRun& hosts);

// Brings up or joins what the configuration and the environment ask for. With several nodes it
// waits until all have joined; kDeadlineExceeded says how many are missing, kCancelled when
// `interrupt_fd` becomes readable meanwhile. With `hosts`, which outlive the cluster, the other
// machines are started from here.
Result<train::TrainingCluster> make_training_cluster(CommandContext& context,
                                                     const train::LoadedConfig& loaded,
                                                     int trainers, int interrupt_fd,
                                                     train::ProgressOutput& output,
                                                     HostsOfRun* hosts = nullptr);

// Whether this machine joins the run that another one leads: NODE_RANK > 0, or RDZV_ID and another
// machine's MASTER_ADDR.
Result<bool> joins_another(CommandContext& context, const train::LoadedConfig& loaded);
// Of such a machine: it is a worker node of the run until it ends; then the run's exit code.
// `head_gets_signals`: as JoinOptions has it.
Result<int> join_as_worker(CommandContext& context, const train::LoadedConfig& loaded,
                           bool head_gets_signals = false);

}  // namespace troupe::tools
