#pragma once
// The memory of a micro-batch's forward and backward pass: one arena, sized before the first step.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/huge_pages.h"
#include "train/model/adapter_tensors.h"
#include "train/model/model_config.h"
#include "train/tensor/dtype.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// What of a layer's forward pass is done again in the backward pass instead of kept. The same bits
// in all three.
enum class Recompute {
  kNothing,         // everything that backward needs is kept
  kCheapOperators,  // the outputs of norms and of the MLP's activation function
  kLayers,          // all: only a layer's input is kept; a third more arithmetic
};

struct ActivationOptions {
  std::int64_t rows_max = 1;    // of a micro-batch
  std::int64_t length_max = 1;  // tokens of a row
  // Forward and backward; else forward only, for which one layer's buffers serve all layers.
  bool training = true;
  Recompute recompute = Recompute::kLayers;
  // What the units' products are computed in. With kBF16 the gradient of the logits is kept in
  // bf16, which is what products round it to; logits are then worked on a few at a time, in a
  // cache.
  DType compute = DType::kF32;
  // What activations and their gradients are stored in. kBF16 (with bf16 products, on a device
  // whose operators store them) takes half the memory and half the traffic; fp32 stay statistics,
  // losses, logits, tables of positions and the gradients of parameters.
  DType type = DType::kF32;
  AdapterSizes adapters = {};
  // Layers before the first that the backward pass reaches: nothing is kept of them.
  std::int64_t untrained_layers = 0;
};

// Ok if activations of this type may be kept for these operators, else kInvalidArgument: which of
// the two cannot, and what can.
Status check_activation_type(const ActivationOptions& options, const Operators& operators);

// What a layer's backward pass needs of its forward pass. N = rows·length tokens, C hidden size.
struct LayerActivations {
  float* attention_statistics = nullptr;  // ModelConfig::norm_statistics(N)
  Elements qkv;                           // (N, queries | keys | values) as the products give them
  float* head_rstd = nullptr;       // ModelConfig::head_norm_statistics(N); null without QK norms
  Elements attention;               // (N, query width)
  float* log_sum_exp = nullptr;     // (rows, heads, length)
  Elements middle;                  // (N, C): after the attention's residual
  float* mlp_statistics = nullptr;  // ModelConfig::norm_statistics(N)
  Elements mlp_product;             // (N, ModelConfig::mlp_input_width())
  // With post norms, else null: what attention and MLP give, (N, C), and their norms' statistics.
  Elements attention_output;
  Elements mlp_output;
  float* attention_output_statistics = nullptr;
  float* mlp_output_statistics = nullptr;
  // (N, queries | keys | values) as attention reads them, normed and rotated: `qkv` itself where
  // there are no QK norms, else as the buffers below.
  Elements attention_qkv;
  // Buffers that all layers share, with any content by the time of the backward pass, unless
  // nothing is recomputed.
  Elements attention_input;  // (N, C): output of the first norm
  Elements mlp_input;        // (N, C): output of the second norm
  Elements mlp_hidden;       // (N, intermediate): input of the last product
  // By LinearPlace: (N, ranks of the adapters there); null where there are none.
  std::array<float*, kLinearPlaces> adapter_hidden{};
};

// The arena cut into buffers. Pointers are memory of the operators' device. Not for use by two
// passes at once.
class Activations {
 public:
  // Bytes of the arena: what `plan` counts.
  static std::size_t bytes_needed(const ModelConfig& config, const ActivationOptions& options);

  // For an arena that serves passes of both kinds by turns.
  static std::size_t bytes_needed(const ModelConfig& config, const ActivationOptions& training,
                                  const std::optional<ActivationOptions>& evaluation);

  // Cuts `memory` of the operators' device, which must have bytes_needed, be aligned to 64 bytes
  // and outlive the object.
  Activations(const ModelConfig& config, const ActivationOptions& options, Operators& operators,
              std::span<std::byte> memory);
  // Allocates the arena itself, in host memory, of at least so many bytes. kOutOfMemory.
  static Result<std::unique_ptr<Activations>> allocate(const ModelConfig& config,
                                                       const ActivationOptions& options,
                                                       Operators& operators,
                                                       std::size_t bytes_min = 0);
  // The same where the sizes are known to be small: ends the process when there is no memory.
  Activations(const ModelConfig& config, const ActivationOptions& options, Operators& operators);

  // Cuts the same arena for passes of other sizes, for which it has room. What it held is gone.
  void cut_for(const ModelConfig& config, const ActivationOptions& options, Operators& operators);

