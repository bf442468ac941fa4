// BAdam (Luo et al., 2024) by layers, as LLaMA-Factory sets it: AdamW on one layer at a time, with
// moments that begin anew at every switch, so that there is memory for those of one layer alone.
// Embeddings, the final norm and the head are never trained. Weight decay is torch.optim.AdamW's
// own 0.01, for all tensors of the layer.

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <vector>

#include "runtime/base/check.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/optimizers.h"
#include "train/optimizer/torch_random.h"

namespace troupe::train {
namespace {

constexpr double kWeightDecay = 0.01;

// The number behind "layers." or "h." of a name; nothing where there is none.
std::optional<std::int64_t> layer_of(std::string_view name) {
  for (const std::string_view word : {"layers.", "h."}) {
    std::size_t at = name.find(word);
    if (at == name.npos || (at > 0 && name[at - 1] != '.')) continue;
    at += word.size();
    std::int64_t layer = 0;
    const char* const end = name.data() + name.size();
    const auto [after, failed] = std::from_chars(name.data() + at, end, layer);
    if (failed == std::errc() && after != end && *after == '.') return layer;
  }
  return std::nullopt;
}

// Which layer an update is of, and the how-manieth of a row it is.
struct Turn {
  std::int64_t layer = 0, update = 1;
};

Turn turn_of(const BlockSettings& settings, std::int64_t updates) {
  const std::int64_t interval = std::max<std::int64_t>(1, settings.switch_interval);
  // As the package counts: the first switch comes an update early.
  std::int64_t switches = interval == 1 ? updates - 1 : updates / interval;
  std::int64_t first = switches == 0 ? 1 : interval == 1 ? updates : switches * interval;
  if (settings.switch_mode == "fixed") switches = 0, first = 1;
  const bool down = settings.switch_mode == "descending";
  const std::int64_t start = settings.start.value_or(down ? settings.layers - 1 : 0);
  Turn turn{.update = updates - first + 1};
  if (settings.switch_mode == "random") {
    // All layers once, in an order of their own in every round.
    std::vector<std::int64_t> order(static_cast<std::size_t>(settings.layers));
    std::iota(order.begin(), order.end(), 0);
    TorchGenerator generator(settings.seed +
                             static_cast<std::uint64_t>(switches / settings.layers));
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[generator.next() % i]);
    turn.layer = order[static_cast<std::size_t>(switches % settings.layers)];
    return turn;
  }
  const std::int64_t moved = (start + (down ? -switches : switches)) % settings.layers;
  turn.layer = (moved + settings.layers) % settings.layers;
  return turn;
}

class BlockUpdate final : public PreparedUpdate {
 public:
  BlockUpdate(const AdamWStep& adamw, const BlockSettings& settings, OptimizerStep step,
              std::span<const ParameterGroup> groups)
      : groups_(groups), turn_(turn_of(settings, step.updates)) {
    step.updates = turn_.update;
    adamw_ = AdamW(adamw).prepare(step, groups);
  }

  void update(std::size_t group, const UpdateChunk& chunk) const override {
    if (groups_[group].treatment != turn_.layer + 1) return;
    if (turn_.update == 1)
      for (const std::span<std::byte> slot : chunk.slots) std::ranges::fill(slot, std::byte{0});
    adamw_->update(group, chunk);
  }

 private:
  const std::span<const ParameterGroup> groups_;
  const Turn turn_;
  std::unique_ptr<const PreparedUpdate> adamw_;
};

class BlockAdamW final : public Optimizer, public UpdateRule {
 public:
  explicit BlockAdamW(const OptimizerSettings& settings)
      : adamw_{.beta1 = settings.beta1,
               .beta2 = settings.beta2,
               .epsilon = settings.epsilon,
               .weight_decay = kWeightDecay},
        settings_(settings.blocks) {
    if (settings_.layers == 0) settings_.layers = 1;
  }

  std::string_view name() const override { return "BAdam"; }
  std::span<const std::string_view> slots() const override { return AdamW({}).slots(); }
  const UpdateRule* rule() const override { return this; }
  // Treatments: 0, never trained; else the layer, from 1 on.
  TensorRule rule_of(std::string_view name, std::span<const std::int64_t>) const override {
    const auto layer = layer_of(name);
    return {.treatment = static_cast<std::uint16_t>(layer ? *layer + 1 : 0), .decays = true};
  }
  SlotStorage storage(std::size_t, std::uint16_t treatment) const override {
    return treatment == 0 ? SlotStorage::kNothing : SlotStorage::kInTurn;
  }
  bool is_active(std::uint16_t treatment, std::int64_t updates) const override {
    return treatment == turn_of(settings_, updates).layer + 1;
  }
  std::unique_ptr<const PreparedUpdate> prepare(
      const OptimizerStep& step, std::span<const ParameterGroup> groups) const override {
    return std::make_unique<BlockUpdate>(adamw_, settings_, step, groups);
  }

 private:
  const AdamWStep adamw_;
  BlockSettings settings_;
};

}  // namespace

std::unique_ptr<Optimizer> make_block_adamw(const OptimizerSettings& settings) {
  return std::make_unique<BlockAdamW>(settings);
}

}  // namespace troupe::train
