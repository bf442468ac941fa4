#pragma once
// What became of every key: the rows of `troupe train --explain`.

#include <string>
#include <vector>

#include "train/config/keys.h"
#include "train/config/load.h"
#include "train/config/problems.h"

namespace troupe::train {

struct ExplainRow {
  std::string key;
  std::string value;   // as it is used; "(hidden)" for credentials
  std::string origin;  // "default", "x.yaml:12", "command line", "flag"
  Treatment treatment = Treatment::kImplemented;
  std::string note;  // the meaning, or why it has no effect
  bool given = false;
};

// One row for each key of the table, in its order; after them rows for what follows: the world size
// and the variables of the environment that were read, and one for each key of DeepSpeed's, FSDP's
// and accelerate's files.
std::vector<ExplainRow> explain(const LoadedConfig& loaded);

// The same for a configuration with problems: the rows of keys that are wrong say so, and show the
// value that was given.
std::vector<ExplainRow> explain_refused(const LoadedConfig& loaded, const Problems& problems);

// The rows as a table for a terminal; only the given keys unless `all`.
std::string explain_table(const std::vector<ExplainRow>& rows, bool all);
// [{"key", "value", "origin", "treatment", "note", "given"}]
json::Value explain_json(const std::vector<ExplainRow>& rows);

}  // namespace troupe::train
