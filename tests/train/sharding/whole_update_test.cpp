// Updates of blocks and whole tensors that are killed anywhere and finished by another process; how
// such tensors are dealt out.
#include <doctest/doctest.h>

#include "tests/train/sharding/engine_ranks.h"
#include "train/optimizer/optimizers.h"
#include "train/sharding/host_update.h"

namespace troupe::train::tests {
namespace {

struct Killed {};

OptimizerSettings whole_settings(std::string_view optim) {
  OptimizerSettings settings{.weight_decay = 0.1, .hidden_size = 64, .heads = 4};
  settings.projection = {.rank = 4, .interval = 2, .scales_gradient = optim == "apollo"};
  settings.blocks = {.layers = 3, .switch_interval = 2};
  return settings;
}

ModelLayout layout_with(const std::shared_ptr<const Optimizer>& optimizer) {
  return ModelLayout(small_model(true), {.rule = {{optimizer, optimizer->rule()}}});
}

// One rank's state in memory that outlives whoever updates it.
class State {
 public:
  State(const std::shared_ptr<const Optimizer>& optimizer)
      : optimizer_(optimizer),
        model_(layout_with(optimizer)),
        rank_(model_, Strategy::kDdp, Mesh{}, 0),
        slots_(places_of(rank_, *optimizer, DType::kF32)),
        log_layout_{.chunks = ShardedOptimizer::chunk_count(rank_),
                    .chunk_bytes_max =
                        ShardedOptimizer::chunk_bytes(DType::kF32, optimizer->slots().size())} {
    const auto elements = static_cast<std::size_t>(rank_.elements(Region::kParameters));
    parameters_.resize(elements);
    for (const ParameterInfo& parameter : model_.trained().parameters())
      initialize_parameter(
          parameter, 0.1, 7, 0,
          std::span(parameters_)
              .subspan(static_cast<std::size_t>(model_.trained().flat_offset(parameter)),
                       static_cast<std::size_t>(parameter.elements)));
    gradients_.resize(elements);
    for (SlotBuffer& slot : slots_) {
      held_.emplace_back(slot.place->bytes() / sizeof(std::uint64_t) + 1);
      slot.data = std::as_writable_bytes(std::span(held_.back())).first(slot.place->bytes());
    }
    marks_.resize(log_layout_.marks_bytes() / sizeof(Line) + 1);
    undo_.resize(log_layout_.undo_bytes() / sizeof(Line) + 1);
  }

