// GaLore (Zhao et al., 2024) and APOLLO (Zhu et al., 2024) as galore_torch and apollo_torch have
// them. Both keep AdamW's moments of a gradient that is projected to a few dimensions. GaLore's
// step is what the moments say, projected back; APOLLO's is the gradient, scaled by row, by column
// or as a whole as the moments scale the projected one.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "train/optimizer/adamw.h"
#include "train/optimizer/element_blocks.h"
#include "train/optimizer/matrices.h"
#include "train/optimizer/optimizers.h"
#include "train/optimizer/tensor_names.h"
#include "train/optimizer/torch_random.h"
#include "train/optimizer/whole_tensors.h"

namespace troupe::train {
namespace {

constexpr std::uint16_t kUnprojected = 0, kProjected = 1;

// AdamW's, then by tensor the projection and its moments: see written_slot().
constexpr std::string_view kProjectionSlots[] = {"exp_avg", "exp_avg_sq", "projected_even",
                                                 "projected_odd"};
constexpr std::size_t kProjectedSlots = 2;

// Which sides of a matrix are multiplied by a projection.
struct Sides {
  bool left = false, right = false;
};

Sides sides_of(const MatrixShape& shape, std::string_view type) {
  const bool tall = shape.rows >= shape.columns;
  if (type == "full") return {true, true};
  if (type == "left") return {.left = true};
  if (type == "right") return {.right = true};
  return type == "std" ? Sides{.left = !tall, .right = tall} : Sides{.left = tall, .right = !tall};
}

// What is kept of a matrix, one part behind the other.
struct ProjectedShape {
  ProjectedShape(const MatrixShape& of, const ProjectionSettings& settings)
      : matrix(of), sides(sides_of(of, settings.type)) {
    // Singular vectors are no more than the shorter side; random ones are as many as asked for.
    rank = settings.random ? settings.rank : std::min(settings.rank, std::min(of.rows, of.columns));
    rows = sides.left ? rank : of.rows;
    columns = sides.right ? rank : of.columns;
  }
  std::int64_t left_elements() const { return sides.left ? matrix.rows * rank : 0; }
  std::int64_t right_elements() const { return sides.right ? rank * matrix.columns : 0; }
  std::int64_t moment_elements() const { return rows * columns; }
  // The last number is the norm of APOLLO's last step.
  std::int64_t elements() const {
    return left_elements() + right_elements() + 2 * moment_elements() + 1;
  }

