#pragma once
// What a pass works on. Private to this folder.

#include <cstdint>

namespace troupe::train {

// (rows, length) tokens whose integer tables lie in the activations.
struct BatchShape {
  std::int64_t rows = 0;
  std::int64_t length = 0;
  bool segments = false;  // Activations::first_key is in force
  bool windowed = false;  // Activations::window_first_key is, in layers that have a window
  std::int64_t tokens() const { return rows * length; }
};

}  // namespace troupe::train
