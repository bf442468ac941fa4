#pragma once
// The dropouts of a model. Private to this folder.

#include <cstdint>

#include "train/model/activations.h"
#include "train/model/batch_shape.h"
#include "train/tensor/dropout.h"

namespace troupe::train {

// None where the probability is 0 or the pass does not train.
inline Dropout dropout_at(DropoutPlace place, std::int64_t layer, double probability,
                          const BatchShape& shape, const Activations& activations) {
  if (!shape.drops || probability == 0) return {};
  Dropout dropout = dropout_of(probability);
  dropout.seed = shape.dropout_seed, dropout.epoch = shape.dropout_epoch;
  dropout.site = dropout_site(place, static_cast<std::uint32_t>(layer));
  dropout.samples = activations.dropout_samples, dropout.tokens = activations.dropout_places;
  return dropout;
}

// The same of an adapter's input: `number` tells the layer's adapters apart.
inline Dropout adapter_dropout_at(std::uint32_t number, std::int64_t layer, double probability,
                                  const BatchShape& shape, const Activations& activations) {
  Dropout dropout = dropout_at(DropoutPlace::kEmbedding, layer, probability, shape, activations);
  dropout.site =
      dropout_site(DropoutPlace::kEmbedding, static_cast<std::uint32_t>(layer), 1 + number);
  return dropout;
}

}  // namespace troupe::train
