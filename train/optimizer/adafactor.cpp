// Adafactor (Shazeer and Stern, 2018) as transformers' Trainer sets it: no relative steps, no
// scaling by the parameters, no first moment. Of a matrix means of squares by row and by column are
// kept, of a vector the means of squares themselves; an update's root mean square is at most 1.

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/optimizer/optimizers.h"
#include "train/optimizer/tensor_names.h"
#include "train/optimizer/whole_tensors.h"

namespace troupe::train {
namespace {

constexpr double kSquareFloor = 1e-30, kClipThreshold = 1.0, kDecayRate = -0.8;

// By tensor: of a matrix the rows, then the columns. See written_slot().
constexpr std::string_view kAdafactorSlots[] = {"factors_even", "factors_odd"};

class AdafactorUpdate final : public PreparedUpdate {
 public:
  AdafactorUpdate(double weight_decay, const OptimizerStep& step,
                  std::span<const ParameterGroup> groups)
      : rates_(GroupRate::of(step, weight_decay, groups)),
        beta_(1.0 - std::pow(static_cast<double>(step.updates), kDecayRate)),
        gradient_scale_(step.gradient_scale),
        written_(written_slot(step.updates)),
        key_(step.rounding_key) {}

  void direction(const TensorUpdate& tensor) const override {
    if (tensor.shape.size() < 2)
      of_vector(tensor);
    else
      of_matrix(tensor, MatrixShape(tensor.shape));
    double squares = 0.0;
    for (const float value : tensor.direction) squares += static_cast<double>(value) * value;
    const double rms = std::sqrt(squares / static_cast<double>(tensor.direction.size()));
    const auto factor = static_cast<float>(static_cast<double>(rates_[tensor.group].learning_rate) /
                                           std::max(1.0, rms / kClipThreshold));
    for (float& value : tensor.direction) value *= factor;
  }

  void update(std::size_t group, const UpdateChunk& chunk) const override {
    subtract_direction(chunk, key_, rates_[group].keep);
  }

 private:
  double mean_of(float before, double now) const {
    return beta_ * static_cast<double>(before) + (1.0 - beta_) * now;
  }

  void of_vector(const TensorUpdate& tensor) const {
    const std::span<const float> before = tensor.slots[1 - written_];
    const std::span<float> squares = tensor.slots[written_];
    for (std::size_t i = 0; i < squares.size(); ++i) {
      const double g = static_cast<double>(tensor.gradients[i] * gradient_scale_);
      squares[i] = static_cast<float>(mean_of(before[i], g * g + kSquareFloor));
      tensor.direction[i] = static_cast<float>(g / std::sqrt(static_cast<double>(squares[i])));
    }
  }

  void of_matrix(const TensorUpdate& tensor, const MatrixShape& shape) const {
    const auto rows = static_cast<std::size_t>(shape.rows);
    const auto columns = static_cast<std::size_t>(shape.columns);
    std::vector<double> row_sums(rows), column_sums(columns);
    for (std::size_t r = 0; r < rows; ++r) {
      const float* const line = tensor.gradients.data() + r * columns;
      double sum = 0.0;
      for (std::size_t c = 0; c < columns; ++c) {
        const double g = static_cast<double>(line[c] * gradient_scale_);
        const double square = g * g + kSquareFloor;
        sum += square;
        column_sums[c] += square;
      }
      row_sums[r] = sum;
    }
    const auto update_means = [&](std::vector<double>& sums, std::size_t first, double count) {
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const float mean =
            static_cast<float>(mean_of(tensor.slots[1 - written_][first + i], sums[i] / count));
        tensor.slots[written_][first + i] = mean;
        sums[i] = static_cast<double>(mean);
      }
    };
    update_means(row_sums, 0, static_cast<double>(columns));
    update_means(column_sums, rows, static_cast<double>(rows));
    double mean = 0.0;
    for (const double value : row_sums) mean += value;
    mean /= static_cast<double>(rows);
    std::vector<float> column_factors(columns);
    for (std::size_t c = 0; c < columns; ++c)
      column_factors[c] = static_cast<float>(1.0 / std::sqrt(column_sums[c]));
    for (std::size_t r = 0; r < rows; ++r) {
      const auto row_factor = static_cast<float>(1.0 / std::sqrt(row_sums[r] / mean));
      for (std::size_t c = 0; c < columns; ++c) {
        const std::size_t at = r * columns + c;
        tensor.direction[at] =
            tensor.gradients[at] * gradient_scale_ * row_factor * column_factors[c];
      }
    }
  }

  const std::vector<GroupRate> rates_;
  const double beta_;
  const float gradient_scale_;
  const std::size_t written_;
  const std::optional<std::uint64_t> key_;
};

class Adafactor final : public Optimizer, public UpdateRule {
 public:
  explicit Adafactor(double weight_decay) : weight_decay_(weight_decay) {}

  std::string_view name() const override { return "Adafactor"; }
  std::span<const std::string_view> slots() const override { return kAdafactorSlots; }
  const UpdateRule* rule() const override { return this; }
  TensorRule rule_of(std::string_view, std::span<const std::int64_t>) const override {
    return {.unit = UpdateUnit::kTensor};
  }
  SlotStorage storage(std::size_t, std::uint16_t) const override { return SlotStorage::kTensor; }
  std::vector<std::int64_t> tensor_shape(std::size_t, std::uint16_t,
                                         std::span<const std::int64_t> shape) const override {
    if (shape.size() < 2) return {shape.begin(), shape.end()};
    const MatrixShape matrix(shape);
    return {matrix.rows + matrix.columns};
  }
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override {
    return std::make_unique<AdafactorUpdate>(weight_decay_, step, groups);
  }

 private:
  const double weight_decay_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const OptimizerSettings& settings) {
  return std::make_unique<Adafactor>(settings.weight_decay);
}

}  // namespace troupe::train
