#include "tools/gpu_check/device_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "train/model/initialize.h"
#include "train/optimizer/gradient_norm.h"
#include "train/tensor/convert.h"

namespace troupe::tools::gpu {
namespace {

using train::Activations;
using train::DType;
using train::LossSum;
using train::MicroBatch;
using train::ParameterLayout;

constexpr double kMaxNorm = 1.0;

train::ModelConfig parsed(const std::string& text) {
  Result<train::ModelConfig> config = train::ModelConfig::parse(text, "a check's config.json");
  TROUPE_CHECK(config.ok(), "{}", config.status().to_string());
  return *config;
}

train::ActivationOptions activation_options(const TrainOptions& options, DType type) {
  return {.rows_max = options.rows,
          .length_max = options.length,
          .recompute = options.recompute,
          .compute = options.compute,
          .type = type};
}

// Where the 1-D parameters of a unit begin among those of all units.
std::vector<std::int64_t> vector_offsets(const ParameterLayout& layout) {
  std::vector<std::int64_t> offsets = {0};
  for (const train::UnitInfo& unit : layout.units())
    offsets.push_back(offsets.back() + unit.vector_elements);
  return offsets;
}

// Units that are all there, in memory of any device.
class WholeUnits final : public train::UnitAccess {
 public:
  // bf16 and vectors: null where products are fp32.
  WholeUnits(const ParameterLayout& layout, const float* parameters, const std::uint16_t* bf16,
             const float* vectors, float* gradients)
      : layout_(layout),
        parameters_(parameters),
        bf16_(bf16),
        vectors_(vectors),
        gradients_(gradients),
        offsets_(vector_offsets(layout)) {}

  Result<train::UnitParameters> acquire(int unit, train::Phase) override {
    const std::int64_t at = info(unit).flat_offset;
    if (!bf16_)
      return train::UnitParameters{reinterpret_cast<const std::byte*>(parameters_ + at),
                                   DType::kF32, nullptr};
    return train::UnitParameters{reinterpret_cast<const std::byte*>(bf16_ + at), DType::kBF16,
                                 vectors_ + offsets_[static_cast<std::size_t>(unit)]};
  }
  void release(int, train::Phase) override {}
  Result<train::UnitGradient> gradient(int unit) override {
    return train::UnitGradient{
        {gradients_ + info(unit).flat_offset, static_cast<std::size_t>(info(unit).elements)}};
  }
  Status gradient_done(int) override { return {}; }

 private:
  const train::UnitInfo& info(int unit) const {
    return layout_.units()[static_cast<std::size_t>(unit)];
  }
  const ParameterLayout& layout_;
  const float* parameters_;
  const std::uint16_t* bf16_;
  const float* vectors_;
  float* gradients_;
  std::vector<std::int64_t> offsets_;
};

class HostModel final : public TrainedModel {
 public:
  HostModel(const train::ModelConfig& config, const TrainOptions& options,
            train::Operators& operators)
      : options_(options),
        model_(train::make_model(config, operators)),
        activations_(model_->config(), activation_options(options, DType::kF32), operators),
        parameters_(static_cast<std::size_t>(layout().total_elements())),
        gradients_(parameters_.size()),
        first_(parameters_.size()),
        second_(parameters_.size()) {
    if (bf16()) {
      half_.resize(parameters_.size());
      vectors_.resize(static_cast<std::size_t>(vector_offsets(layout()).back()));
    }
    units_.emplace(layout(), parameters_.data(), bf16() ? half_.data() : nullptr,
                   bf16() ? vectors_.data() : nullptr, gradients_.data());
  }

