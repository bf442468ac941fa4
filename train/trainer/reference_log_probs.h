#pragma once
// What a reference model says of a run's samples, worked out once before training
// (troupe.precompute_ref_log_probs, TRL's precompute_ref_log_probs), so that no trainer holds a
// copy of the model beside the one that it trains.

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/trainer/run_bundle.h"

namespace troupe::train {

// Where it is kept, in output_dir: u64 magic, u64 key (a hash of all that decides the numbers: the
// samples, the reference's files, the type of its products), u64 counts of both arrays, the log-
// probabilities of the labels of the samples to train and to evaluate on (f32, one for each token,
// 0 where a label is not trained on), u64 XXH3 of all before.
inline constexpr const char* kReferenceFile = "reference_log_probs.bin";

// What the passes hold beside the samples, at least: the reference's parameters. 0: none are to be
// made.
std::int64_t reference_pass_bytes(const RunBundle& bundle);

// Gives the bundle what the reference says: out of output_dir where it was worked out for the same
// samples and the same reference, else by passes of it on `threads` threads. The reference is
// ref_model with its adapters, or the model's folder with the adapters that are merged into it, and
// is computed in bf16 or fp16 where the run is, else in fp32. Nothing where the configuration does
// not ask for it. `notes`: for the user.
Status add_reference_log_probs(FileSystem& files, RunBundle& bundle, int threads,
                               const std::function<void(const std::string&)>& say,
                               std::vector<std::string>& notes);

}  // namespace troupe::train
