#include "train/report/format.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "runtime/base/python_json.h"

namespace troupe::train {
namespace {

// What a bare word of Python's JSON becomes on the way through a strict parser.
struct Word {
  std::string_view bare;
  std::string_view quoted;
  std::string_view marker;
  double value;
};
constexpr std::array kWords = {
    Word{"-Infinity", "\"\\u0001-Infinity\"", "\x01-Infinity",
         -std::numeric_limits<double>::infinity()},
    Word{"Infinity", "\"\\u0001Infinity\"", "\x01Infinity",
         std::numeric_limits<double>::infinity()},
    Word{"NaN", "\"\\u0001NaN\"", "\x01NaN", std::numeric_limits<double>::quiet_NaN()},
};

std::string quote_words(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    if (in_string || text[i] == '"') {
      if (in_string && text[i] == '\\' && i + 1 < text.size())
        out += text[i++];
      else if (text[i] == '"')
        in_string = !in_string;
      out += text[i++];
      continue;
    }
    const Word* found = nullptr;
    for (const auto& word : kWords) {
      if (!found && text.substr(i).starts_with(word.bare)) found = &word;
    }
    out += found ? found->quoted : text.substr(i, 1);
    i += found ? found->bare.size() : 1;
  }
  return out;
}

void restore_words(json::Value& value) {
  if (auto* object = value.if_object()) {
    for (auto& member : *object) restore_words(member.value());
  } else if (auto* array = value.if_array()) {
    for (auto& item : *array) restore_words(item);
  } else if (const auto* text = value.if_string()) {
    for (const auto& word : kWords) {
      if (std::string_view(*text) == word.marker) {
        value = word.value;
        return;
      }
    }
  }
}

std::string scaled(double value, double base, const char* const* units, std::size_t unit_count,
                   int digits_of_first) {
  std::size_t unit = 0;
  // 0.05 below the next unit would print as base.0 of this one.
  while (unit + 1 < unit_count && value >= base - (unit == 0 ? 0.5 : 0.05)) {
    value /= base;
    ++unit;
  }
  return fmt::format("{:.{}f}{}", value, unit == 0 ? digits_of_first : 1, units[unit]);
}

}  // namespace

std::string format_duration(double seconds) {
  // Beyond this the estimate means nothing.
  constexpr double kSecondsMax = 1e10;
  if (!(seconds > 0)) seconds = 0;
  const auto whole = static_cast<long long>(std::min(seconds, kSecondsMax));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(static_cast<double>(bytes), 1024, kUnits, std::size(kUnits), 0);
}

std::string format_count(double count) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  if (!std::isfinite(count)) return "?";
  return scaled(count, 1000, kUnits, std::size(kUnits), 0);
}

std::string format_scientific(double value) {
  const double magnitude = std::fabs(value);
  if (magnitude == 0 || (magnitude >= 0.01 && magnitude < 1e5)) return fmt::format("{:.4f}", value);
  return fmt::format("{:.3e}", value);
}

double round_to(double value, int digits) {
  if (!std::isfinite(value)) return value;
  // printf rounds the exact binary value correctly, which is what Python's round does.
  return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
}

std::string hex_float(double value) {
  if (std::isnan(value)) return "nan";  // without the sign that an addition may leave behind
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%a", value);
  return buffer;
}

std::string python_json(const json::Value& value) { return json::python_json(value); }

Result<json::Value> parse_python_json(std::string_view text, std::string_view name) {
  auto value =
      TROUPE_TRY(json::parse(quote_words(text), name, {.bytes_max = limits::kJsonFileBytesMax}));
  restore_words(value);
  return value;
}

}  // namespace troupe::train
