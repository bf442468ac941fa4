#pragma once
// A model whose embedding gets more rows than its folder has, for tokens that are new.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

struct GrownVocabulary {
  std::int64_t rows_before = 0;
  std::uint64_t seed = 0;
  // Rows of described tokens, and the tokens of their descriptions, which are of those before.
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> described;
  bool described_noise = false;

  json::Value to_json() const;
  // nothing for null.
  static Result<std::optional<GrownVocabulary>> from_json(const json::Value* value);

  // Fills the rows of `matrix` behind rows_before, each `width` wide: the mean of those before and
  // normal noise of deviation 1/√width; of described tokens the mean of their descriptions' rows of
  // `embedding`, with the noise or without. An element depends on (seed, name, its index) and the
  // rows before alone.
  void fill(std::span<float> matrix, std::int64_t width, std::string_view name,
            std::span<const float> embedding) const;
};

}  // namespace troupe::train
