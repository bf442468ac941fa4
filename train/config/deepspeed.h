#pragma once
// DeepSpeed's JSON configuration: reading, batch arithmetic, "auto", agreement with the YAML.
//
// Rules and texts: DeepSpeed's config.py (batch) and transformers' HfTrainerDeepSpeedConfig ("auto"
// and mismatches); numbers are compared as numbers, so that "8" equals 8 (LLaMA-Factory#1116).
// What becomes of every key: deepspeed_keys.h. DeepSpeed's own schedules start a step later than
// transformers' and warm up over at least two steps, so a scheduler block is refused by its name.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/config/train_config.h"
#include "train/optimizer/loss_scale.h"

namespace troupe::train {

// `source` is a path or a mapping. The file may hold comments and trailing commas; a key that
// stands twice is an error.
Result<json::Object> read_deepspeed(const json::Value& source, FileSystem& files);

// Whether an offload device ("cpu", "none") is the host's memory. `key` stands in errors:
// kUnsupported for "nvme", with the way out.
Result<bool> reads_offload_device(const json::Value& value, std::string_view key);

// `hidden_size` of the model's config.json; nothing where it cannot be read.
std::optional<std::int64_t> read_hidden_size(const std::string& model_folder, FileSystem& files);

struct DeepSpeedBatch {
  std::int64_t train_batch_size = 0;    // sequences a step over all ranks
  std::int64_t micro_batch_size = 0;    // sequences of a micro-batch and rank
  std::int64_t accumulation_steps = 0;  // micro-batches a step
};
// Completes the three sizes from those that are given: two give the third, one alone has
// accumulation 1. kInvalidArgument with DeepSpeed's texts where none is given or they disagree.
Result<DeepSpeedBatch> resolve_deepspeed_batch(std::optional<std::int64_t> train_batch_size,
                                               std::optional<std::int64_t> micro_batch_size,
                                               std::optional<std::int64_t> accumulation_steps,
                                               std::int64_t world_size);

// DeepSpeed's loss scale, of a configuration's section `fp16`, which may be absent.
// kInvalidArgument: a value out of range, by its path.
Result<LossScaleRule> read_loss_scale_rule(const json::Object& config);

// What "auto" stands for.
struct DeepSpeedContext {
  TrainingSection training;
  std::int64_t world_size = 1;
  // Of the model. Without it bucket sizes and thresholds that are "auto" have DeepSpeed's defaults.
  std::optional<std::int64_t> hidden_size;
  bool bf16 = false;
  bool fp16 = false;
};

// Limits of gathered parameters in elements, of stage 3. Defaults: DeepSpeed's.
struct DeepSpeedLimits {
  std::int64_t max_live_parameters = 1'000'000'000;
  std::int64_t max_reuse_distance = 1'000'000'000;
  std::int64_t prefetch_bucket_size = 50'000'000;
  std::int64_t param_persistence_threshold = 100'000;
};

struct ResolvedDeepSpeed {
  json::Object values;  // every "auto" replaced that can be
  int zero_stage = 0;
  std::string strategy;                   // of troupe.strategy: ddp, zero1, zero2, zero3
  std::optional<DeepSpeedLimits> limits;  // with stage 3
  std::optional<Precision> reduce;        // communication_data_type, where it is given
  OffloadChoice offload = OffloadChoice::kNone;
  std::string offload_path;  // of the key that asks for it: "zero_optimization.cpu_offload"
  DeepSpeedBatch batch;
  std::vector<std::string> notes;  // what a user should know
};
Result<ResolvedDeepSpeed> resolve_deepspeed(const json::Object& config,
                                            const DeepSpeedContext& context);

}  // namespace troupe::train
