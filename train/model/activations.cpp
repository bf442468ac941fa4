#include "train/model/activations.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/model/rope.h"

namespace troupe::train {
namespace {

constexpr std::size_t kAlignBytes = 64;
constexpr std::int64_t kLogitsBytes = 64 << 20;
// Of logits that are worked on in a level-3 cache.
constexpr std::int64_t kCachedLogitsBytes = 16 << 20;
constexpr std::int64_t kHeadRowsMin = 64, kHeadRowsMax = 1024;
constexpr std::int64_t kLogitRowsMin = 64;
// A device that stores bf16 has no cache for logits and much memory. Each chunk of rows reads and
// writes the gradient of the output's weights, each part of a chunk reads the weights.
constexpr std::int64_t kDeviceLogitsBytes = 256 << 20;
constexpr std::int64_t kDeviceLogitGradientBytes = 512 << 20;
constexpr std::int64_t kDeviceHeadRowsMax = 2048;

// Rows of `bytes` in all, in steps of 64.
std::int64_t rows_within(std::int64_t bytes, DType type, std::int64_t vocab_size,
                         std::int64_t rows_max) {
  static_assert(kHeadRowsMin == kLogitRowsMin);
  const auto elements = bytes / static_cast<std::int64_t>(dtype_size(type));
  return std::clamp(elements / vocab_size / kHeadRowsMin * kHeadRowsMin, kHeadRowsMin, rows_max);
}

struct HeadRows {
  std::int64_t chunk = 0;   // whose gradients are there at once
  std::int64_t logits = 0;  // of those, whose logits are
};

HeadRows head_rows_of(std::int64_t vocab_size, const ActivationOptions& options) {
  HeadRows rows;
  if (options.type == DType::kBF16) {
    rows.logits = rows_within(kDeviceLogitsBytes, DType::kF32, vocab_size, kDeviceHeadRowsMax);
    rows.chunk = options.training ? rows_within(kDeviceLogitGradientBytes, DType::kBF16, vocab_size,
                                                kDeviceHeadRowsMax)
                                  : rows.logits;
  } else if (options.training && options.compute == DType::kBF16) {
    rows.chunk = head_chunk_rows(vocab_size, DType::kBF16);
    rows.logits = rows_within(kCachedLogitsBytes, DType::kF32, vocab_size, rows.chunk);
  } else {
    rows.chunk = rows.logits = head_chunk_rows(vocab_size);
  }
  const std::int64_t tokens = options.rows_max * options.length_max;
  rows.chunk = std::min(rows.chunk, tokens);
  rows.logits = std::min(rows.logits, rows.chunk);
  return rows;
}

}  // namespace

std::int64_t head_chunk_rows(std::int64_t vocab_size, DType gradients) {
  return rows_within(kLogitsBytes, gradients, vocab_size, kHeadRowsMax);
}

Status check_activation_type(const ActivationOptions& options, const Operators& operators) {
  if (options.type == DType::kF32) return {};
  if (options.type != DType::kBF16)
    return error(Code::kInvalidArgument, "activations are F32 or BF16, not {}",
                 dtype_name(options.type));
  if (!operators.stores_bf16())
    return error(Code::kInvalidArgument,
                 "this device computes with fp32 activations (a CPU, or a GPU without bf16): keep "
                 "their type at F32; products may be in bf16 all the same");
  if (options.compute != DType::kBF16)
    return error(Code::kInvalidArgument,
                 "activations in bf16 want products in bf16, not {}: keep their type at F32",
                 dtype_name(options.compute));
  return {};
}

// Hands out consecutive buffers of an arena; over a null base it only counts.
class Activations::Cutter {
 public:
  // `type`: of activations.
  Cutter(std::byte* base, DType type) : base_(base), type_(type) {}
  Elements elements(std::int64_t count) {
    return type_ == DType::kBF16 ? Elements(words(count)) : Elements(floats(count));
  }
  float* floats(std::int64_t count) { return take<float>(count); }
  std::uint16_t* words(std::int64_t count) { return take<std::uint16_t>(count); }
  std::int32_t* integers(std::int64_t count) { return take<std::int32_t>(count); }
  std::size_t used() const { return used_; }