  MatrixShape matrix;
  Sides sides;
  std::int64_t rank = 0;
  std::int64_t rows = 0, columns = 0;  // of the projected gradient
};

struct ProjectedState {
  ProjectedState(const ProjectedShape& shape, std::span<float> kept) {
    const auto take = [&](std::int64_t count) {
      const auto part = kept.first(static_cast<std::size_t>(count));
      kept = kept.subspan(part.size());
      return part;
    };
    left = take(shape.left_elements());
    right = take(shape.right_elements());
    first = take(shape.moment_elements());
    second = take(shape.moment_elements());
    norm = take(1);
  }
  std::span<float> left, right, first, second, norm;
};

Matrix matrix_of(std::int64_t rows, std::int64_t columns, std::span<const float> values) {
  Matrix matrix(rows, columns);
  std::ranges::copy(values, matrix.values.begin());
  return matrix;
}

double norm_of(std::span<const float> values) {
  double squares = 0.0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

class ProjectedUpdate final : public PreparedUpdate {
 public:
  ProjectedUpdate(const AdamWStep& adamw, const ProjectionSettings& settings,
                  const OptimizerStep& step, std::span<const ParameterGroup> groups)
      : settings_(settings),
        groups_(groups),
        rates_(GroupRate::of(step, adamw.weight_decay, groups)),
        updates_(step.updates),
        beta1_(static_cast<float>(adamw.beta1)),
        beta1_rest_(static_cast<float>(1.0 - adamw.beta1)),
        beta2_(static_cast<float>(adamw.beta2)),
        beta2_rest_(static_cast<float>(1.0 - adamw.beta2)),
        epsilon_(static_cast<float>(adamw.epsilon)),
        gradient_scale_(step.gradient_scale),
        key_(step.rounding_key) {
    const auto count = static_cast<double>(step.updates);
    const double correction =
        std::sqrt(1.0 - std::pow(adamw.beta2, count)) / (1.0 - std::pow(adamw.beta1, count));
    for (const ParameterGroup& group : groups)
      step_sizes_.push_back(
          static_cast<float>(step.learning_rate * group.learning_rate_factor * correction));
  }

  void direction(const TensorUpdate& tensor) const override {
    const MatrixShape matrix(tensor.shape);
    const ProjectedShape shape(matrix, settings_);
    Matrix gradient = matrix_of(matrix.rows, matrix.columns, tensor.gradients);
    for (float& value : gradient.values) value *= gradient_scale_;
    const std::size_t written = kProjectedSlots + written_slot(updates_);
    const std::size_t read = kProjectedSlots + written_slot(updates_ + 1);
    const ProjectedState before(shape, tensor.slots[read]);
    const ProjectedState after(shape, tensor.slots[written]);
    if ((updates_ - 1) % settings_.interval == 0) {
      make_projections(shape, gradient, tensor.number, after);
    } else {
      std::ranges::copy(before.left, after.left.begin());
      std::ranges::copy(before.right, after.right.begin());
    }
    const Matrix left = matrix_of(matrix.rows, shape.rank, after.left);
    const Matrix right = matrix_of(shape.rank, matrix.columns, after.right);
    Matrix low = shape.sides.left ? product(left, gradient, Transposed::kFirst) : gradient;
    if (shape.sides.right) low = product(low, right, Transposed::kSecond);
    Matrix normed(shape.rows, shape.columns);
    for (std::size_t i = 0; i < low.values.size(); ++i) {
      const float g = low.values[i];
      after.first[i] = before.first[i] * beta1_ + g * beta1_rest_;
      after.second[i] = before.second[i] * beta2_ + g * g * beta2_rest_;
      normed.values[i] = after.first[i] / (std::sqrt(after.second[i]) + epsilon_);
    }
    after.norm[0] = 0.0f;
    if (settings_.scales_gradient) {
      scale(gradient, low, normed, shape);
      limit(gradient, before, after);
    } else {
      gradient = shape.sides.left ? product(left, normed) : std::move(normed);
      if (shape.sides.right) gradient = product(gradient, right);
      for (float& value : gradient.values) value *= static_cast<float>(settings_.scale);
    }
    const float step_size = step_sizes_[tensor.group];
    for (std::size_t i = 0; i < gradient.values.size(); ++i)
      tensor.direction[i] = gradient.values[i] * step_size;
  }

  // Parameters decay after their step.
  void update(std::size_t group, const UpdateChunk& chunk) const override {
    const float keep = rates_[group].keep, step_size = step_sizes_[group];
    if (groups_[group].treatment == kProjected) {
      return ElementBlocks(chunk, gradient_scale_, key_, 0)
          .for_each([&](const ElementBlock& block) {
            const float* const direction = chunk.directions.data() + block.at;
            for (std::int64_t i = 0; i < block.count; ++i)
              block.parameters[i] = (block.parameters[i] - direction[i]) * keep;
          });
    }
    ElementBlocks(chunk, gradient_scale_, key_, 2).for_each([&](const ElementBlock& block) {
      float *const m = block.slots[0], *const v = block.slots[1];
      for (std::int64_t i = 0; i < block.count; ++i) {
        const float g = block.gradients[i];
        m[i] = m[i] * beta1_ + g * beta1_rest_;
        v[i] = v[i] * beta2_ + g * g * beta2_rest_;
        const float step = step_size * (m[i] / (std::sqrt(v[i]) + epsilon_));
        block.parameters[i] = (block.parameters[i] - step) * keep;
      }
    });
  }

 private:
  void make_projections(const ProjectedShape& shape, const Matrix& gradient, std::int64_t number,
                        const ProjectedState& to) const {
    if (settings_.random) {
      // apollo_torch's seeds: the tensor's number, then each from the one before.
      auto seed = static_cast<std::uint64_t>(number);
      constexpr int kDraws = 15;
      for (std::int64_t i = 0; i < (updates_ - 1) / settings_.interval; ++i) {
        TorchGenerator generator(seed);
        for (int draw = 0; draw < kDraws; ++draw) seed = generator.below_int64_max();
      }
      const std::span<float> values = shape.sides.left ? to.left : to.right;
      TorchGenerator(seed).normal(values);
      const auto root = static_cast<float>(std::sqrt(static_cast<double>(shape.rank)));
      for (float& value : values) value /= root;
      return;
    }
    if (shape.sides.left)
      std::ranges::copy(left_singular_vectors(gradient, shape.rank).values, to.left.begin());
    if (shape.sides.right)
      std::ranges::copy(right_singular_vectors(gradient, shape.rank).values, to.right.begin());
  }

  // APOLLO: the gradient as the moments scale its projection.
  void scale(Matrix& gradient, const Matrix& low, const Matrix& normed,
             const ProjectedShape& shape) const {
    constexpr double kFloor = 1e-8;
    const auto front = static_cast<float>(settings_.scale_front ? std::sqrt(settings_.scale) : 1.0);
    if (settings_.by_tensor) {
      const auto factor =
          static_cast<float>(norm_of(normed.values) / (norm_of(low.values) + kFloor));
      for (float& value : gradient.values) value = value * factor * front;
      return;
    }
    const bool by_column = gradient.rows < gradient.columns;
    const auto lines = static_cast<std::size_t>(by_column ? shape.columns : shape.rows);
    std::vector<double> normed_squares(lines), low_squares(lines);
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t c = 0; c < shape.columns; ++c) {
        const auto at = static_cast<std::size_t>(r * shape.columns + c);
        const auto line = static_cast<std::size_t>(by_column ? c : r);
        normed_squares[line] += static_cast<double>(normed.values[at]) * normed.values[at];
        low_squares[line] += static_cast<double>(low.values[at]) * low.values[at];
      }
    }
    std::vector<float> factors(lines);
    for (std::size_t i = 0; i < lines; ++i)
      factors[i] =
          static_cast<float>(std::sqrt(normed_squares[i]) / (std::sqrt(low_squares[i]) + kFloor));
    for (std::int64_t r = 0; r < gradient.rows; ++r) {
      for (std::int64_t c = 0; c < gradient.columns; ++c) {
        float& value = gradient.values[static_cast<std::size_t>(r * gradient.columns + c)];
        value = value * factors[static_cast<std::size_t>(by_column ? c : r)] * front;
      }
    }
  }

