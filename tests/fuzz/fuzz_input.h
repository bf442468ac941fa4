#pragma once
// Taking an input apart, and putting seeds together the same way.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/hash.h"
#include "tests/fuzz/fuzz_target.h"

namespace troupe::tests {

// Small numbers and pieces from the front of an input. Past its end everything is zero or empty.
class FuzzInput {
 public:
  explicit FuzzInput(std::span<const std::byte> bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  std::uint8_t u8() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_ = rest_.subspan(1);
    return value;
  }
  // A length of two bytes, then as many bytes, as far as there are some.
  std::span<const std::byte> piece() {
    const std::size_t low = u8();
    const std::size_t length = low | static_cast<std::size_t>(u8()) << 8;
    const auto taken = rest_.first(std::min(length, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

// What FuzzInput takes apart.
class FuzzSeed {
 public:
  FuzzSeed& u8(std::uint8_t value) {
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  FuzzSeed& piece(std::span<const std::byte> bytes) {
    const std::size_t length = std::min<std::size_t>(bytes.size(), 0xffff);
    u8(static_cast<std::uint8_t>(length & 0xff)).u8(static_cast<std::uint8_t>(length >> 8));
    return rest(bytes.first(length));
  }
  FuzzSeed& rest(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  FuzzBytes take() { return std::move(bytes_); }

 private:
  FuzzBytes bytes_;
};

inline FuzzBytes fuzz_bytes(std::string_view text) {
  const auto bytes = bytes_of(text);
  return {bytes.begin(), bytes.end()};
}
inline std::string_view fuzz_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace troupe::tests
