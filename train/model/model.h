#pragma once
// A language model as the trainer sees it: explicit forward and backward passes over units.

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/status.h"
#include "train/model/activations.h"
#include "train/model/kv_cache.h"
#include "train/model/loss.h"
#include "train/model/micro_batch.h"
#include "train/model/model_config.h"
#include "train/model/model_layout.h"
#include "train/model/unit_access.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// Holds no parameters and no state: what a call computes depends on its arguments alone, and its
// bits not on the number of threads or on what is recomputed. One call at a time per Activations.
// Dropout (ModelConfig) is part of forward_backward alone, by the masks of MicroBatch::dropout.
// Batches that do not fit the model or the activations are kInvalidArgument; failures of UnitAccess
// and of the operators are passed on.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const ModelLayout& model_layout() const = 0;
  // The layout of the trained parameters.
  const ParameterLayout& layout() const { return model_layout().trained(); }

  // Puts the gradient of Σ losses·scale over the batch into the units' gradients (UnitGradient says
  // whether it is added to what is there); the caller gives scale = 1 / (targets of the whole step,
  // all ranks). Units are acquired in forward order (the head, whose passes are interleaved chunk
  // by chunk, only for its backward pass), then layers in reverse, down to the first unit that is
  // trained.
  virtual Result<LossSum> forward_backward(const MicroBatch& batch, UnitAccess& units,
                                           const Loss& loss, float scale,
                                           Activations& activations) = 0;
  // The losses alone, for evaluation.
  virtual Result<LossSum> forward(const MicroBatch& batch, UnitAccess& units, const Loss& loss,
                                  Activations& activations) = 0;
  // All logits: (rows·length, vocabulary), to host memory.
  virtual Status logits(const MicroBatch& batch, UnitAccess& units, Activations& activations,
                        std::span<float> out) = 0;
  // Appends `ids` to the cached sequence and gives the logits after the last of them: (vocabulary).
  // The activations' length_max must be at least the cache's capacity. kInvalidArgument when the
  // cache is full.
  virtual Status decode(std::span<const std::int32_t> ids, KvCache& cache, UnitAccess& units,
                        Activations& activations, std::span<float> logits) = 0;
  // Appends one id to each of several sequences, in one pass: (sequences, vocabulary) logits. The
  // activations' length_max must be at least each capacity, and the number of sequences.
  virtual Status decode_each(std::span<const std::int32_t> ids, std::span<KvCache* const> caches,
                             UnitAccess& units, Activations& activations,
                             std::span<float> logits) = 0;
};

// Ok if the operators are all there that the family's parts call, else which is not.
Status check_operators(const ModelConfig& config, const Operators& operators);

// The model that `config` describes, computing with `operators`, which must outlive it. Activations
// of passes that train are cut for the same `trainables`.
std::unique_ptr<Model> make_model(const ModelConfig& config, Operators& operators,
                                  const Trainables& trainables = {});
// The reference of such a model (Trainables::reference), over the same units; for forward passes.
std::unique_ptr<Model> make_reference(const ModelConfig& config, Operators& operators,
                                      const Trainables& trainables);

}  // namespace troupe::train
