#pragma once
// What an optimizer asks of the places where parameters lie.
//
// Most optimizers update every element by itself, so that parameters may be cut anywhere. Others
// need a block of elements, or a whole tensor: their rule is told to the layout, which aligns the
// tensors and says where a shard may end. What needs to be together then is always one rank's, and
// an update needs no communication.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace troupe::train {

// What is updated together and therefore never cut.
enum class UpdateUnit : std::uint8_t { kElement, kBlock, kTensor };

// Elements of a block, counted from the tensor's first one.
inline constexpr std::int64_t kUpdateBlockElements = 256;

struct TensorRule {
  UpdateUnit unit = UpdateUnit::kElement;
  std::uint16_t treatment = 0;  // ParameterGroup::treatment
  // Weight decay applies; nothing: as the model says.
  std::optional<bool> decays = std::nullopt;
};

// A pure function of a tensor's name and shape. May be used from any thread.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual TensorRule rule_of(std::string_view name, std::span<const std::int64_t> shape) const = 0;
};

}  // namespace troupe::train
