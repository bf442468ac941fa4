#pragma once
// A model with adapters as one model's folder, in Hugging Face's form; without adapters, the model
// in another type or in files of another size.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/checkpoint/merge.h"
#include "train/config/train_config.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

struct ExportRequest {
  std::string base;
  std::vector<std::string> adapters;  // merged in this order
  std::string adapter_folder;         // in each of them; empty: none
  std::string out;
  std::uint64_t shard_bytes_max = kShardBytesMax;
  // What is written; nothing: what the base's config.json says, and bf16 instead of fp32 where
  // `has_gpu`, as LLaMA-Factory's infer_dtype auto.
  std::optional<DType> dtype;
  bool has_gpu = false;
  // Its special tokens and Jinja text go into the tokenizer's files, as training does it.
  std::optional<std::string> template_name;
  int threads = 1;
  // Lines about what takes long; may be empty.
  std::function<void(const std::string&)> say = {};
};

// What `export` asks for. kInvalidArgument where the configuration names no export_dir.
Result<ExportRequest> export_request(const TrainConfig& config);

struct ExportedModel {
  MergedModel written;
  DType dtype = DType::kF32;
  bool unties_head = false;
  // The largest |Δlogit| on the probe text between what was written and the base with the adapters
  // beside it; nothing where there was no such comparison.
  std::optional<double> logit_difference;
  std::string no_probe;  // why there was none, with adapters
  std::vector<std::string> notes;
};

// Above this an export fails (kDataLoss), and its weights are removed. A logit is a sum, and what
// rounding changes of it grows with its terms: where logits are above 1, the limit is a share of
// the largest one. `exact`, fp32 weights to fp32: a thousandth, some hundred times what the order
// of the sums changes. Types that round weights to 8 bits or so shift a good model's logits by some
// hundredths: only what is half of the largest logit away, infinite or no number is refused, which
// is another model.
double logit_difference_max(bool exact, double largest_logit);

// Memory: the largest tensor a few times; of the probe, the largest unit and the logits of some
// forty tokens. Nothing is written over a model, an adapter or a checkpoint (kAlreadyExists).
Result<ExportedModel> export_model(FileSystem& files, const ExportRequest& request);

}  // namespace troupe::train
