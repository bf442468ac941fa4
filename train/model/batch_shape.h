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
  bool drops = false;     // Activations::dropout_samples and _places are: the pass trains
  std::uint32_t dropout_seed = 0, dropout_epoch = 0;
  std::int64_t tokens() const { return rows * length; }
};

}  // namespace troupe::train
