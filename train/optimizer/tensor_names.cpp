#include "train/optimizer/tensor_names.h"

namespace troupe::train {

std::int64_t elements_of_shape(std::span<const std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  return elements;
}

bool is_embedding(std::string_view name) {
  return has_any_word(name, "embed_tokens.weight wte.weight wpe.weight");
}

bool has_any_word(std::string_view name, std::string_view words) {
  while (!words.empty()) {
    const std::size_t end = words.find(' ');
    if (name.find(words.substr(0, end)) != name.npos) return true;
    if (end == words.npos) break;
    words.remove_prefix(end + 1);
  }
  return false;
}

bool decays_by_llamafactory(std::string_view name) {
  return !has_any_word(name, "bias ln_1. ln_2. ln_f.");
}

}  // namespace troupe::train