  const ParameterLayout& layout() const override { return model_->layout(); }
  Status set_parameters(std::span<const float> values, std::int64_t offset) override {
    std::copy(values.begin(), values.end(), parameters_.begin() + offset);
    round();
    return {};
  }
  Status zero_gradients() override {
    std::fill(gradients_.begin(), gradients_.end(), 0.0f);
    return {};
  }
  Result<LossSum> forward_backward(const MicroBatch& batch, float scale) override {
    return model_->forward_backward(batch, *units_, train::CrossEntropyLoss(), scale, activations_);
  }
  Result<double> update(const train::AdamWStep& step) override {
    std::vector<double> sums;
    for (std::int64_t tile = 0; tile < layout().tile_count(); ++tile)
      sums.push_back(train::tile_sum_of_squares(
          std::span(gradients_)
              .subspan(static_cast<std::size_t>(tile * train::kTileElements),
                       static_cast<std::size_t>(train::kTileElements))));
    const double norm = train::combine_tile_sums(sums).norm;
    train::AdamWStep clipped = step;
    clipped.gradient_scale = train::clip_coefficient(norm, kMaxNorm);
    train::adamw_update(clipped, layout().groups(), 0, parameters_, gradients_, first_, second_);
    round();
    return norm;
  }
  Result<std::vector<float>> gradients() override { return gradients_; }
  Result<std::vector<float>> parameters() override { return parameters_; }
  Status synchronize() override { return {}; }

 private:
  bool bf16() const { return options_.compute == DType::kBF16; }
  void round() {
    if (!bf16()) return;
    train::bf16_from_float(parameters_.data(), half_.data(),
                           static_cast<std::int64_t>(half_.size()));
    const std::vector<std::int64_t> offsets = vector_offsets(layout());
    for (std::size_t i = 0; i < layout().units().size(); ++i) {
      const train::UnitInfo& unit = layout().units()[i];
      train::expand_vectors(
          layout(), static_cast<int>(i),
          std::span<const std::uint16_t>(half_).subspan(static_cast<std::size_t>(unit.flat_offset),
                                                        static_cast<std::size_t>(unit.elements)),
          std::span(vectors_).subspan(static_cast<std::size_t>(offsets[i]),
                                      static_cast<std::size_t>(unit.vector_elements)));
    }
  }

  TrainOptions options_;
  std::unique_ptr<train::Model> model_;
  Activations activations_;
  std::vector<float> parameters_, gradients_, first_, second_, vectors_;
  std::vector<std::uint16_t> half_;
  std::optional<WholeUnits> units_;
};

class GpuModel final : public TrainedModel {
 public:
  GpuModel(const train::ModelConfig& config, const TrainOptions& options, Gpu& gpu)
      : gpu_(gpu),
        options_(options),
        operators_(operators_of(gpu, options)),
        model_(train::make_model(config, operators_)) {}

  Status attach() {
    const std::int64_t count = elements();
    const auto floats = [&](std::int64_t n) -> Result<float*> {
      return reinterpret_cast<float*>(TROUPE_TRY(gpu_.take(n * 4)));
    };
    parameters_ = TROUPE_TRY(floats(count));
    gradients_ = TROUPE_TRY(floats(count));
    first_ = TROUPE_TRY(floats(count));
    second_ = TROUPE_TRY(floats(count));
    operators_.zero(first_, count);
    operators_.zero(second_, count);
    if (bf16()) {
      half_ = reinterpret_cast<std::uint16_t*>(TROUPE_TRY(gpu_.take(count * 2)));
      vectors_ = TROUPE_TRY(floats(std::max<std::int64_t>(1, vector_offsets(layout()).back())));
      operators_.zero(vectors_, vector_offsets(layout()).back());
    }
    const train::ActivationOptions wanted = activation_options(options_, options_.activations);
    const auto bytes =
        static_cast<std::int64_t>(Activations::bytes_needed(model_->config(), wanted));
    std::byte* memory = TROUPE_TRY(gpu_.take(bytes));
    activations_ = std::make_unique<Activations>(
        model_->config(), wanted, operators_,
        std::span<std::byte>(memory, static_cast<std::size_t>(bytes)));
    const std::int64_t scratch = train::CudaOptimizer::scratch_bytes(layout().tile_count());
    optimizer_.emplace(TROUPE_TRY(train::CudaOptimizer::create(
        *gpu_.stream, {TROUPE_TRY(gpu_.take(scratch)), static_cast<std::size_t>(scratch)})));
    units_.emplace(layout(), parameters_, bf16() ? half_ : nullptr, bf16() ? vectors_ : nullptr,
                   gradients_);
    return operators_.failure();
  }

