// The fake's optimizer: train/optimizer's updates and sums, the collectives' tree.

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/collective/reduce_tree.h"
#include "tests/train/cuda/fake/fake_launch.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/gradient_norm.h"
#include "train/tensor/convert.h"

namespace troupe::tests::fake {
namespace {

using train::Operators;

train::AdamWFactors factors_of(const TroupeCudaAdamW& step, float gradient_scale) {
  // `keep` is all that factors take of rate and decay: 1 − 1·(1 − keep) is keep, exactly.
  train::AdamWFactors factors(
      {.learning_rate = 1.0, .weight_decay = 1.0 - static_cast<double>(step.keep)});
  factors.beta1_rest = step.beta1_rest;
  factors.beta2 = step.beta2;
  factors.beta2_rest = step.beta2_rest;
  factors.step_size = step.step_size;
  factors.root_correction = step.root_correction;
  factors.epsilon = step.epsilon;
  factors.gradient_scale = gradient_scale;
  return factors;
}

template <typename T>
void update(const train::AdamWFactors& factors, void* parameters, const float* gradients,
            void* first_moments, void* second_moments, std::int64_t count) {
  const auto span = [count](void* at) {
    return std::span(static_cast<T*>(at), static_cast<std::size_t>(count));
  };
  const train::DecayRange all{0, count, true};
  train::adamw_update(factors, std::span(&all, 1), 0, span(parameters),
                      std::span(gradients, static_cast<std::size_t>(count)), span(first_moments),
                      span(second_moments));
}

int adamw(TroupeCudaStream* stream, const TroupeCudaAdamW* given, void* parameters,
          const float* gradients, void* first_moments, void* second_moments, std::int64_t count,
          const float* gradient_scale) {
  const TroupeCudaAdamW step = *given;
  const int type = step.state_type;
  if (step.round_randomly)
    return state().fail(TROUPE_CUDA_UNSUPPORTED, "adamw: the tests' GPU rounds to nearest only");
  return Launch(stream, "adamw")
      .activations_of(type)
      .needs(parameters, count, type, "parameters")
      .floats(gradients, count, "gradients")
      .needs(first_moments, count, type, "first moments")
      .needs(second_moments, count, type, "second moments")
      .floats(gradient_scale, 1, "gradient_scale")
      .run([=](Operators&) {
        const train::AdamWFactors factors = factors_of(step, *gradient_scale);
        if (type == TROUPE_CUDA_BF16)
          update<std::uint16_t>(factors, parameters, gradients, first_moments, second_moments,
                                count);
        else
          update<float>(factors, parameters, gradients, first_moments, second_moments, count);
      });
}

int tile_sums_of_squares(TroupeCudaStream* stream, const float* x, std::int64_t count,
                         std::int64_t tile_elements, double* sums) {
  const std::int64_t tiles = (count + tile_elements - 1) / tile_elements;
  return Launch(stream, "tile_sums_of_squares")
      .floats(x, count, "x")
      .needs(sums, tiles, TROUPE_CUDA_F64, "sums")
      .run([=](Operators&) {
        for (std::int64_t tile = 0; tile < tiles; ++tile) {
          const std::int64_t begin = tile * tile_elements;
          sums[tile] = train::tile_sum_of_squares(std::span(
              x + begin, static_cast<std::size_t>(std::min(tile_elements, count - begin))));
        }
      });
}

int tree_sum(TroupeCudaStream* stream, const void* const* given, std::int32_t count,
             std::int32_t type, void* out, std::int32_t out_type, std::int64_t elements) {
  Launch launch(stream, "tree_sum");
  launch.activations_of(type)
      .activations_of(out_type)
      .requires_that(count > 0 && count <= TROUPE_CUDA_PARTS_MAX, "a count of parts out of range")
      .needs(out, elements, out_type, "out");
  std::vector<const void*> parts;
  for (std::int32_t i = 0; i < std::min<std::int32_t>(count, TROUPE_CUDA_PARTS_MAX); ++i) {
    parts.push_back(given[i]);
    launch.needs(given[i], elements, type, "a part");
  }
  return launch.run([=](Operators&) {
    std::vector<std::vector<float>> values;
    std::vector<const std::byte*> inputs;
    for (const void* part : parts) {
      const In in(type, part, elements);
      values.emplace_back(static_cast<const float*>(in), static_cast<const float*>(in) + elements);
    }
    for (const auto& value : values)
      inputs.push_back(reinterpret_cast<const std::byte*>(value.data()));
    std::vector<float> sum(static_cast<std::size_t>(elements));
    collective::tree_reduce(inputs, reinterpret_cast<std::byte*>(sum.data()), sum.size(),
                            collective::DataType::kFloat32, collective::ReduceOp::kSum);
    InOut target(out_type, out, elements);
    std::memcpy(static_cast<float*>(target), sum.data(), sum.size() * sizeof(float));
  });
}

}  // namespace

void fill_optimizer(TroupeCudaTable& table) {
  table.adamw = adamw;
  table.tile_sums_of_squares = tile_sums_of_squares;
  table.tree_sum = tree_sum;
}

}  // namespace troupe::tests::fake
