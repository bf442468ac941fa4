#pragma once
// What machines of a run need at the same path: all of them the model and the data files of a
// stream, that of rank 0 the folder of checkpoints.

#include <span>
#include <string>

#include "runtime/base/file_system.h"
#include "train/config/train_config.h"
#include "train/data/sample_stream.h"

namespace troupe::train {

// kNotFound with the path that this machine lacks, `node` and the way out. `config` has absolute
// paths. `goes_on`: from a checkpoint, which takes the model's place.
Status check_shared_paths(FileSystem& files, const TrainConfig& config, bool goes_on,
                          const std::string& node);

// The run's folder of checkpoints, as its driver's machine has it.
struct OutputPaths {
  std::string output_dir;
  std::string resume_path;  // the checkpoint that the run goes on from; empty: none
  // The run whose driver holds output_dir's lock, which names it; empty: there are no locks.
  std::string locked_by;
};
// Whether this machine has the driver's output_dir, and not one of its own; unknown without locks.
bool sees_output_dir(FileSystem& files, const OutputPaths& paths);
// As check_shared_paths(), of the machine of rank 0, which writes and reads them for those without.
Status check_output_paths(FileSystem& files, const OutputPaths& paths, const std::string& node);
// The same of the data files that a stream is read from, as they were when the run began.
Status check_stream_files(std::span<const StreamFile> stream, const std::string& node);

}  // namespace troupe::train
