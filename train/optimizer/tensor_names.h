#pragma once
// What optimizers read out of a tensor's name and shape, as the packages that they follow do.
// Private to this folder.

#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::train {

std::int64_t elements_of_shape(std::span<const std::int64_t> shape);
// The weight of an nn.Embedding, tied to the head or not.
bool is_embedding(std::string_view name);
// Whether any of the words, separated by blanks, stands in the name.
bool has_any_word(std::string_view name, std::string_view words);
// Decay parameters in LLaMA-Factory's own groups: no bias, nothing of an nn.LayerNorm. (RMSNorm's
// weights are among them.)
bool decays_by_llamafactory(std::string_view name);

}  // namespace troupe::train
