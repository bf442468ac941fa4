#include "train/report/step_metrics.h"

#include <string>

namespace troupe::train {

void MetricSums::add(const MetricSums& other) {
  for (std::size_t i = 0; i < kMetricsMax; ++i) {
    sums[i] += other.sums[i];
    counts[i] += other.counts[i];
  }
}

json::Object metric_values(std::span<const MetricInfo> metrics, const MetricSums& sums,
                           std::string_view prefix) {
  const auto mean = [&](std::size_t i) { return sums.sums[i] / sums.counts[i]; };
  json::Object values;
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    const std::string name = std::string(prefix) + std::string(metrics[i].name);
    if (metrics[i].kind == MetricInfo::Kind::kDifference) {
      if (sums.counts[0] > 0 && sums.counts[1] > 0) values[name] = mean(0) - mean(1);
    } else if (sums.counts[i] > 0) {
      values[name] = metrics[i].kind == MetricInfo::Kind::kSum ? sums.sums[i] : mean(i);
    }
  }
  return values;
}

json::Object metric_sums_to_json(std::span<const MetricInfo> metrics, const MetricSums& sums) {
  json::Object values;
  for (std::size_t i = 0; i < metrics.size(); ++i)
    if (sums.counts[i] > 0)
      values[std::string(metrics[i].name)] = json::Array{sums.sums[i], sums.counts[i]};
  return values;
}

MetricSums metric_sums_from_json(std::span<const MetricInfo> metrics, const json::Value* value) {
  MetricSums sums;
  for (std::size_t i = 0; value && i < metrics.size(); ++i) {
    const json::Value* pair = json::find(*value, metrics[i].name);
    if (!pair || !pair->is_array() || pair->get_array().size() != 2) continue;
    const auto number = [&](std::size_t at) {
      const json::Value& given = pair->get_array()[at];
      return given.is_double()  ? given.get_double()
             : given.is_int64() ? static_cast<double>(given.get_int64())
                                : 0.0;
    };
    sums.set(i, number(0), number(1));
  }
  return sums;
}

}  // namespace troupe::train
