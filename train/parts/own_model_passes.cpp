#include "train/parts/own_model_passes.h"

#include <bit>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/json.h"
#include "train/model/held_unit.h"

namespace troupe::train {
namespace {

// As train/model/families/troupe_own.cpp has them.
constexpr int kTensorsUnit = 1, kHead = 2;

std::vector<float> values_of(const MicroBatch& batch) {
  std::vector<float> values;
  values.reserve(batch.ids.size());
  for (std::int64_t i = 0; i < batch.tokens(); ++i)
    if (i % batch.length != 0)
      values.push_back(std::bit_cast<float>(batch.ids[static_cast<std::size_t>(i)]));
  return values;
}

class OwnModelPasses final : public Model {
 public:
  OwnModelPasses(std::shared_ptr<const OwnModel> own, const ModelConfig& config)
      : own_(std::move(own)), config_(config), layout_(config_) {}

  const ModelConfig& config() const override { return config_; }
  const ModelLayout& model_layout() const override { return layout_; }

  Result<LossSum> forward_backward(const MicroBatch& batch, UnitAccess& units, const Loss&,
                                   float scale, Activations&) override {
    TROUPE_RETURN_IF_ERROR(pass_by(units, 0, Phase::kForward));
    TROUPE_RETURN_IF_ERROR(pass_by(units, kTensorsUnit, Phase::kForward));
    TROUPE_RETURN_IF_ERROR(pass_by(units, kHead, Phase::kBackward));
    const HeldUnit unit = TROUPE_TRY(HeldUnit::acquire(units, kTensorsUnit, Phase::kBackward));
    const UnitGradient gradient = TROUPE_TRY(units.gradient(kTensorsUnit));
    std::vector<float> found(gradient.values.size());
    const LossSum sum = TROUPE_TRY(evaluate(batch, unit.parameters(), found));
    for (std::size_t i = 0; i < found.size(); ++i) {
      const float scaled = found[i] * scale;
      gradient.values[i] = gradient.fresh ? scaled : gradient.values[i] + scaled;
    }
    TROUPE_RETURN_IF_ERROR(units.gradient_done(kTensorsUnit));
    return sum;
  }
  Result<LossSum> forward(const MicroBatch& batch, UnitAccess& units, const Loss&,
                          Activations&) override {
    TROUPE_RETURN_IF_ERROR(pass_by(units, 0, Phase::kForward));
    LossSum sum;
    {
      const HeldUnit unit = TROUPE_TRY(HeldUnit::acquire(units, kTensorsUnit, Phase::kForward));
      sum = TROUPE_TRY(evaluate(batch, unit.parameters(), {}));
    }
    TROUPE_RETURN_IF_ERROR(pass_by(units, kHead, Phase::kForward));
    return sum;
  }
  Status logits(const MicroBatch&, UnitAccess&, Activations&, std::span<float>) override {
    return no_text();
  }
  Status decode(std::span<const std::int32_t>, KvCache&, UnitAccess&, Activations&,
                std::span<float>) override {
    return no_text();
  }
  Status decode_each(std::span<const std::int32_t>, std::span<KvCache* const>, UnitAccess&,
                     Activations&, std::span<float>) override {
    return no_text();
  }

 private:
  static Status no_text() {
    return error(Code::kUnsupported, "a model of a program's own makes no text");
  }

  // Units are gathered in the order in which language models use them, the empty ones too.
  static Status pass_by(UnitAccess& units, int unit, Phase phase) {
    return HeldUnit::acquire(units, unit, phase).status();
  }

