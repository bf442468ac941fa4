#include "train/data/byte_model.h"

#include <algorithm>
#include <cmath>

namespace troupe::train {
namespace {

// The last `order` bytes before `at`.
std::uint32_t history_of(std::string_view text, std::size_t at, int order) {
  std::uint32_t history = 0;
  for (int i = order; i > 0; --i) {
    history = history << 8 | static_cast<unsigned char>(text[at - static_cast<std::size_t>(i)]);
  }
  return history;
}

int longest_order(std::size_t at) { return static_cast<int>(std::min<std::size_t>(at, 2)); }

}  // namespace

ByteModel::ByteModel() {
  contexts_[0].resize(1);
  contexts_[1].resize(1u << 8);
  contexts_[2].resize(1u << 16);
}

void ByteModel::train(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    for (int order = longest_order(at); order >= 0; --order) {
      const auto history = history_of(text, at, order);
      auto& context = contexts_[static_cast<std::size_t>(order)][history];
      auto& count = counts_[static_cast<std::size_t>(order)][history << 8 | byte];
      ++context.total;
      if (++count == 1) ++context.distinct;
    }
  }
}

double ByteModel::probability(int order, std::uint32_t history, unsigned char byte) const {
  if (order < 0) return 1.0 / 256;
  const double shorter =
      probability(order - 1, history & ((1u << (8 * std::max(order - 1, 0))) - 1), byte);
  const auto& context = contexts_[static_cast<std::size_t>(order)][history];
  if (context.total == 0) return shorter;
  const auto& counts = counts_[static_cast<std::size_t>(order)];
  const auto at = counts.find(history << 8 | byte);
  const double count = at == counts.end() ? 0.0 : static_cast<double>(at->second);
  return (count + context.distinct * shorter) /
         (static_cast<double>(context.total) + context.distinct);
}

double ByteModel::bits(std::string_view text) const {
  double sum = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const int order = longest_order(at);
    sum -= std::log2(
        probability(order, history_of(text, at, order), static_cast<unsigned char>(text[at])));
  }
  return sum;
}

}  // namespace troupe::train