  // Steps grow by a hundredth at most.
  void limit(Matrix& step, const ProjectedState& before, const ProjectedState& after) const {
    constexpr double kGrowth = 1.01, kFloor = 1e-8;
    double norm = norm_of(step.values);
    if (updates_ > 1) {
      const double limiter =
          std::max(norm / (static_cast<double>(before.norm[0]) + kFloor), kGrowth) / kGrowth;
      for (float& value : step.values) value /= static_cast<float>(limiter);
      norm /= limiter;
    }
    after.norm[0] = static_cast<float>(norm);
    if (settings_.scale_front) return;
    const auto back = static_cast<float>(std::sqrt(settings_.scale));
    for (float& value : step.values) value *= back;
  }

  const ProjectionSettings& settings_;
  const std::span<const ParameterGroup> groups_;
  const std::vector<GroupRate> rates_;
  const std::int64_t updates_;
  const float beta1_, beta1_rest_, beta2_, beta2_rest_, epsilon_;
  const float gradient_scale_;
  const std::optional<std::uint64_t> key_;
  std::vector<float> step_sizes_;  // by group
};

class Projected final : public Optimizer, public UpdateRule {
 public:
  explicit Projected(const OptimizerSettings& settings)
      : adamw_{.beta1 = settings.beta1,
               .beta2 = settings.beta2,
               .epsilon = settings.epsilon,
               .weight_decay = settings.weight_decay},
        settings_(settings.projection) {}

  std::string_view name() const override { return settings_.scales_gradient ? "APOLLO" : "GaLore"; }
  std::span<const std::string_view> slots() const override { return kProjectionSlots; }
  const UpdateRule* rule() const override { return this; }
  TensorRule rule_of(std::string_view name, std::span<const std::int64_t> shape) const override {
    TensorRule rule{.treatment = kUnprojected, .decays = decays_by_llamafactory(name)};
    if (shape.size() != 2 || !is_target(name)) return rule;
    rule.unit = UpdateUnit::kTensor;
    rule.treatment = kProjected;
    return rule;
  }
  SlotStorage storage(std::size_t slot, std::uint16_t treatment) const override {
    const bool projected = slot >= kProjectedSlots;
    if (projected != (treatment == kProjected)) return SlotStorage::kNothing;
    return projected ? SlotStorage::kTensor : SlotStorage::kState;
  }
  std::vector<std::int64_t> tensor_shape(std::size_t, std::uint16_t,
                                         std::span<const std::int64_t> shape) const override {
    return {ProjectedShape(MatrixShape(shape), settings_).elements()};
  }
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override {
    return std::make_unique<ProjectedUpdate>(adamw_, settings_, step, groups);
  }

 private:
  // Weights of nn.Linear whose name has one of the targets; "all": within layers.
  bool is_target(std::string_view name) const {
    const bool in_layer = has_any_word(name, "_proj.weight") && !has_any_word(name, "c_proj.");
    if (settings_.target == "all") return in_layer;
    return (in_layer || has_any_word(name, "lm_head.weight")) &&
           has_any_word(name.substr(0, name.rfind('.')), settings_.target);
  }

  const AdamWStep adamw_;
  const ProjectionSettings settings_;
};

}  // namespace

std::unique_ptr<Optimizer> make_projected(const OptimizerSettings& settings) {
  return std::make_unique<Projected>(settings);
}

}  // namespace troupe::train