 private:
  template <typename T>
  T* take(std::int64_t count) {
    std::byte* at = base_ ? base_ + used_ : nullptr;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    used_ += (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    return reinterpret_cast<T*>(at);
  }
  std::byte* base_;
  DType type_;
  std::size_t used_ = 0;
};

void Activations::cut(const ModelConfig& config, Cutter& cutter) {
  const std::int64_t tokens = options_.rows_max * options_.length_max;
  const std::int64_t hidden_size = config.hidden_size;
  const std::int64_t widest_input =
      std::max({hidden_size, config.query_width(), config.intermediate_size});
  const bool by_layer = options_.training && options_.recompute != Recompute::kLayers;
  const std::int64_t layers = config.num_hidden_layers;
  const std::int64_t untrained = std::min(options_.untrained_layers, layers);
  kept_from_ = options_.training ? untrained : layers + 1;
  layers_.resize(
      static_cast<std::size_t>(by_layer ? layers - untrained + (untrained > 0 ? 1 : 0) : 1));
  for (LayerActivations& layer : layers_) {
    layer.attention_statistics = cutter.floats(config.norm_statistics(tokens));
    layer.qkv = layer.attention_qkv = cutter.elements(tokens * config.qkv_width());
    if (config.qk_norm) layer.head_rstd = cutter.floats(config.head_norm_statistics(tokens));
    layer.attention = cutter.elements(tokens * config.query_width());
    layer.log_sum_exp = cutter.floats(tokens * config.num_attention_heads);
    layer.middle = cutter.elements(tokens * hidden_size);
    layer.mlp_statistics = cutter.floats(config.norm_statistics(tokens));
    layer.mlp_product = cutter.elements(tokens * config.mlp_input_width());
    if (config.post_norms) {
      layer.attention_output = cutter.elements(tokens * hidden_size);
      layer.mlp_output = cutter.elements(tokens * hidden_size);
      layer.attention_output_statistics = cutter.floats(config.norm_statistics(tokens));
      layer.mlp_output_statistics = cutter.floats(config.norm_statistics(tokens));
    }
    for (std::size_t place = 0; place < kLinearPlaces; ++place)
      if (const std::int64_t columns = options_.adapters.columns[place])
        layer.adapter_hidden[place] = cutter.floats(tokens * columns);
    if (!keeps_everything()) continue;
    layer.attention_input = cutter.elements(tokens * hidden_size);
    layer.mlp_input = cutter.elements(tokens * hidden_size);
    layer.mlp_hidden = cutter.elements(tokens * config.intermediate_size);
    if (config.qk_norm) layer.attention_qkv = cutter.elements(tokens * config.qkv_width());
  }
  streams_.resize(static_cast<std::size_t>(
      options_.training ? layers + 1 - untrained + std::min<std::int64_t>(2, untrained) : 2));
  for (Elements& stream : streams_) stream = cutter.elements(tokens * hidden_size);
  delta = cutter.elements(tokens * hidden_size);
  hidden = cutter.elements(tokens * config.intermediate_size);
  if (!keeps_everything()) {
    const Elements normed = cutter.elements(tokens * hidden_size);
    for (LayerActivations& layer : layers_)
      layer.attention_input = layer.mlp_input = normed, layer.mlp_hidden = hidden;
    if (config.qk_norm) {
      const Elements placed = cutter.elements(tokens * config.qkv_width());
      for (LayerActivations& layer : layers_) layer.attention_qkv = placed;
    }
  }
  if (options_.training) {
    stream_gradient = cutter.elements(tokens * hidden_size);
    attention_gradient = cutter.elements(tokens * config.query_width());
    qkv_gradient = cutter.elements(tokens * config.qkv_width());
    if (options_.adapters.any())
      adapter_gradient = cutter.floats(tokens * std::ranges::max(options_.adapters.columns));
    if (options_.adapters.drops) adapter_input = cutter.floats(tokens * widest_input);
    if (const std::int64_t outputs = options_.adapters.magnitudes)
      magnitude_gradient = cutter.floats(tokens * outputs);
  }
  if (const std::int64_t outputs = options_.adapters.magnitudes) {
    magnitude_rows = cutter.floats(kMagnitudeRows * std::max(outputs, widest_input));
    if (options_.adapters.quantized)
      magnitude_weights = cutter.floats(kMagnitudeRows * widest_input);
    for (float*& factors : magnitude_factors) factors = cutter.floats(outputs);
  }
  const bool narrow = options_.training && options_.compute == DType::kBF16;
  const HeadRows rows = head_rows_of(config.vocab_size, options_);
  head_rows = rows.chunk, logit_rows = rows.logits;
  head_input = cutter.elements(head_rows * hidden_size);
  head_normed = cutter.elements(head_rows * hidden_size);
  head_statistics = cutter.floats(config.norm_statistics(head_rows));
  if (options_.training) {
    head_gradient = cutter.elements(head_rows * hidden_size);
    if (options_.type == DType::kBF16) {
      head_input_gradient = cutter.elements((head_rows + 1) * hidden_size);
      gradient_rows = cutter.integers(tokens);
    } else {
      head_input_gradient = cutter.elements(head_rows * hidden_size);
    }
  }
  logits = cutter.floats(logit_rows * config.vocab_size);
  if (narrow) logit_gradients = cutter.words(head_rows * config.vocab_size);
  losses = cutter.floats(head_rows);
  if (config.positions == PositionKind::kRotary) {
    const std::int64_t table = options_.length_max * config.head_dim / 2;
    rope = {cutter.floats(table), cutter.floats(table)};
    window_rope = config.window_rope ? RopeTable{cutter.floats(table), cutter.floats(table)} : rope;
  }
  ids = cutter.integers(tokens);
  positions = cutter.integers(tokens);
  first_key = cutter.integers(tokens);
  if (config.sliding_window) window_first_key = cutter.integers(tokens);
  if (options_.training && (config.has_dropout() || options_.adapters.drops)) {
    dropout_samples = cutter.integers(tokens);
    dropout_places = cutter.integers(tokens);
  }
  target_tokens = cutter.integers(tokens);
  targets = cutter.integers(tokens);
}

std::size_t Activations::bytes_needed(const ModelConfig& config, const ActivationOptions& options) {
  TROUPE_CHECK(options.rows_max > 0 && options.length_max > 0, "{} rows of {} tokens",
               options.rows_max, options.length_max);
  Activations counted(options);
  Cutter cutter(nullptr, options.type);
  counted.cut(config, cutter);
  return cutter.used();
}

std::size_t Activations::bytes_needed(const ModelConfig& config, const ActivationOptions& training,
                                      const std::optional<ActivationOptions>& evaluation) {
  const std::size_t bytes = bytes_needed(config, training);
  return evaluation ? std::max(bytes, bytes_needed(config, *evaluation)) : bytes;
}

void Activations::cut_for(const ModelConfig& config, const ActivationOptions& options,
                          Operators& operators) {
  HugeBytes owned = std::move(owned_);
  const std::span<std::byte> memory = memory_;
  *this = Activations(options);
  owned_ = std::move(owned);
  attach(config, operators, memory);
}

void Activations::attach(const ModelConfig& config, Operators& operators,
                         std::span<std::byte> memory) {
  const Status type = check_activation_type(options_, operators);
  TROUPE_CHECK(type.ok(), "{}", type.message());
  TROUPE_CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignBytes == 0);
  memory_ = memory;
  Cutter cutter(memory.data(), options_.type);
  cut(config, cutter);
  TROUPE_CHECK(cutter.used() <= memory.size(), "{} of {} bytes", memory.size(), cutter.used());
  if (config.positions == PositionKind::kRotary) {
    const auto table = static_cast<std::size_t>(options_.length_max * config.head_dim / 2);
    std::vector<float> cosines(table), sines(table);
    const auto fill = [&](const Rope& values, const RopeTable& to) {
      fill_rope_tables(values, config.head_dim, options_.length_max, cosines, sines);
      operators.upload(cosines.data(), to.cosine, table * sizeof(float));
      operators.upload(sines.data(), to.sine, table * sizeof(float));
    };
    fill(config.rope, rope);
    if (config.window_rope) fill(*config.window_rope, window_rope);
  }
  host_integers.resize(static_cast<std::size_t>(options_.rows_max * options_.length_max));
  host_losses.resize(static_cast<std::size_t>(head_rows));
}

Activations::Activations(const ModelConfig& config, const ActivationOptions& options,
                         Operators& operators, std::span<std::byte> memory)
    : options_(options) {
  attach(config, operators, memory);
}

Activations::Activations(const ModelConfig& config, const ActivationOptions& options,
                         Operators& operators)
    : options_(options) {
  const std::size_t bytes = bytes_needed(config, options);
  owned_.reset(allocate_huge(bytes));
  TROUPE_CHECK(owned_, "no memory for {} bytes of activations", bytes);
  attach(config, operators, {owned_.get(), bytes});
}

Result<std::unique_ptr<Activations>> Activations::allocate(const ModelConfig& config,
                                                           const ActivationOptions& options,
                                                           Operators& operators,
                                                           std::size_t bytes_min) {
  TROUPE_RETURN_IF_ERROR(check_activation_type(options, operators));
  const std::size_t bytes = std::max(bytes_min, bytes_needed(config, options));
  std::unique_ptr<Activations> made(new Activations(options));
  made->owned_.reset(allocate_huge(bytes));
  if (!made->owned_) {
    return error(Code::kOutOfMemory, "there is no memory for {} bytes of activations", bytes);
  }
  made->attach(config, operators, {made->owned_.get(), bytes});
  return made;
}

}  // namespace troupe::train
