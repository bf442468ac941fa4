#pragma once
// JSON: parsing with limits and errors that name the line, and writing.
//
// The value type is Boost.JSON's, under our name; this header is the one place that says so.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/limits.h"
#include "runtime/base/status.h"

namespace troupe::json {

using Value = boost::json::value;
using Object = boost::json::object;
using Array = boost::json::array;

struct ParseOptions {
  std::size_t bytes_max = limits::kConfigBytesMax;
  std::size_t depth_max = limits::kConfigDepthMax;
  // Comments and trailing commas, as in DeepSpeed's configuration files (hjson).
  bool relaxed = false;
  // A key that stands twice in one object is an error. Costs a second pass.
  bool reject_duplicate_keys = false;
  // Where the text begins in what `name` names, for errors.
  std::size_t line = 1, column = 1;
};

// `name` stands in errors: "ds.json:12:3: …". kInvalidArgument, also for numbers no double holds.
Result<Value> parse(std::string_view text, std::string_view name, const ParseOptions& options = {});
// The value at the beginning of `text`, behind which more may follow; `used` becomes its length.
// kDataLoss: the text ends before the value does.
Result<Value> parse_first(std::string_view text, std::size_t& used, std::string_view name,
                          const ParseOptions& options = {});

// One line, no spaces; numbers round-trip (doubles by their shortest form).
std::string write(const Value& value);
// Like Python's json.dumps(value, indent=2, sort_keys=…), floats written as Python's repr does.
std::string write_indented(const Value& value, bool sort_keys);
// A double as Python's repr prints it: 1e-05, 0.1, 1.0, NaN, Infinity.
std::string python_float(double value);

// Members of an object by key; nothing where `value` is no object or lacks the key.
const Value* find(const Value& value, std::string_view key);
std::optional<std::string> find_string(const Value& value, std::string_view key);
std::optional<double> find_number(const Value& value, std::string_view key);
std::optional<std::int64_t> find_integer(const Value& value, std::string_view key);
std::optional<bool> find_bool(const Value& value, std::string_view key);

}  // namespace troupe::json
