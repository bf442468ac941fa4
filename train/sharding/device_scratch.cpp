#include "train/sharding/device_scratch.h"

#include <algorithm>
#include <span>
#include <vector>

#include "train/cuda/kernels/scratch_sizes.h"
#include "train/cuda/operators/cuda_operators.h"
#include "train/model/model.h"

namespace troupe::train {
namespace {

// An address that nobody may touch, aligned to anything.
template <typename T>
T* nowhere() {
  return reinterpret_cast<T*>(std::uintptr_t{1} << 20);
}

// Units of a model that is not there.
class UnitsNowhere final : public UnitAccess {
 public:
  UnitsNowhere(const ParameterLayout& layout, DType compute) : layout_(layout), compute_(compute) {}

  Result<UnitParameters> acquire(int, Phase) override {
    const bool bf16 = compute_ == DType::kBF16;
    return UnitParameters{
        {nowhere<const std::byte>(), compute_, bf16 ? nowhere<const float>() : nullptr}};
  }
  void release(int, Phase) override {}
  Result<UnitGradient> gradient(int unit) override {
    const std::int64_t elements = layout_.units()[static_cast<std::size_t>(unit)].elements;
    return UnitGradient{{nowhere<float>(), static_cast<std::size_t>(elements)}, true};
  }
  Status gradient_done(int) override { return {}; }

 private:
  const ParameterLayout& layout_;
  const DType compute_;
};

// Answers sizes alone.
std::shared_ptr<const CudaLibrary> sizes_alone() {
  static const TroupeCudaTable table = [] {
    TroupeCudaTable made{};
    made.row_sum_scratch_bytes = cuda::row_sum_scratch_size;
    made.attention_scratch_bytes = [](const TroupeCudaAttention* s) {
      return cuda::attention_scratch_size(s->batch * s->query_heads * s->query_length);
    };
    // Where cuDNN is missing, less is taken than its attention wants.
    made.fused_attention_available = [] { return static_cast<int>(TROUPE_CUDA_OK); };
    made.error_text = [] { return ""; };
    made.embedding_scratch_bytes = cuda::embedding_scratch_size;
    made.quantize_scratch_bytes = cuda::quantize_scratch_size;
    return made;
  }();
  return CudaLibrary::over(table);
}

// With operators that touch no memory.
Status pass_nowhere(CudaOperators& operators, const ModelConfig& config, const Objective& objective,
                    const ActivationOptions& options, bool ragged) {
  const auto model = make_model(config, operators);
  Activations activations(config, options, operators,
                          {nowhere<std::byte>(), Activations::bytes_needed(config, options)});
  UnitsNowhere units(model->layout(), options.compute);
  const std::int64_t tokens = options.rows_max * options.length_max;
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(tokens), 0);
  std::vector<std::int32_t> positions(zeros.size()), segments(zeros.size());
  for (std::size_t i = 0; i < zeros.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    positions[i] = static_cast<std::int32_t>(at % options.length_max);
    segments[i] = static_cast<std::int32_t>(at / options.length_max);
  }
  const DropoutTokens dropout{.samples = segments, .places = positions};
  const MicroBatch all[] = {
      {options.rows_max, options.length_max, zeros, zeros, {}, {}, dropout},
      {options.rows_max, options.length_max, zeros, zeros, positions, segments, dropout},
      {1, tokens, zeros, zeros, positions, segments, dropout},
  };
  const std::span<const MicroBatch> batches = std::span(all).first(ragged ? 3 : 2);
  // Evaluation between the steps has no dropout, and with it what attention takes without.
  const bool evaluates_otherwise = config.attention_dropout > 0;
  for (const MicroBatch& batch : batches) {
    if (options.training)
      TROUPE_RETURN_IF_ERROR(
          objective.forward_backward(*model, batch, units, 1.0f, activations).status());
    if (!options.training || evaluates_otherwise)
      TROUPE_RETURN_IF_ERROR(objective.forward(*model, batch, units, activations).status());
  }
  return {};
}

}  // namespace

Result<std::int64_t> device_scratch_bytes(std::shared_ptr<const CudaLibrary> library,
                                          const ModelConfig& config, const Objective& objective,
                                          const ActivationOptions& options,
                                          std::int64_t workspace_bytes,
                                          const CudaOptions& cuda_options, bool ragged) {
  if (!library) library = sizes_alone();
  const auto meter = CudaOperators::meter(std::move(library), workspace_bytes, cuda_options);
  TROUPE_RETURN_IF_ERROR(pass_nowhere(*meter, config, objective, options, ragged));
  return meter->scratch_needed();
}

Status plan_device_passes(CudaOperators& operators, const ModelConfig& config,
                          const Objective& objective, const ActivationOptions& options,
                          std::int64_t scratch_bytes, bool ragged) {
  operators.begin_planning(scratch_bytes);
  const Status passed = pass_nowhere(operators, config, objective, options, ragged);
  const Status planned = operators.end_planning();
  return passed.ok() ? planned : passed;
}

}  // namespace troupe::train
