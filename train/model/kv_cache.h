#pragma once
// Keys and values of the tokens that a sequence has so far.

#include <cstdint>
#include <memory>

#include "train/model/model_config.h"

namespace troupe::train {

// One sequence, in host memory, which is taken as tokens come. Keys are kept rotated.
class KvCache {
 public:
  KvCache(const ModelConfig& config, std::int64_t capacity)
      : capacity_(capacity),
        layer_elements_(capacity * config.key_width()),
        data_(std::make_unique_for_overwrite<float[]>(
            static_cast<std::size_t>(2 * config.num_hidden_layers * layer_elements_))) {}

  std::int64_t capacity() const { return capacity_; }
  // Tokens that are in it.
  std::int64_t length() const { return length_; }
  // (capacity, key heads·head_dim)
  float* keys(std::int64_t layer) { return data_.get() + 2 * layer * layer_elements_; }
  float* values(std::int64_t layer) { return keys(layer) + layer_elements_; }
  void advance(std::int64_t tokens) { length_ += tokens; }
  void clear() { length_ = 0; }

 private:
  std::int64_t capacity_;
  std::int64_t layer_elements_;
  std::int64_t length_ = 0;
  std::unique_ptr<float[]> data_;
};

}  // namespace troupe::train
