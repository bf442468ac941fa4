#pragma once
// A model with all of its parameters, gradients and optimizer state on one side: the host, or a
// GPU.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tools/gpu_check/bench.h"
#include "train/cuda/operators/cuda_optimizer.h"
#include "train/model/model.h"
#include "train/optimizer/adamw.h"

namespace troupe::tools::gpu {

// Small models of each family, and larger ones for a real device: config.json's text by name.
struct NamedConfig {
  std::string name;
  train::ModelConfig config;
};
std::vector<NamedConfig> small_models(bool rehearsal);
// Qwen2.5-0.5B's shape; a very small one in a rehearsal.
train::ModelConfig rate_model(bool rehearsal);

// What a model trains with: products in `compute` (kBf16 keeps fp32 parameters beside bf16 ones),
// on a GPU activations in `activations`, and with fp8 (compute in kBf16) the blocks' products in 8
// bits. The host's are fp32.
struct TrainOptions {
  train::DType compute = train::DType::kF32;
  train::DType activations = train::DType::kF32;
  std::int64_t rows = 2, length = 40;
  train::Recompute recompute = train::Recompute::kLayers;
  bool fp8 = false;
  bool graphs = false;  // on a GPU: layers' launches as graphs
};

// One side's model. Memory is the side's own.
class TrainedModel {
 public:
  virtual ~TrainedModel() = default;
  virtual const train::ParameterLayout& layout() const = 0;
  // Fills the flat parameters from memory of the host, from `offset`.
  virtual Status set_parameters(std::span<const float> values, std::int64_t offset) = 0;
  virtual Status zero_gradients() = 0;
  virtual Result<train::LossSum> forward_backward(const train::MicroBatch& batch, float scale) = 0;
  // One step of AdamW with gradients clipped to a norm of 1; `step` without gradient_scale. Gives
  // the norm.
  virtual Result<double> update(const train::AdamWStep& step) = 0;
  // Copies of the flat gradients and parameters.
  virtual Result<std::vector<float>> gradients() = 0;
  virtual Result<std::vector<float>> parameters() = 0;
  // Waits for what is enqueued.
  virtual Status synchronize() = 0;
};

// Which of the device's operators the options ask for.
train::CudaOperators& operators_of(Gpu& gpu, const TrainOptions& options);
// Both must outlive the model.
Result<std::unique_ptr<TrainedModel>> host_model(const train::ModelConfig& config,
                                                 const TrainOptions& options,
                                                 train::Operators& operators);
Result<std::unique_ptr<TrainedModel>> gpu_model(const train::ModelConfig& config,
                                                const TrainOptions& options, Gpu& gpu);

// Parameters as a training begins with them.
std::vector<float> initial_parameters(const train::ModelConfig& config,
                                      const train::ParameterLayout& layout, std::uint64_t seed);

// Random numbers of the size of weights, the same ones all over: for models whose values matter
// little, as long as they are not all equal.
Status set_some_parameters(TrainedModel& model);

// (rows, length) tokens; rows count on with strides of their own, by the step: something that can
// be learnt.
struct CountingBatch {
  CountingBatch(std::int64_t rows, std::int64_t length, std::int64_t vocabulary, int step,
                bool segments);
  train::MicroBatch micro() const;
  std::int64_t rows, length;
  std::vector<std::int32_t> ids, labels, positions, segments;
  std::vector<std::int32_t> samples, places;  // of the masks of models with dropout
};

}  // namespace troupe::tools::gpu
