#pragma once
// Numbers and times as people read them, and JSON as Python's json.dumps writes it.

#include <cstdint>
#include <string>

#include "runtime/base/json.h"

namespace troupe::train {

// "0:00:07", "1:02:03", "123:00:00": hours unbounded, seconds cut as Python's int() does; negative
// and non-finite are "0:00:00".
std::string format_duration(double seconds);
// "512 B", "1.5 KiB", "3.2 GiB".
std::string format_bytes(std::uint64_t bytes);
// "999", "1.2k", "35.1M", "2.0G".
std::string format_count(double count);
// A learning rate or loss in a few characters: "3.000e-04", "2.1345".
std::string format_scientific(double value);

// Rounded to `digits` decimals, as Python's round() (half to even of the decimal expansion).
double round_to(double value, int digits);
// C's %a: "0x1.8p+1": every bit of a double, readable by strtod and by Python's float.fromhex;
// "nan", "inf" and "-inf" too.
std::string hex_float(double value);
// One line as Python's json.dumps(value): ", " and ": ", floats by repr, NaN as NaN.
std::string python_json(const json::Value& value);
// Parses what Python's json writes, which is JSON with the bare words NaN, Infinity and -Infinity;
// they become doubles again.
Result<json::Value> parse_python_json(std::string_view text, std::string_view name);

}  // namespace troupe::train
