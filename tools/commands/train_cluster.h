#pragma once
// Where `troupe train` trains: a cluster of its own, several machines that were told each other's
// address (NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT), or a running cluster (--address).

#include "tools/commands/command.h"
#include "train/config/load.h"
#include "train/report/progress.h"
#include "train/trainer/driver.h"

namespace troupe::tools {

// Brings up or joins what the configuration and the environment ask for. With several nodes it
// waits until all have joined; kDeadlineExceeded says how many are missing, kCancelled when
// `interrupt_fd` becomes readable meanwhile.
Result<train::TrainingCluster> make_training_cluster(CommandContext& context,
                                                     const train::LoadedConfig& loaded,
                                                     int trainers, int interrupt_fd,
                                                     train::ProgressOutput& output);

// NODE_RANK > 0: this machine is a worker node of the run until it ends.
Status join_as_worker(CommandContext& context, const train::LoadedConfig& loaded);

}  // namespace troupe::tools
