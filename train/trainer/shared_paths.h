#pragma once
// The folders that every node of a run must have at the same path: ranks read the model there, and
// all of them write checkpoints.

#include <span>
#include <string>

#include "runtime/base/file_system.h"
#include "train/config/train_config.h"
#include "train/data/sample_stream.h"

namespace troupe::train {

struct SharedPaths {
  std::string resume_path;  // the checkpoint that the run goes on from; empty: none
  // The run whose driver holds output_dir's lock, which names it; empty: there are no locks.
  std::string locked_by;
};

// kNotFound with the path that this machine lacks, `node` and the way out. `config` has absolute
// paths.
Status check_shared_paths(FileSystem& files, const TrainConfig& config, const SharedPaths& paths,
                          const std::string& node);
// The same of the data files that a stream is read from, as they were when the run began.
Status check_stream_files(std::span<const StreamFile> stream, const std::string& node);

}  // namespace troupe::train
