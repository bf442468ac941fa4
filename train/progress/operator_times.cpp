#include "train/progress/operator_times.h"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::train {

void OperatorTimes::begin(std::string_view name, std::string_view variant, int unit,
                          std::int64_t at_ns) {
  end(at_ns);
  const bool at_an_end = unit == 0 || unit == last_unit_;
  const auto same = [&](const Sum& sum) {
    return sum.at_an_end == at_an_end && sum.name == name && sum.variant == variant;
  };
  const auto found = std::find_if(sums_.begin(), sums_.end(), same);
  running_ = static_cast<int>(found - sums_.begin());
  if (found == sums_.end()) sums_.push_back({name, variant, at_an_end});
  since_ns_ = at_ns;
}

void OperatorTimes::end(std::int64_t at_ns) {
  if (running_ == kNothing) return;
  sums_[static_cast<std::size_t>(running_)].ns += at_ns - since_ns_;
  running_ = kNothing;
}

std::vector<OperatorSeconds> OperatorTimes::take(std::int64_t at_ns) {
  const int running = running_;
  end(at_ns);
  std::vector<OperatorSeconds> out;
  for (Sum& sum : sums_) {
    if (sum.ns == 0) continue;
    out.push_back({fmt::format("{}{}{}{}", sum.at_an_end ? "head " : "", sum.name,
                               sum.variant.empty() ? "" : " ", sum.variant),
                   static_cast<double>(sum.ns) / 1e9});
    sum.ns = 0;
  }
  running_ = running;
  since_ns_ = at_ns;
  return out;
}

}  // namespace troupe::train
