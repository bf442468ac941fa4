#pragma once
// Finding the checkpoint to go on from: the newest that validates, with a reason for each newer one
// that does not.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/checkpoint/manifest.h"

namespace troupe::train {

// In an output directory, held by the run that writes there (runtime/base/file_lock.h).
inline constexpr const char* kOutputLockFile = ".troupe-lock";

// A directory by its name alone; nothing in it was read.
struct CheckpointName {
  std::string name;  // "checkpoint-500"
  std::int64_t step = 0;
};

// The step of `checkpoint-N` by ^checkpoint-(\d+)$; nothing for other names.
std::optional<std::int64_t> checkpoint_step(std::string_view name);

// All checkpoints of `output_dir`, oldest first, none where the directory does not exist. Where a
// writer died while replacing a checkpoint by a new one of the same step, the old one is listed
// under the name it had been given meanwhile ("replaced-checkpoint-N").
Result<std::vector<CheckpointName>> find_checkpoints(FileSystem& files,
                                                     const std::string& output_dir);

// A checkpoint that was validated.
struct GoodCheckpoint {
  std::string path;
  std::int64_t step = 0;
  bool has_optimizer = false;  // else weights only: the optimizer starts anew
  bool foreign = false;        // of another program: complete, but without hashes
  Manifest manifest;           // of our own ones
};

struct RefusedCheckpoint {
  std::string path;
  Status reason;
};

struct CheckpointSearch {
  // Only checkpoints that this run wrote, where not empty: a run that starts anew in a directory
  // must not reload what an earlier one left there.
  std::string run;
  // Only those up to this step.
  std::optional<std::int64_t> step_max;
  // With which the bytes are compared.
  int threads = 1;
};

// Reads the whole checkpoint and says whether it is as it was written. A directory without marker
// is accepted as another program's if it has none of our own files, has config.json and weights
// that open completely. `threads`: parts of files that are compared at a time.
Result<GoodCheckpoint> validate_checkpoint(FileSystem& files, const std::string& path,
                                           int threads = 1);
// All of that but the comparison of bytes, for a caller who has done it. `manifest`: of the
// directory, or why there is none.
Result<GoodCheckpoint> check_structure(FileSystem& files, const std::string& path,
                                       const Result<Manifest>& manifest);

// The newest good one, or nothing. `refused` (may be null) gets every newer one with its reason.
Result<std::optional<GoodCheckpoint>> newest_good_checkpoint(
    FileSystem& files, const std::string& output_dir, std::vector<RefusedCheckpoint>* refused,
    const CheckpointSearch& search = {});

// "checkpoint-20 is not used: … damaged …; going on from checkpoint-10", for the user. Empty where
// nothing was refused.
std::string refused_message(const std::vector<RefusedCheckpoint>& refused,
                            const std::optional<GoodCheckpoint>& chosen);

struct ResumeRequest {
  std::string output_dir;
  // resume_from_checkpoint: empty, a path, or "true" / "false".
  std::string resume_from_checkpoint;
  bool do_train = true;
  bool overwrite_output_dir = false;
  int verify_threads = 1;
};

// Where a run starts from, by LLaMA-Factory's rule (training-semantics B), but the newest that
// validates; nothing: from the beginning. kFailedPrecondition "Output directory already exists and
// is not empty. Please set `overwrite_output_dir`."; kDataLoss where there are checkpoints and none
// is good, or the one asked for is not.
Result<std::optional<GoodCheckpoint>> find_resume_point(FileSystem& files,
                                                        const ResumeRequest& request,
                                                        std::vector<RefusedCheckpoint>* refused);

// What a checkpoint holds beside tensors (tensor_reader.h has those).
struct CheckpointState {
  json::Value scheduler, rng_state, cursor;  // null where absent
  std::string trainer_state;                 // text of trainer_state.json; empty where absent
};

Result<CheckpointState> read_checkpoint_state(FileSystem& files, const GoodCheckpoint& checkpoint);

}  // namespace troupe::train
