#pragma once
// The text of a SLURM job's script.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::tools {

// One line "#SBATCH --name=value", or "#SBATCH --name" where the value is empty.
struct SlurmDirective {
  std::string name;
  std::string value;
};

struct SlurmJob {
  std::vector<SlurmDirective> directives;  // at most one of a name
  std::string working_directory;           // where the command's relative paths begin
  std::map<std::string, std::string> variables;
  std::vector<std::string> unset;    // variables that the submitting shell may have, besides
  std::vector<std::string> command;  // what srun starts on every node: the program, its arguments
  // An argument that is added where the job was queued again; empty: none.
  std::string requeued_argument;
};

// The directive of that name gets the value, or is added.
void set_directive(SlurmJob& job, const std::string& name, const std::string& value);
// Null where there is none.
const SlurmDirective* find_directive(const SlurmJob& job, std::string_view name);

// kInvalidArgument for a directive with a line break, which no directive can hold.
Result<std::string> slurm_script(const SlurmJob& job);

}  // namespace troupe::tools
