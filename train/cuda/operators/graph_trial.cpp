#include "train/cuda/operators/graph_trial.h"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::train {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void GraphTrial::add(Duration without, Duration with) {
  pairs_.push_back({seconds(without), seconds(with)});
}

std::optional<GraphTrial::Verdict> GraphTrial::verdict() const {
  if (pairs_.size() < kPairs) {
    if (blocks_ < kBlocksMax) return std::nullopt;
    return Verdict{false, fmt::format("of {} blocks only {} were the same twice, as batches of "
                                      "different lengths are not",
                                      blocks_, pairs_.size())};
  }
  // Medians: what else the host did meanwhile is in some of them.
  std::vector<double> shares, without, with;
  for (const Pair& pair : pairs_) {
    shares.push_back(pair.with / std::max(pair.without, 1e-9));
    without.push_back(pair.without);
    with.push_back(pair.with);
  }
  return Verdict{median(shares) <= kShareMax,
                 fmt::format("a block of launches takes {:.0f} us with one and {:.0f} us without",
                             median(with) * 1e6, median(without) * 1e6)};
}

}  // namespace troupe::train