  // `moments`: counted down; at 0 the process is killed. Whether it got through.
  bool update(std::int64_t step, std::int64_t& moments) {
    gradients_ = gradients_of(step);
    UpdateLog log(log_layout_, std::as_writable_bytes(std::span(marks_)),
                  std::as_writable_bytes(std::span(undo_)));
    const StateBuffers buffers{.parameters = std::as_writable_bytes(std::span(parameters_)),
                               .gradients = gradients_,
                               .slots = slots_};
    const auto device = make_cpu_optimizer_device(
        OptimizerShard::of(rank_, buffers, *optimizer_),
        [](std::int64_t count, const std::function<void(std::int64_t, int)>& fn) {
          for (std::int64_t i = 0; i < count; ++i) fn(i, 0);
        },
        &log,
        [&](std::uint64_t, std::string_view) {
          if (moments-- == 0) throw Killed();
        });
    try {
      CHECK(device->update({.learning_rate = 1e-2, .updates = step}, step).ok());
    } catch (const Killed&) {
      return false;
    }
    return true;
  }
  const std::vector<float>& parameters() const { return parameters_; }
  const std::vector<std::vector<std::uint64_t>>& held() const { return held_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  // Of every position but padding, some rows nearly alike.
  std::vector<float> gradients_of(std::int64_t step) const {
    std::vector<float> gradients(parameters_.size());
    for (const ParameterInfo& parameter : model_.trained().parameters()) {
      const auto begin = static_cast<std::size_t>(model_.trained().flat_offset(parameter));
      for (std::size_t i = 0; i < static_cast<std::size_t>(parameter.elements); ++i) {
        const auto mixed = static_cast<std::uint32_t>(i + begin + 1) * 2654435761u >> 8;
        gradients[begin + i] =
            static_cast<float>(mixed) * 0x1p-24f - 0.5f + 0.1f * static_cast<float>(step % 2);
      }
    }
    return gradients;
  }

  const std::shared_ptr<const Optimizer> optimizer_;
  const ModelLayout model_;
  const RankLayout rank_;
  std::vector<SlotBuffer> slots_;
  const UpdateLog::Layout log_layout_;
  std::vector<float> parameters_, gradients_;
  std::vector<std::vector<std::uint64_t>> held_;
  std::vector<Line> marks_, undo_;
};

TEST_CASE("an update that was killed anywhere is finished with the bits of an undisturbed one") {
  for (const char* optim :
       {"adamw_8bit", "adafactor", "muon", "galore", "apollo", "adam_mini", "badam"}) {
    CAPTURE(optim);
    const std::shared_ptr<const Optimizer> optimizer = make_optimizer(optim, whole_settings(optim));
    constexpr std::int64_t kNever = 1 << 30;
    State calm(optimizer);
    std::int64_t moments = kNever;
    for (std::int64_t step = 1; step <= 3; ++step) CHECK(calm.update(step, moments));
    const std::int64_t all = (kNever - moments) / 3;
    REQUIRE(all > 6);
    // The last process of the second update was killed before, too.
    for (std::int64_t kill = 0; kill < all; kill += std::max<std::int64_t>(1, all / 4)) {
      State struck(optimizer);
      moments = kNever;
      CHECK(struck.update(1, moments));
      moments = kill;
      CHECK(!struck.update(2, moments));
      moments = 1;
      if (!struck.update(2, moments)) {
        moments = kNever;
        CHECK(struck.update(2, moments));
      }
      moments = kNever;
      CHECK(struck.update(3, moments));
      CHECK(struck.parameters() == calm.parameters());
      CHECK(struck.held() == calm.held());
    }
  }
}

TEST_CASE("whole tensors are one rank's, shards nearly equal, and their slots add up") {
  const std::shared_ptr<const Optimizer> optimizer =
      make_optimizer("adafactor", whole_settings(""));
  const ModelLayout model = layout_with(optimizer);
  const ParameterLayout& layout = model.trained();
  REQUIRE(layout.has_whole_tensors());
  for (const int members : {1, 2, 3, 4}) {
    const ShardMap shards(layout, members);
    std::int64_t sum = 0;
    for (int member = 0; member < members; ++member) sum += shards.shard_elements(member);
    CHECK(sum == layout.total_elements());
    for (const ParameterInfo& parameter : layout.parameters()) {
      int owners = 0;
      for (int member = 0; member < members; ++member) {
        const ElementRange own = shards.range(parameter.unit, member);
        const std::int64_t begin = std::max(own.begin, parameter.offset_elements);
        const std::int64_t end = std::min(own.end, parameter.offset_elements + parameter.elements);
        if (begin < end) ++owners;
      }
      CHECK(owners == 1);
    }
    std::int64_t slots = 0;
    const Mesh mesh{.dp_shard = members};
    for (int rank = 0; rank < members; ++rank)
      slots += slot_bytes(RankLayout(model, Strategy::kZero3, mesh, rank), *optimizer, DType::kF32);
    std::int64_t wanted = 0;
    for (const ParameterInfo& parameter : layout.parameters())
      wanted += 2 * 4 *
                (parameter.shape.size() == 2 ? parameter.shape[0] + parameter.shape[1]
                                             : parameter.shape[0]);
    CHECK(slots == wanted);
  }
}

TEST_CASE("BAdam has memory for the moments of one layer, whichever has its turn") {
  const std::shared_ptr<const Optimizer> optimizer =
      make_optimizer("badam", whole_settings("badam"));
  const ModelLayout model = layout_with(optimizer);
  const ParameterLayout& layout = model.trained();
  std::int64_t largest = 0;
  for (const UnitInfo& unit : layout.units())
    if (&unit != &layout.units().front() && &unit != &layout.units().back())
      largest = std::max(largest, unit.elements);
  const RankLayout whole(model, Strategy::kDdp, Mesh{}, 0);
  CHECK(slot_bytes(whole, *optimizer, DType::kF32) == 2 * 4 * largest);
  // Each rank has the largest of its shards, of layers that are cut in tiles.
  std::int64_t slots = 0;
  for (int rank = 0; rank < 2; ++rank)
    slots += slot_bytes(RankLayout(model, Strategy::kZero3, Mesh{.dp_shard = 2}, rank), *optimizer,
                        DType::kF32);
  CHECK(slots >= 2 * 4 * largest);
  CHECK(slots < 2 * 2 * 4 * largest);
  const SlotPlace place(whole, *optimizer, 0, DType::kF32);
  CHECK(place.in_turn());
  for (const UpdateRange& range : OptimizerShard::ranges_of(whole))
    CHECK(place.position(range.slots) == 0);
  // The first switch comes an update early: the first layer has update 1 alone.
  const UpdateRange first = OptimizerShard::ranges_of(whole)[1];
  CHECK(place.is_used(first.slots, SlotUse::in(1)));
  CHECK_FALSE(place.is_used(first.slots, SlotUse::after(1)));
  CHECK_FALSE(place.is_used(first.slots, SlotUse::in(2)));
  CHECK_FALSE(place.is_used(first.slots, SlotUse::in(0)));
}

}  // namespace
}  // namespace troupe::train::tests
