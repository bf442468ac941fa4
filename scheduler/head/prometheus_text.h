#pragma once
// Prometheus' text exposition format 0.0.4, as its documentation ("Exposition formats") has it.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::scheduler {

inline constexpr std::string_view kPrometheusContentType =
    "text/plain; version=0.0.4; charset=utf-8";

// Observations in buckets: upper bounds in seconds, the last one infinite.
class SecondsHistogram {
 public:
  // Ascending, without infinity; must outlive the histogram.
  explicit SecondsHistogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}
  void observe(double seconds);
  std::span<const double> bounds() const { return bounds_; }
  // By bucket, not cumulative; one more than bounds.
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

// 10 µs … 10 s, three a decade: what a loop or a disk takes.
std::span<const double> short_bounds();
// 1 ms … 1 h: what somebody waits.
std::span<const double> long_bounds();

using MetricLabels = std::vector<std::pair<std::string_view, std::string>>;

// Writes families one after the other; the samples of a family follow it. Names are the caller's
// to choose well: counters end in _total, units are base units.
class PrometheusText {
 public:
  void counter(std::string_view name, std::string_view help) { family(name, "counter", help); }
  void gauge(std::string_view name, std::string_view help) { family(name, "gauge", help); }
  void sample(const MetricLabels& labels, double value);
  void sample(double value) { sample({}, value); }
  void histogram(std::string_view name, std::string_view help, const SecondsHistogram& values);

  std::string take() { return std::move(text_); }

 private:
  void family(std::string_view name, std::string_view type, std::string_view help);
  void line(std::string_view suffix, const MetricLabels& labels, double value);

  std::string text_;
  std::string name_;
};

}  // namespace troupe::scheduler