  // `gradient`: all zero, of the whole unit; empty: none are asked for.
  Result<LossSum> evaluate(const MicroBatch& batch, const UnitParameters& parameters,
                           std::span<float> gradient) const {
    std::vector<std::span<const float>> tensors;
    std::vector<std::span<float>> gradients;
    const auto* data = reinterpret_cast<const float*>(parameters.trained.data);
    for (const ParameterInfo& tensor : layout_.trained().parameters(kTensorsUnit)) {
      const auto offset = static_cast<std::size_t>(tensor.offset_elements),
                 count = static_cast<std::size_t>(tensor.values());
      tensors.emplace_back(data + offset, count);
      if (!gradient.empty()) gradients.push_back(gradient.subspan(offset, count));
    }
    // A rank that has no samples left has a token.
    const std::int64_t count = batch.length == own_->sample_values() + 1 ? batch.rows : 0;
    if (count == 0) return LossSum();
    const std::vector<float> samples = values_of(batch);
    return LossSum{.loss_sum = TROUPE_TRY(own_->evaluate(count, samples, tensors, gradients)),
                   .target_count = count};
  }

  const std::shared_ptr<const OwnModel> own_;
  const ModelConfig config_;
  const ModelLayout layout_;
};

}  // namespace

Result<TrainingSample> row_of_values(const TrainingSample& sample, std::int64_t sample_values) {
  if (std::ssize(sample.values) != sample_values || !sample.ids.empty() || !sample.labels.empty())
    return error(Code::kInvalidArgument,
                 "{} numbers and {} tokens, where the model's samples are {} numbers and no tokens",
                 sample.values.size(), sample.ids.size(), sample_values);
  TrainingSample row{.ids = {0}, .labels = {kIgnoreLabel}};
  for (const float value : sample.values) {
    row.ids.push_back(std::bit_cast<std::int32_t>(value));
    row.labels.push_back(kIgnoreLabel);
  }
  row.labels[1] = 0;
  return row;
}

Result<ModelConfig> config_of(const OwnModel& own) {
  if (own.sample_values() < 1)
    return error(Code::kInvalidArgument, "sample_values() is {}", own.sample_values());
  json::Array tensors;
  std::set<std::string> names;
  for (const OwnTensor& tensor : own.tensors()) {
    if (tensor.name.empty() || !names.insert(tensor.name).second)
      return error(Code::kInvalidArgument, "two tensors of a model have one name, or none: \"{}\"",
                   tensor.name);
    if (tensor.shape.empty())
      return error(Code::kInvalidArgument, "the tensor {} has no shape", tensor.name);
    json::Array shape;
    double elements = 1;
    for (const std::int64_t size : tensor.shape) {
      if (size < 1)
        return error(Code::kInvalidArgument, "the tensor {} has a size of {}", tensor.name, size);
      elements *= static_cast<double>(size);
      shape.push_back(size);
    }
    if (elements > 1e10)
      return error(Code::kInvalidArgument, "the tensor {} has more than 1e10 elements",
                   tensor.name);
    if (!(tensor.initial_deviation >= 0 && tensor.initial_deviation < 1e6))
      return error(Code::kInvalidArgument, "the tensor {} begins with a deviation of {}",
                   tensor.name, tensor.initial_deviation);
    tensors.push_back(json::Object{{"name", tensor.name},
                                   {"shape", std::move(shape)},
                                   {"deviation", tensor.initial_deviation},
                                   {"decays", tensor.decays}});
  }
  if (tensors.empty()) return error(Code::kInvalidArgument, "tensors() names none");
  return ModelConfig::from_json(json::Object{{"model_type", "troupe_own"},
                                             {"architectures", json::Array{"OwnModel"}},
                                             {"vocab_size", 2},
                                             {"hidden_size", 2},
                                             {"intermediate_size", 2},
                                             {"num_hidden_layers", 1},
                                             {"num_attention_heads", 1},
                                             {"tensors", std::move(tensors)}},
                                "the program's model");
}

Result<std::unique_ptr<Model>> make_model(std::shared_ptr<const OwnModel> own,
                                          const ModelConfig& config) {
  const ModelConfig described = TROUPE_TRY(config_of(*own));
  if (described.source.at("tensors") != config.source.at("tensors"))
    return error(Code::kFailedPrecondition,
                 "the model names other tensors than when the run began: they are the same at "
                 "every call, and follow from its arguments");
  return std::unique_ptr<Model>(std::make_unique<OwnModelPasses>(std::move(own), config));
}

}  // namespace troupe::train