  const ParameterLayout& layout() const override { return model_->layout(); }
  Status set_parameters(std::span<const float> values, std::int64_t offset) override {
    operators_.upload(values.data(), parameters_ + offset, values.size_bytes());
    return round();
  }
  Status zero_gradients() override {
    operators_.zero(gradients_, elements());
    return operators_.failure();
  }
  Result<LossSum> forward_backward(const MicroBatch& batch, float scale) override {
    return model_->forward_backward(batch, *units_, train::CrossEntropyLoss(), scale,
                                    *activations_);
  }
  Result<double> update(const train::AdamWStep& step) override {
    const std::vector<double> sums =
        TROUPE_TRY(optimizer_->tile_sums(gradients_, elements(), train::kTileElements));
    const double norm = train::combine_tile_sums(sums).norm;
    train::AdamWStep clipped = step;
    clipped.gradient_scale = train::clip_coefficient(norm, kMaxNorm);
    TROUPE_RETURN_IF_ERROR(optimizer_->update(clipped, layout().groups(), 0, parameters_,
                                              gradients_, first_, second_, elements()));
    TROUPE_RETURN_IF_ERROR(round());
    return norm;
  }
  Result<std::vector<float>> gradients() override { return download(gradients_); }
  Result<std::vector<float>> parameters() override { return download(parameters_); }
  Status synchronize() override { return operators_.synchronize(); }

 private:
  bool bf16() const { return options_.compute == DType::kBF16; }
  std::int64_t elements() const { return layout().total_elements(); }

  Result<std::vector<float>> download(const float* from) {
    std::vector<float> values(static_cast<std::size_t>(elements()));
    operators_.download(from, values.data(), values.size() * 4);
    TROUPE_RETURN_IF_ERROR(operators_.failure());
    return values;
  }

  Status convert(const void* from, int from_type, void* to, int to_type, std::int64_t count) {
    return gpu_.device->status(
        gpu_.table().convert(gpu_.stream->get(), from, from_type, to, to_type, count), "convert");
  }

  // bf16 parameters from the fp32 ones; of the 1-D ones what bf16 holds of them, in fp32.
  Status round() {
    if (!bf16()) return operators_.failure();
    TROUPE_RETURN_IF_ERROR(
        convert(parameters_, TROUPE_CUDA_F32, half_, TROUPE_CUDA_BF16, elements()));
    const std::vector<std::int64_t> offsets = vector_offsets(layout());
    for (std::size_t i = 0; i < layout().units().size(); ++i) {
      for (const train::ParameterInfo& parameter : layout().parameters(static_cast<int>(i))) {
        if (parameter.vector_offset < 0) continue;
        TROUPE_RETURN_IF_ERROR(convert(half_ + layout().flat_offset(parameter), TROUPE_CUDA_BF16,
                                       vectors_ + offsets[i] + parameter.vector_offset,
                                       TROUPE_CUDA_F32, parameter.elements));
      }
    }
    return operators_.failure();
  }

