// torch.optim.SGD without momentum: p −= lr·(g + wd·p), in fp32, rounded once. It keeps nothing.

#include <algorithm>
#include <vector>

#include "runtime/base/check.h"
#include "train/optimizer/optimizers.h"
#include "train/optimizer/random_rounding.h"
#include "train/tensor/convert.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

struct SgdFactors {
  float learning_rate, weight_decay, gradient_scale;
};

TROUPE_INLINE float updated(const SgdFactors& k, float parameter, float stored_gradient) {
  const float gradient = stored_gradient * k.gradient_scale + parameter * k.weight_decay;
  return parameter - k.learning_rate * gradient;
}

TROUPE_VECTORIZED
void update_elements(const SgdFactors& factors, float* __restrict p, const float* __restrict g,
                     std::int64_t count) {
  const SgdFactors k = factors;
  for (std::int64_t i = 0; i < count; ++i) p[i] = updated(k, p[i], g[i]);
}

TROUPE_VECTORIZED_WORDS
void update_elements(const SgdFactors& factors, std::uint16_t* __restrict p,
                     const float* __restrict g, std::int64_t count) {
  const SgdFactors k = factors;
  for (std::int64_t i = 0; i < count; ++i)
    p[i] = float_to_bf16(updated(k, bf16_to_float(p[i]), g[i]));
}

// `first`: the flat position of element 0.
TROUPE_VECTORIZED_WORDS
void update_randomly(const SgdFactors& factors, std::uint64_t key, std::int64_t first,
                     std::uint16_t* __restrict p, const float* __restrict g, std::int64_t count) {
  const SgdFactors k = factors;
  RoundingWords words;
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t odd = (first + begin) & 1;
    fill_rounding_words(key, first + begin - odd, words);
    const std::uint32_t* low = words.low + odd;
    const std::int64_t size = std::min(RoundingWords::kElements - odd, count - begin);
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t at = begin + i;
      p[at] = random_bf16(updated(k, bf16_to_float(p[at]), g[at]), low[i] & 0xffffu);
    }
    begin += size;
  }
}

class SgdUpdate final : public PreparedUpdate {
 public:
  SgdUpdate(const OptimizerStep& step, double weight_decay, std::span<const ParameterGroup> groups)
      : rounding_key_(step.rounding_key) {
    for (const ParameterGroup& group : groups)
      factors_.push_back(
          {.learning_rate = static_cast<float>(step.learning_rate * group.learning_rate_factor),
           .weight_decay = group.decays ? static_cast<float>(weight_decay) : 0.0f,
           .gradient_scale = step.gradient_scale});
  }

  void update(std::size_t group, const UpdateChunk& chunk) const override {
    const auto count = static_cast<std::int64_t>(chunk.gradients.size());
    const float* const g = chunk.gradients.data();
    const auto words = elements_of<std::uint16_t>(chunk.parameters);
    if (chunk.state != DType::kBF16) {
      TROUPE_CHECK(!rounding_key_, "a state in fp32 is not rounded");
      update_elements(factors_[group], elements_of<float>(chunk.parameters).data(), g, count);
    } else if (rounding_key_) {
      update_randomly(factors_[group], *rounding_key_, chunk.begin, words.data(), g, count);
    } else {
      update_elements(factors_[group], words.data(), g, count);
    }
  }

 private:
  std::vector<SgdFactors> factors_;  // by group
  std::optional<std::uint64_t> rounding_key_;
};

class Sgd final : public Optimizer {
 public:
  explicit Sgd(double weight_decay) : weight_decay_(weight_decay) {}

  std::string_view name() const override { return "SGD"; }
  std::span<const std::string_view> slots() const override { return {}; }
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override {
    return std::make_unique<SgdUpdate>(step, weight_decay_, groups);
  }

 private:
  double weight_decay_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerSettings& settings) {
  return std::make_unique<Sgd>(settings.weight_decay);
}

}  // namespace troupe::train
