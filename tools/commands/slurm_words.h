#pragma once
// The words behind `troupe slurm`: sbatch's options and our own; the rest is the training's, or the
// program's.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tools/commands/slurm_script.h"

namespace troupe::tools {

struct SlurmRequest {
  std::map<std::string, std::string> given;  // sbatch's options, by name
  std::vector<SlurmDirective> more;          // --sbatch
  std::string file;                          // --output
  bool submit = false;
  bool json = false;
  std::vector<std::string> train;    // behind `troupe train`; empty: a program
  std::vector<std::string> program;  // behind `troupe run`
};

// kInvalidArgument names the word that is wrong, or says that there is nothing to run.
Result<SlurmRequest> read_slurm_words(std::vector<std::string> words);

// The value of `--flag`: a whole number from 1 to `most`.
Result<std::int64_t> whole_number_option(const std::string& flag, const std::string& text,
                                         std::int64_t most);

}  // namespace troupe::tools
