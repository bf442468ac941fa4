#pragma once
// Which files of a data set's repository are a split: as the `datasets` library decides it, by the
// `configs` of README.md, else by the files' names.

#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::train::hub {

struct DatasetSelection {
  std::string subset;                   // config_name; empty: the default one
  std::string split = "train";          // without a slice
  std::string folder;                   // data_dir
  std::vector<std::string> data_files;  // names or patterns; these alone
};

// Paths in the repository, sorted. `readme`: the text of README.md; empty: there is none.
// kUnsupported: a script; kNotFound: no such split.
Result<std::vector<std::string>> dataset_files(const std::vector<std::string>& all,
                                               const std::string& readme,
                                               const DatasetSelection& selection);

}  // namespace troupe::train::hub
