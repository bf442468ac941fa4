#pragma once
// Reads the keys of one JSON object and remembers the first that was wrong. Private to this folder.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

class ConfigReader {
 public:
  // Sizes above this belong to no model and would overflow the arithmetic on them.
  static constexpr std::int64_t kSizeMax = 1 << 24;

  // Both must outlive the object. `name` stands before every message.
  ConfigReader(const json::Value& value, std::string_view name) : value_(value), name_(name) {}

  const json::Value& value() const { return value_; }
  // ok, or the first failure.
  const Status& status() const { return status_; }

  bool contains(std::string_view key) const { return json::find(value_, key) != nullptr; }
  // Whether the key is there and not null.
  bool has(std::string_view key) const {
    const json::Value* found = json::find(value_, key);
    return found && !found->is_null();
  }

  // An integer in [1, greatest]; without the key `out` stays as it is.
  void size(std::string_view key, std::int64_t& out, bool required,
            std::int64_t greatest = kSizeMax) {
    if (!has(key)) {
      if (required) fail("{} is missing", key);
      return;
    }
    const auto number = json::find_integer(value_, key);
    if (!number || *number < 1 || *number > greatest)
      return fail("{} must be an integer from 1 to {}", key, greatest);
    out = *number;
  }

  // A number that is not negative; without the key `out` stays as it is.
  void number(std::string_view key, double& out) {
    if (!has(key)) return;
    const auto number = json::find_number(value_, key);
    if (!number || !(*number >= 0) || *number > std::numeric_limits<float>::max())
      return fail("{} must be a number that is not negative", key);
    out = *number;
  }

  void boolean(std::string_view key, bool& out) {
    if (!has(key)) return;
    const auto boolean = json::find_bool(value_, key);
    if (!boolean) return fail("{} must be true or false", key);
    out = *boolean;
  }

  // The value is wrong: kInvalidArgument.
  template <typename... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    set(Code::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
  }
  // The value has a meaning that is not implemented: kUnsupported.
  template <typename... Args>
  void refuse(fmt::format_string<Args...> format, Args&&... args) {
    set(Code::kUnsupported, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  void set(Code code, std::string message) {
    if (status_.ok()) status_ = Status(code, fmt::format("{}: {}", name_, message));
  }

  const json::Value& value_;
  std::string_view name_;
  Status status_;
};

}  // namespace troupe::train
