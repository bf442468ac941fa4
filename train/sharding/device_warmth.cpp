#include "train/sharding/device_warmth.h"

#include <algorithm>
#include <span>
#include <vector>

#include "train/cuda/device/device_arena.h"
#include "train/model/model.h"
#include "train/sharding/device_scratch.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kWarmRows = 2, kLength = 64;
constexpr std::int64_t kHeads = 8, kInner = 256, kVocabulary = 512;

// One block with one group of heads, as wide as those are.
ModelConfig small_model_like(ModelConfig model) {
  model.num_attention_heads =
      std::min(model.num_attention_heads / model.num_key_value_heads, kHeads);
  model.num_key_value_heads = 1;
  model.hidden_size = model.query_width();
  model.intermediate_size = std::min(model.intermediate_size, kInner);
  model.vocab_size = std::min(model.vocab_size, kVocabulary);
  model.max_position_embeddings = std::max(model.max_position_embeddings, kLength);
  model.num_hidden_layers = 1;
  if (!model.windowed_layers.empty()) model.windowed_layers.resize(1);
  return model;
}

// All units at the same place, in memory of the device that nobody reads anything from.
class SameUnits final : public UnitAccess {
 public:
  SameUnits(const ParameterLayout& layout, DType compute, std::byte* data, float* vectors,
            float* gradients)
      : layout_(layout), compute_(compute), data_(data), vectors_(vectors), gradients_(gradients) {}

  Result<UnitParameters> acquire(int, Phase) override {
    return UnitParameters{{data_, compute_, compute_ == DType::kBF16 ? vectors_ : nullptr}};
  }
  void release(int, Phase) override {}
  Result<UnitGradient> gradient(int unit) override {
    const std::int64_t elements = layout_.units()[static_cast<std::size_t>(unit)].elements;
    return UnitGradient{{gradients_, static_cast<std::size_t>(elements)}, true};
  }
  Status gradient_done(int) override { return {}; }

 private:
  const ParameterLayout& layout_;
  const DType compute_;
  std::byte* const data_;
  float* const vectors_;
  float* const gradients_;
};

}  // namespace

Status warm_up_device(CudaStream& stream, const ModelConfig& model, const Objective& objective,
                      const ActivationOptions& activations, const CudaOptions& options) {
  const auto& device = stream.device();
  const ModelConfig small = small_model_like(model);
  ActivationOptions sizes = activations;
  sizes.rows_max = kWarmRows;
  sizes.length_max = kLength;
  GemmAlgorithms algorithms(device, kGemmWorkspaceBytes);
  const std::int64_t scratch_bytes = TROUPE_TRY(device_scratch_bytes(
      device->library(), small, objective, sizes, algorithms.workspace_bytes(), options, false));
  const ParameterLayout layout(small);
  std::int64_t elements = 0;
  for (const auto& unit : layout.units()) elements = std::max(elements, unit.elements);
  const std::int64_t fp32_bytes = elements * 4;
  ArenaPlan plan;
  plan.add("parameters", MemoryPurpose::kOther, fp32_bytes);
  plan.add("vectors", MemoryPurpose::kOther, fp32_bytes);
  plan.add("gradients", MemoryPurpose::kOther, fp32_bytes);
  plan.add("activations", MemoryPurpose::kOther,
           static_cast<std::int64_t>(Activations::bytes_needed(small, sizes)));
  plan.add("scratch", MemoryPurpose::kOther, scratch_bytes);
  const DeviceArena memory = TROUPE_TRY(DeviceArena::allocate(device, plan));
  const auto operators =
      TROUPE_TRY(CudaOperators::create(stream, algorithms, memory.part("scratch"), options));
  for (const char* part : {"parameters", "vectors"}) {
    const std::span<float> zeros = memory.part_of<float>(part);
    operators->zero({zeros.data(), DType::kF32}, static_cast<std::int64_t>(zeros.size()));
  }
  const auto built = make_model(small, *operators);
  Activations passes(small, sizes, *operators, memory.part("activations"));
  SameUnits units(built->layout(), sizes.compute, memory.part("parameters").data(),
                  memory.part_of<float>("vectors").data(),
                  memory.part_of<float>("gradients").data());
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(kWarmRows * kLength), 0);
  const MicroBatch batch{kWarmRows, kLength, tokens, tokens, {}, {}};
  TROUPE_RETURN_IF_ERROR(objective.forward_backward(*built, batch, units, 1.0f, passes).status());
  return operators->synchronize();
}

}  // namespace troupe::train
