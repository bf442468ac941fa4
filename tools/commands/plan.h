#pragma once

#include <functional>

#include "tools/commands/command.h"
#include "train/config/load.h"
#include "train/config/problems.h"
#include "train/sharding/memory_fit.h"
#include "train/trainer/driver.h"

namespace troupe::tools {

// `troupe plan CONFIG [key=value …]`: what a run will need, before it is started.
void add_plan_command(CLI::App& app, CommandContext& context);

// The processors that this process may use: its affinity, or what the control group grants.
int cores_here(FileSystem& files);
// This machine's memory, or what the control group leaves of it, as the trainer's checks want it.
Result<train::NodeMemory> memory_here(FileSystem& files);
// The GPUs that trainers on this machine would see. kUnavailable: no library, driver or device, and
// the way out.
Result<train::GpusHere> gpus_here(const Environment& environment);
// A configuration that was found good in all that can be known before a run is started.
struct CheckedRun {
  train::LoadedConfig loaded;
  train::RunContents contents;  // of node 0; others read none
};
// The one check of `plan`, `train` and `train --explain`: train::load_train_config() and
// train::read_contents(), with the problems of both together. Where nothing says how many trainers
// there are, and they may be on GPUs of this machine, there are as many as GPUs.
using OnProblems = std::function<void(const train::LoadedConfig&, const train::Problems&)>;
struct LoadRunOptions {
  // The run is to begin: what output_dir holds may forbid it.
  bool begins = false;
  // Of a job that was queued again. It goes on from what its first start left: from the newest
  // checkpoint of output_dir, where there is one, whatever overwrite_output_dir and
  // resume_from_checkpoint say.
  bool requeued = false;
  OnProblems on_problems = {};  // as train::LoadOptions has it
  bool fetches = false;         // what is named on a hub and not in its cache is downloaded
};
Result<CheckedRun> load_run(const std::vector<std::string>& arguments, CommandContext& context,
                            const LoadRunOptions& how = {});

}  // namespace troupe::tools
