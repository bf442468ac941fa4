// Muon (Jordan et al., 2024) as LLaMA-Factory has it: matrices step along their orthogonalised
// momentum, scaled to the size of AdamW's steps (Liu et al., 2025); the rest by AdamW.

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/optimizer/adamw.h"
#include "train/optimizer/matrices.h"
#include "train/optimizer/optimizers.h"
#include "train/optimizer/tensor_names.h"
#include "train/optimizer/whole_tensors.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr std::uint16_t kByAdamW = 0, kByMuon = 1;
constexpr float kMomentum = 0.95f;
constexpr int kIterations = 5;

// AdamW's, then the momentum of matrices by tensor: see written_slot().
constexpr std::string_view kMuonSlots[] = {"exp_avg", "exp_avg_sq", "momentum_even",
                                           "momentum_odd"};
constexpr std::size_t kMomentumSlots = 2;

float to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

void round_to_bf16(Matrix& matrix) {
  for (float& value : matrix.values) value = to_bf16(value);
}

Matrix rounded_product(const Matrix& a, const Matrix& b, Transposed which = Transposed::kNeither) {
  Matrix c = product(a, b, which, Factors::kBf16);
  round_to_bf16(c);
  return c;
}

// x·a + y·b, every step rounded.
void combine(Matrix& x, float a, const Matrix& y) {
  for (std::size_t i = 0; i < x.values.size(); ++i)
    x.values[i] = to_bf16(to_bf16(x.values[i] * a) + y.values[i]);
}

// The zeroth power, roughly: singular values between 0.7 and 1.2, by Newton–Schulz iterations of
// the fifth order in bf16.
Matrix orthogonalised(Matrix x) {
  constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
  round_to_bf16(x);
  const bool tall = x.rows > x.columns;
  if (tall) x = transposed(x);
  double squares = 0.0;
  for (const float value : x.values) squares += static_cast<double>(value) * value;
  const float norm = to_bf16(to_bf16(static_cast<float>(std::sqrt(squares))) + 1e-7f);
  for (float& value : x.values) value = to_bf16(value / norm);
  for (int i = 0; i < kIterations; ++i) {
    Matrix a = rounded_product(x, x, Transposed::kSecond);
    Matrix scaled = a;
    for (float& value : scaled.values) value = to_bf16(value * kC);
    const Matrix square = rounded_product(scaled, a);
    combine(a, kB, square);
    combine(x, kA, rounded_product(a, x));
  }
  return tall ? transposed(x) : x;
}

class MuonUpdate final : public PreparedUpdate {
 public:
  MuonUpdate(AdamWStep adamw, const OptimizerStep& step, std::span<const ParameterGroup> groups)
      : groups_(groups),
        rates_(GroupRate::of(step, adamw.weight_decay, groups)),
        gradient_scale_(step.gradient_scale),
        written_(kMomentumSlots + written_slot(step.updates)),
        read_(kMomentumSlots + written_slot(step.updates + 1)),
        key_(step.rounding_key) {
    adamw.epsilon = uncorrected_epsilon(adamw, step.updates);
    adamw_ = AdamW(adamw).prepare(step, groups);
  }

  void direction(const TensorUpdate& tensor) const override {
    const MatrixShape shape(tensor.shape);
    Matrix towards(shape.rows, shape.columns);
    const std::span<const float> before = tensor.slots[read_];
    const std::span<float> momentum = tensor.slots[written_];
    for (std::size_t i = 0; i < momentum.size(); ++i) {
      const float g = tensor.gradients[i] * gradient_scale_;
      momentum[i] = before[i] * kMomentum + g;
      towards.values[i] = g + momentum[i] * kMomentum;
    }
    const Matrix step = orthogonalised(std::move(towards));
    const auto factor =
        static_cast<float>(static_cast<double>(rates_[tensor.group].learning_rate) * 0.2 *
                           std::sqrt(static_cast<double>(std::max(shape.rows, shape.columns))));
    for (std::size_t i = 0; i < step.values.size(); ++i)
      tensor.direction[i] = step.values[i] * factor;
  }

  void update(std::size_t group, const UpdateChunk& chunk) const override {
    if (groups_[group].treatment == kByMuon)
      subtract_direction(chunk, key_, rates_[group].keep);
    else
      adamw_->update(group, chunk);
  }

 private:
  const std::span<const ParameterGroup> groups_;
  const std::vector<GroupRate> rates_;
  std::unique_ptr<const PreparedUpdate> adamw_;
  const float gradient_scale_;
  const std::size_t written_, read_;
  const std::optional<std::uint64_t> key_;
};

class Muon final : public Optimizer, public UpdateRule {
 public:
  explicit Muon(const OptimizerSettings& settings)
      : adamw_{.beta1 = settings.beta1,
               .beta2 = settings.beta2,
               .epsilon = settings.epsilon,
               .weight_decay = settings.weight_decay} {}

  std::string_view name() const override { return "Muon"; }
  std::span<const std::string_view> slots() const override { return kMuonSlots; }
  const UpdateRule* rule() const override { return this; }
  // Weight decay is for all of them, norms and biases, too.
  TensorRule rule_of(std::string_view name, std::span<const std::int64_t> shape) const override {
    if (shape.size() != 2 || has_any_word(name, "embed lm_head"))
      return {.treatment = kByAdamW, .decays = true};
    return {.unit = UpdateUnit::kTensor, .treatment = kByMuon, .decays = true};
  }
  SlotStorage storage(std::size_t slot, std::uint16_t treatment) const override {
    const bool momentum = slot >= kMomentumSlots;
    if (momentum != (treatment == kByMuon)) return SlotStorage::kNothing;
    return momentum ? SlotStorage::kTensor : SlotStorage::kState;
  }
  std::vector<std::int64_t> tensor_shape(std::size_t, std::uint16_t,
                                         std::span<const std::int64_t> shape) const override {
    return {shape.begin(), shape.end()};
  }
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override {
    return std::make_unique<MuonUpdate>(adamw_, step, groups);
  }

 private:
  const AdamWStep adamw_;
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimizerSettings& settings) {
  return std::make_unique<Muon>(settings);
}

}  // namespace troupe::train
