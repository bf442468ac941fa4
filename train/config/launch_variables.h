#pragma once
// The variables by which LLaMA-Factory, torchrun, accelerate, Axolotl, DeepSpeed, MPI and SLURM
// tell the processes that they start what these are: one table.
//
// Each of them is obeyed, has no effect and the start of the run says why, or is refused by name
// with the way out. A process that one of these launchers started as one of several would train a
// run of its own beside the others': it is a node of one run (NNODES and NODE_RANK say the same as
// the launcher), or it is refused.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/environment.h"
#include "train/config/foreign_keys.h"
#include "train/config/launch.h"
#include "train/config/problems.h"

namespace troupe::train {

struct LaunchVariable {
  std::string name;
  std::string launcher;  // who sets it, for people
  Treatment treatment = Treatment::kInert;
  std::string note;     // what it means; why it has no effect; why it is refused, and the way out
  std::string example;  // "NAME=VALUE …", with which this row counts
  std::string nothing;  // of a refused one: the values "a|b" that ask for nothing
  std::string needs;    // the switch without which it has no effect
  bool accelerates = false;  // read_accelerate_environment() obeys or refuses it
};

// All rows, by launcher.
const std::vector<LaunchVariable>& launch_variables();

// How each variable that is set was treated.
struct LaunchVariableReport {
  std::vector<KeyFact> facts;
  // "the environment's A, B have no effect: …", one for each reason.
  std::vector<std::string> notices;
};
// Refused ones become problems.
LaunchVariableReport judge_launch_variables(const Environment& environment, Problems& problems);

// A problem where a launcher started this process as one of several that are not the nodes of one
// run. `launch`: complete, with what accelerate's file says.
void check_one_of_several(const Environment& environment, const LaunchEnvironment& launch,
                          Problems& problems);

}  // namespace troupe::train
