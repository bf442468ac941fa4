#pragma once
// What a training left behind, compared with another one's: weights by their hash, steps to the
// last bit.

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/report/recovery_table.h"

namespace troupe::tools {

struct TrainedRun {
  std::string weights_sha256;  // over all files of the final model, by name
  std::string steps;           // steps.jsonl without timings
  std::vector<train::Recovery> recoveries;
  std::vector<train::RunEvent> events;
  std::int64_t step_count = 0;
};
// kNotFound where the run did not finish.
Result<TrainedRun> read_trained_run(FileSystem& files, const std::string& output_dir);

// Nothing where they are equal; else what differs.
std::optional<std::string> difference(const TrainedRun& run, const TrainedRun& expected);

}  // namespace troupe::tools