  const ActivationOptions& options() const { return options_; }
  // The buffers of a layer; all layers share them when nothing but inputs is kept.
  const LayerActivations& of_layer(std::int64_t layer) const {
    if (layers_.size() == 1) return layers_.front();
    if (kept_from_ == 0) return layers_[static_cast<std::size_t>(layer)];
    // Layers of which nothing is kept share the first.
    return layers_[layer < kept_from_ ? 0 : static_cast<std::size_t>(1 + layer - kept_from_)];
  }
  // (N, C): input of a layer; index num_hidden_layers is the last layer's output. Where they are
  // not kept two buffers alternate.
  Elements stream(std::int64_t layer) const {
    return streams_[static_cast<std::size_t>(
        layer < kept_from_ ? layer % 2
                           : layer - kept_from_ + std::min<std::int64_t>(2, kept_from_))];
  }
  // Whether layers must be run again before their backward pass.
  bool recomputes_layers() const {
    return options_.training && options_.recompute == Recompute::kLayers;
  }
  // Whether a layer's shared buffers must be filled again, and they alone.
  bool recomputes_cheap_operators() const {
    return options_.training && options_.recompute == Recompute::kCheapOperators;
  }
  // Whether a layer's attention_input, mlp_input and mlp_hidden last until its backward pass.
  bool keeps_everything() const {
    return options_.training && options_.recompute == Recompute::kNothing;
  }

  Elements delta;               // (N, C): what a sub-layer adds to the stream
  Elements hidden;              // (N, intermediate): gradient of mlp_hidden
  Elements stream_gradient;     // (N, C), training only, as the two below
  Elements attention_gradient;  // (N, query width)
  Elements qkv_gradient;        // (N, qkv width)
  // Of adapters, training only: the gradient of what is between their products, (N, ranks at a
  // place), and an input that was dropped out, (N, widest input).
  float* adapter_gradient = nullptr;
  float* adapter_input = nullptr;
  // Of adapters with magnitudes: what they make of a few rows, (kMagnitudeRows, the wider of input
  // and output); the three results of Operators::magnitude_factors, each of all outputs at a place;
  // training only: the gradient of the products before the factors, (N, outputs at a place).
  static constexpr std::int64_t kMagnitudeRows = 256;
  float* magnitude_rows = nullptr;
  float* magnitude_weights = nullptr;  // over a quantised base: values of as many rows of weights
  std::array<float*, 3> magnitude_factors{};
  float* magnitude_gradient = nullptr;

  // The head works on chunks of rows that have targets.
  std::int64_t head_rows = 0;
  Elements head_input;               // (head_rows, C)
  Elements head_normed;              // (head_rows, C)
  float* head_statistics = nullptr;  // ModelConfig::norm_statistics(head_rows)
  Elements head_gradient;            // (head_rows, C), training only
  // (head_rows, C), training only. In bf16 a row of zeros comes first, and is one more.
  Elements head_input_gradient;
  std::int64_t logit_rows = 0;               // of a chunk's rows, those whose logits are there
  float* logits = nullptr;                   // (logit_rows, vocabulary)
  std::uint16_t* logit_gradients = nullptr;  // (head_rows, vocabulary); null: they replace logits
  float* losses = nullptr;                   // (head_rows)

  // (length_max, head_dim / 2), with rotary positions; of windowed layers, where theirs are others.
  struct RopeTable {
    float* cosine = nullptr;
    float* sine = nullptr;
  };
  RopeTable rope, window_rope;
  std::int32_t* ids = nullptr;               // (N)
  std::int32_t* positions = nullptr;         // (N)
  std::int32_t* first_key = nullptr;         // (N): of the token's segment
  std::int32_t* window_first_key = nullptr;  // (N): of segment and window; null without windows
  // (N) each, training only, where the model or an adapter drops out: MicroBatch::dropout's.
  std::int32_t* dropout_samples = nullptr;
  std::int32_t* dropout_places = nullptr;
  std::int32_t* target_tokens = nullptr;  // (N): indices of tokens that have a target
  std::int32_t* targets = nullptr;        // (N): their targets
  // Where the gradient of the last layer's output comes from, in bf16: (N), of each token the row
  // of its chunk's head_input_gradient, 1 and up, or 0, the row of zeros. Chunk i of the head is
  // about tokens [chunk_tokens[i], chunk_tokens[i + 1]).
  std::int32_t* gradient_rows = nullptr;
  std::vector<std::int64_t> chunk_tokens;

  // Host memory in which the integers above are put together, (N), and losses arrive, (head_rows).
  std::vector<std::int32_t> host_integers;
  std::vector<float> host_losses;

 private:
  class Cutter;
  explicit Activations(const ActivationOptions& options) : options_(options) {}
  void cut(const ModelConfig& config, Cutter& cutter);
  void attach(const ModelConfig& config, Operators& operators, std::span<std::byte> memory);

  ActivationOptions options_;
  std::vector<LayerActivations> layers_;
  std::vector<Elements> streams_;
  std::int64_t kept_from_ = 0;   // the first layer whose input is kept
  std::span<std::byte> memory_;  // the arena
  HugeBytes owned_;
};

// Rows of logits whose gradients are there at once, with fp32 activations: about 64 MiB of them, by
// the vocabulary alone.
std::int64_t head_chunk_rows(std::int64_t vocab_size, DType gradients = DType::kF32);

}  // namespace troupe::train
