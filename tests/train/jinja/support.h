#pragma once
// What a template makes of a context, in one text; the clock that the golden values were made at.

#include <ctime>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "train/jinja/template.h"

namespace troupe::train::jinja {

// 2026-01-15 12:30:45, wherever the test runs.
inline ManualClock& fixed_clock() {
  static ManualClock clock;
  static const bool moved = [] {
    std::tm parts{};
    parts.tm_year = 126;
    parts.tm_mday = 15;
    parts.tm_hour = 12;
    parts.tm_min = 30;
    parts.tm_sec = 45;
    parts.tm_isdst = -1;
    clock.advance(std::chrono::microseconds(std::mktime(&parts) * std::int64_t{1'000'000} -
                                            clock.unix_time_us()));
    return true;
  }();
  static_cast<void>(moved);
  return clock;
}

// "UndefinedError: 'x' is undefined"
inline std::string error_text(const Status& status) {
  return std::string(status.context("class").value_or("?")) + ": " + status.message();
}

// The text, or the error.
inline std::string rendered(std::string_view source, const json::Object& context = {},
                            const RenderLimits& limits = {}) {
  const auto parsed = Template::parse(source);
  if (!parsed) return error_text(parsed.status());
  const auto out = parsed->render(context, fixed_clock(), limits);
  return out ? out->text : error_text(out.status());
}

}  // namespace troupe::train::jinja
