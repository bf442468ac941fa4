#include "train/optimizer/optimizer.h"

#include <array>

#include "runtime/base/check.h"

namespace troupe::train {

void PreparedUpdate::direction(const TensorUpdate&) const {
  TROUPE_CHECK(false, "an optimizer without whole tensors");
}

void update_chunk(const PreparedUpdate& prepared, const ParameterGroups& groups,
                  const UpdateChunk& chunk, const Optimizer* optimizer) {
  const std::size_t size = dtype_size(chunk.state);
  const std::size_t slots = chunk.slots.size();
  TROUPE_CHECK(slots <= kOptimizerSlotsMax);
  TROUPE_CHECK(chunk.parameters.size() == chunk.gradients.size() * size);
  const std::int64_t end = chunk.begin + static_cast<std::int64_t>(chunk.gradients.size());
  TROUPE_CHECK(end <= groups.end(), "no parameter group at {}", groups.end());
  std::array<std::size_t, kOptimizerSlotsMax> done{};  // bytes of each slot
  groups.for_each_part(
      chunk.begin, end, [&](std::size_t group, std::int64_t from, std::int64_t to) {
        const auto first = static_cast<std::size_t>(from - chunk.begin);
        const auto count = static_cast<std::size_t>(to - from);
        std::array<std::span<std::byte>, kOptimizerSlotsMax> parts;
        for (std::size_t slot = 0; slot < slots; ++slot) {
          const std::size_t bytes =
              optimizer ? storage_bytes(optimizer->storage(slot, groups.groups()[group].treatment),
                                        to - from, size)
                        : count * size;
          if (chunk.slots[slot].empty()) continue;  // not its turn
          parts[slot] = chunk.slots[slot].subspan(done[slot], bytes);
          done[slot] += bytes;
        }
        prepared.update(group, {.begin = from,
                                .state = chunk.state,
                                .parameters = chunk.parameters.subspan(first * size, count * size),
                                .gradients = chunk.gradients.subspan(first, count),
                                .slots = std::span(parts).first(slots),
                                .directions = chunk.directions.empty()
                                                  ? chunk.directions
                                                  : chunk.directions.subspan(first, count)});
      });
}

}  // namespace troupe::train