  Gpu& gpu_;
  TrainOptions options_;
  train::CudaOperators& operators_;
  std::unique_ptr<train::Model> model_;
  float *parameters_ = nullptr, *gradients_ = nullptr, *first_ = nullptr, *second_ = nullptr,
        *vectors_ = nullptr;
  std::uint16_t* half_ = nullptr;
  std::unique_ptr<Activations> activations_;
  std::optional<train::CudaOptimizer> optimizer_;
  std::optional<WholeUnits> units_;
};

}  // namespace

train::CudaOperators& operators_of(Gpu& gpu, const TrainOptions& options) {
  if (options.fp8) return options.graphs ? *gpu.fp8_graph_operators : *gpu.fp8_operators;
  return options.graphs ? *gpu.graph_operators : *gpu.operators;
}

std::vector<NamedConfig> small_models(bool rehearsal) {
  std::vector<NamedConfig> models = {
      {"llama", parsed(R"({"model_type": "llama", "vocab_size": 99, "hidden_size": 64,
          "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "initializer_range": 0.05, "tie_word_embeddings": true})")},
      {"qwen2.5", parsed(R"({"model_type": "qwen2", "vocab_size": 120, "hidden_size": 128,
          "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
          "num_key_value_heads": 1, "initializer_range": 0.05, "tie_word_embeddings": false})")},
      {"gpt2", parsed(R"({"model_type": "gpt2", "vocab_size": 101, "n_embd": 64, "n_layer": 2,
          "n_head": 4, "n_positions": 64, "initializer_range": 0.05})")},
      {"qwen3", parsed(R"({"model_type": "qwen3", "vocab_size": 96, "hidden_size": 64,
          "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 32, "initializer_range": 0.05,
          "tie_word_embeddings": true})")},
  };
  if (!rehearsal)
    models.push_back({"qwen2.5, 4 blocks of 0.5B's",
                      parsed(R"({"model_type": "qwen2", "vocab_size": 32000, "hidden_size": 896,
          "intermediate_size": 4864, "num_hidden_layers": 4, "num_attention_heads": 14,
          "num_key_value_heads": 2, "initializer_range": 0.02, "tie_word_embeddings": true})")});
  return models;
}

train::ModelConfig rate_model(bool rehearsal) {
  if (rehearsal)
    return parsed(R"({"model_type": "qwen2", "vocab_size": 200, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "tie_word_embeddings": true})");
  return parsed(R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
      "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
      "num_key_value_heads": 2, "tie_word_embeddings": true})");
}

Result<std::unique_ptr<TrainedModel>> host_model(const train::ModelConfig& config,
                                                 const TrainOptions& options,
                                                 train::Operators& operators) {
  return std::unique_ptr<TrainedModel>(std::make_unique<HostModel>(config, options, operators));
}

Result<std::unique_ptr<TrainedModel>> gpu_model(const train::ModelConfig& config,
                                                const TrainOptions& options, Gpu& gpu) {
  auto model = std::make_unique<GpuModel>(config, options, gpu);
  TROUPE_RETURN_IF_ERROR(model->attach());
  return std::unique_ptr<TrainedModel>(std::move(model));
}

std::vector<float> initial_parameters(const train::ModelConfig& config,
                                      const ParameterLayout& layout, std::uint64_t seed) {
  std::vector<float> flat(static_cast<std::size_t>(layout.total_elements()));
  for (std::size_t i = 0; i < layout.units().size(); ++i) {
    const train::UnitInfo& unit = layout.units()[i];
    train::initialize_unit(layout, static_cast<int>(i), config.initializer_range, seed,
                           std::span(flat).subspan(static_cast<std::size_t>(unit.flat_offset),
                                                   static_cast<std::size_t>(unit.elements)));
  }
  return flat;
}

Status set_some_parameters(TrainedModel& model) {
  std::vector<float> numbers(1 << 20);
  std::uint32_t state = 1;
  for (float& x : numbers) {
    state = state * 1664525u + 1013904223u;
    x = (static_cast<float>(state >> 8) / static_cast<float>(1 << 24) - 0.5f) * 0.07f;
  }
  const std::int64_t total = model.layout().total_elements();
  for (std::int64_t at = 0; at < total; at += static_cast<std::int64_t>(numbers.size())) {
    const auto count = std::min(static_cast<std::int64_t>(numbers.size()), total - at);
    TROUPE_RETURN_IF_ERROR(
        model.set_parameters(std::span(numbers).first(static_cast<std::size_t>(count)), at));
  }
  return {};
}

CountingBatch::CountingBatch(std::int64_t row_count, std::int64_t row_length,
                             std::int64_t vocabulary, int step, bool in_segments)
    : rows(row_count), length(row_length) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < length; ++i) {
      ids.push_back(static_cast<std::int32_t>((step * 7 + row * 11 + i * (1 + (step + row) % 3)) %
                                              vocabulary));
      labels.push_back(in_segments && i % 5 == 4 ? train::kIgnoreLabel : ids.back());
      const std::int64_t part = in_segments ? i / 13 : 0;
      samples.push_back(static_cast<std::int32_t>(row * 100 + part));
      places.push_back(static_cast<std::int32_t>(i - 13 * part));
      if (!in_segments) continue;
      positions.push_back(static_cast<std::int32_t>(i % 13));
      segments.push_back(static_cast<std::int32_t>(i / 13));
    }
}

MicroBatch CountingBatch::micro() const {
  const train::DropoutTokens dropout{.seed = 42, .epoch = 0, .samples = samples, .places = places};
  return {rows, length, ids, labels, positions, segments, dropout};
}

}  // namespace troupe::tools::gpu
