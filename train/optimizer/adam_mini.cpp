// Adam-mini (Zhang et al., 2024) by version 1.1.1 of its package: one second moment for a head of
// queries or keys, for a row of other matrices, or for a tensor. Which, its name says.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <vector>

#include "train/optimizer/optimizers.h"
#include "train/optimizer/tensor_names.h"
#include "train/optimizer/whole_tensors.h"

namespace troupe::train {
namespace {

enum Treatment : std::uint16_t { kByElement, kByHead, kByRow, kByTensor };

constexpr std::string_view kHeadWords = "k_proj q_proj wq wk query key";
constexpr std::string_view kRowWords =
    "embed embd wte lm_head output final_layer v_proj wv value mlp feed_forward linear o_proj wo "
    "attn.proj";
constexpr std::string_view kNoDecayWords = "norm ln bias";

// The first moments, then the second ones by tensor: see written_slot().
constexpr std::string_view kMiniSlots[] = {"exp_avg", "exp_avg_sq_even", "exp_avg_sq_odd"};

// Elements that share a second moment.
std::int64_t block_elements(std::uint16_t treatment, std::span<const std::int64_t> shape,
                            std::int64_t head_elements) {
  switch (treatment) {
    case kByElement:
      return 1;
    case kByHead:
      return head_elements;
    case kByRow:
      return MatrixShape(shape).columns;
    default:
      return elements_of_shape(shape);
  }
}

class AdamMiniUpdate final : public PreparedUpdate {
 public:
  AdamMiniUpdate(const OptimizerSettings& settings, std::int64_t head_elements,
                 const OptimizerStep& step, std::span<const ParameterGroup> groups)
      : groups_(groups),
        rates_(GroupRate::of(step, settings.weight_decay, groups)),
        head_elements_(head_elements),
        beta1_(static_cast<float>(settings.beta1)),
        beta1_rest_(static_cast<float>(1.0 - settings.beta1)),
        beta2_(settings.beta2),
        epsilon_(settings.epsilon),
        mean_correction_(1.0 - std::pow(settings.beta1, static_cast<double>(step.updates))),
        root_correction_(
            std::sqrt(1.0 - std::pow(settings.beta2, static_cast<double>(step.updates)))),
        gradient_scale_(step.gradient_scale),
        written_(1 + written_slot(step.updates)),
        key_(step.rounding_key) {}

  // What a first moment is multiplied with, of its block.
  void direction(const TensorUpdate& tensor) const override {
    const auto size = static_cast<std::size_t>(
        block_elements(groups_[tensor.group].treatment, tensor.shape, head_elements_));
    const std::span<const float> before = tensor.slots[3 - written_];
    const std::span<float> after = tensor.slots[written_];
    const auto learning_rate = static_cast<double>(rates_[tensor.group].learning_rate);
    for (std::size_t block = 0; block < after.size(); ++block) {
      const auto gradients = tensor.gradients.subspan(block * size, size);
      double squares = 0.0;
      for (const float stored : gradients) {
        const double g = static_cast<double>(stored * gradient_scale_);
        squares += g * g;
      }
      after[block] = static_cast<float>(beta2_ * static_cast<double>(before[block]) +
                                        (1.0 - beta2_) * squares / static_cast<double>(size));
      const double root = std::sqrt(static_cast<double>(after[block])) / root_correction_;
      std::ranges::fill(tensor.direction.subspan(block * size, size),
                        static_cast<float>(learning_rate / (mean_correction_ * (root + epsilon_))));
    }
  }

  void update(std::size_t group, const UpdateChunk& chunk) const override {
    const float keep = rates_[group].keep;
    ElementBlocks(chunk, gradient_scale_, key_, 1).for_each([&](const ElementBlock& block) {
      const float* const factor = chunk.directions.data() + block.at;
      float* const m = block.slots[0];
      for (std::int64_t i = 0; i < block.count; ++i) {
        m[i] = m[i] * beta1_ + block.gradients[i] * beta1_rest_;
        block.parameters[i] = block.parameters[i] * keep - factor[i] * m[i];
      }
    });
  }

 private:
  const std::span<const ParameterGroup> groups_;
  const std::vector<GroupRate> rates_;
  const std::int64_t head_elements_;
  const float beta1_, beta1_rest_;
  const double beta2_, epsilon_, mean_correction_, root_correction_;
  const float gradient_scale_;
  const std::size_t written_;
  const std::optional<std::uint64_t> key_;
};

class AdamMini final : public Optimizer, public UpdateRule {
 public:
  explicit AdamMini(const OptimizerSettings& settings)
      : settings_(settings),
        head_elements_(
            settings.heads > 0 ? settings.hidden_size * settings.hidden_size / settings.heads : 0) {
  }

  std::string_view name() const override { return "Adam-mini"; }
  std::span<const std::string_view> slots() const override { return kMiniSlots; }
  const UpdateRule* rule() const override { return this; }
  TensorRule rule_of(std::string_view name, std::span<const std::int64_t>) const override {
    std::string lower(name);
    std::ranges::transform(lower, lower.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const auto treatment = has_any_word(lower, "bias")       ? kByElement
                           : has_any_word(lower, kHeadWords) ? kByHead
                           : has_any_word(lower, kRowWords)  ? kByRow
                                                             : kByTensor;
    return {.unit = UpdateUnit::kTensor,
            .treatment = treatment,
            .decays = !has_any_word(lower, kNoDecayWords)};
  }
  SlotStorage storage(std::size_t slot, std::uint16_t) const override {
    return slot == 0 ? SlotStorage::kState : SlotStorage::kTensor;
  }
  std::vector<std::int64_t> tensor_shape(std::size_t, std::uint16_t treatment,
                                         std::span<const std::int64_t> shape) const override {
    const std::int64_t each = block_elements(treatment, shape, head_elements_);
    return {each > 0 ? elements_of_shape(shape) / each : 0};
  }
  Status check(std::string_view name, std::span<const std::int64_t> shape) const override {
    if (rule_of(name, shape).treatment != kByHead) return {};
    const std::int64_t elements = elements_of_shape(shape);
    if (head_elements_ > 0 && elements % head_elements_ == 0) return {};
    return error(Code::kUnsupported,
                 "Adam-mini divides queries and keys into blocks of hidden_size² / "
                 "num_attention_heads = {} elements, and {} has {}; leave use_adam_mini out, or "
                 "train other modules",
                 head_elements_, name, elements);
  }
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override {
    return std::make_unique<AdamMiniUpdate>(settings_, head_elements_, step, groups);
  }

 private:
  const OptimizerSettings settings_;
  const std::int64_t head_elements_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam_mini(const OptimizerSettings& settings) {
  return std::make_unique<AdamMini>(settings);
}

}  // namespace troupe::train
