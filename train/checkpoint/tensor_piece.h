#pragma once
// What a rank holds of a tensor: the unit in which sharded state is saved and loaded.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/tensor/dtype.h"

namespace troupe::train {

// Elements [begin, end) of a tensor's row-major order, with their bytes. A tensor that is held
// whole is one piece of all its elements.
struct TensorPiece {
  std::string name;  // "model.norm.weight"; of optimizer state see optimizer_tensor_name()
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // of the whole tensor; empty: a scalar
  std::int64_t begin = 0;
  std::int64_t end = 0;
  // (end − begin) elements, little-endian. Borrowed.
  std::span<const std::byte> data;
};

// The name of what an optimizer keeps of a tensor in one of its slots, whose names have no dot:
// "SLOT.model.norm.weight".
inline std::string optimizer_tensor_name(std::string_view slot, std::string_view tensor) {
  return std::string(slot) + "." + std::string(tensor);
}
// The slot of such a name.
inline std::string_view slot_of(std::string_view name) { return name.substr(0, name.find('.')); }

// A tensor without its bytes.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t elements = 0;  // product of shape
};

}  // namespace troupe::train
