#pragma once
// One pass over one transformer layer. Private to this folder.

#include <cstdint>

#include "train/model/activations.h"
#include "train/model/batch_shape.h"

namespace troupe::train {

// The pointers are of the pass's length. Products outside of layers, which have no adapters, are
// given an empty one.
struct LayerPass {
  std::int64_t layer = 0;
  const BatchShape* shape = nullptr;
  const LayerActivations* kept = nullptr;  // the layer's
  const Activations* scratch = nullptr;
  std::int64_t tokens() const { return shape->tokens(); }
};

}  // namespace troupe::train
