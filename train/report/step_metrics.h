#pragma once
// What an objective tells of a step beside its loss: rewards, accuracies, and their like.

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

#include "runtime/base/json.h"

namespace troupe::train {

struct MetricInfo {
  enum class Kind {
    kMean,        // Σ sums / Σ counts
    kSum,         // Σ sums
    kDifference,  // of the means of the first two: it has no sums of its own
  };
  std::string_view name;  // as in logs: "rewards/chosen"
  Kind kind = Kind::kMean;
};

inline constexpr std::size_t kMetricsMax = 10;

// In the order of an objective's MetricInfo. Of a micro-batch, and of any number of them together.
// Plain numbers, so that they can be sent and kept as bytes.
struct MetricSums {
  std::array<double, kMetricsMax> sums{}, counts{};

  void set(std::size_t metric, double sum, double count) {
    sums[metric] = sum;
    counts[metric] = count;
  }
  void add(const MetricSums& other);
  friend bool operator==(const MetricSums&, const MetricSums&) = default;
};
static_assert(std::is_trivially_copyable_v<MetricSums>);

// The metrics that have a value, by their names behind `prefix`, in order.
json::Object metric_values(std::span<const MetricInfo> metrics, const MetricSums& sums,
                           std::string_view prefix = {});
// {name: [sum, count], …}, and back: what is missing or wrong counts for nothing.
json::Object metric_sums_to_json(std::span<const MetricInfo> metrics, const MetricSums& sums);
MetricSums metric_sums_from_json(std::span<const MetricInfo> metrics, const json::Value* value);

}  // namespace troupe::train
