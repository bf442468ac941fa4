#include "scheduler/head/prometheus_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace troupe::scheduler {
namespace {

constexpr std::array kShortBounds{1e-5,   2.5e-5, 1e-4,   2.5e-4, 1e-3, 2.5e-3, 1e-2,
                                  2.5e-2, 1e-1,   2.5e-1, 1.0,    2.5,  10.0};
constexpr std::array kLongBounds{1e-3, 1e-2, 1e-1, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0};

// The shortest form that reads back to the same number.
std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (value == std::floor(value) && std::abs(value) < 1e15) {
    return fmt::format("{}", static_cast<std::int64_t>(value));
  }
  return fmt::format("{}", value);
}

void escape(std::string& out, std::string_view text, bool quotes) {
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (quotes && c == '"') {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

}  // namespace

std::span<const double> short_bounds() { return kShortBounds; }
std::span<const double> long_bounds() { return kLongBounds; }

void SecondsHistogram::observe(double seconds) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), seconds);
  ++counts_[static_cast<std::size_t>(bucket - bounds_.begin())];
  sum_ += seconds;
}

void PrometheusText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} ", name);
  escape(text_, help, false);
  text_ += fmt::format("\n# TYPE {} {}\n", name, type);
}

void PrometheusText::line(std::string_view suffix, const MetricLabels& labels, double value) {
  text_ += name_;
  text_ += suffix;
  const char* separator = "{";
  for (const auto& [label, content] : labels) {
    if (content.empty()) continue;  // as if the label were not there
    text_ += separator;
    text_ += label;
    text_ += "=\"";
    escape(text_, content, true);
    text_ += '"';
    separator = ",";
  }
  if (*separator == ',') text_ += '}';
  text_ += ' ';
  text_ += number(value);
  text_ += '\n';
}

void PrometheusText::sample(const MetricLabels& labels, double value) { line("", labels, value); }

void PrometheusText::histogram(std::string_view name, std::string_view help,
                               const SecondsHistogram& values) {
  family(name, "histogram", help);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < values.counts().size(); ++i) {
    count += values.counts()[i];
    const std::string bound = i < values.bounds().size() ? number(values.bounds()[i]) : "+Inf";
    line("_bucket", {{"le", bound}}, static_cast<double>(count));
  }
  line("_sum", {}, values.sum());
  line("_count", {}, static_cast<double>(count));
}

}  // namespace troupe::scheduler
