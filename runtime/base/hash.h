#pragma once
// Hashes: SHA-256 and HMAC (OpenSSL) for identity and authentication, XXH3 for damage detection.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

using Sha256 = std::array<std::byte, 32>;

Sha256 sha256(std::span<const std::byte> data);
Sha256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data);
// Comparison in time that does not depend on where the bytes differ.
bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);
std::string to_hex(std::span<const std::byte> data);

std::uint64_t xxh3_64(std::span<const std::byte> data);

// XXH3-64 over a stream of pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  void update(std::span<const std::byte> data);
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace troupe
