#include "runtime/net/client_hello.h"

#include <algorithm>
#include <optional>

#include "runtime/base/limits.h"

namespace troupe::net {
namespace {

constexpr std::size_t kRecordHeaderBytes = 5;
constexpr unsigned kClientHelloType = 1;
constexpr unsigned kServerNameExtension = 0;
constexpr unsigned kHostNameType = 0;

// Reads on; after the first length that does not fit everything fails.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> data) : data_(data) {}
  std::optional<std::size_t> number(std::size_t width) {
    const auto bytes = take(width);
    if (!bytes) return std::nullopt;
    std::size_t value = 0;
    for (const std::byte byte : *bytes) value = value << 8 | static_cast<std::size_t>(byte);
    return value;
  }
  std::optional<std::span<const std::byte>> take(std::size_t count) {
    if (count > data_.size()) return std::nullopt;
    const auto taken = data_.first(count);
    data_ = data_.subspan(count);
    return taken;
  }
  // A length of `width` bytes, and what it announces.
  std::optional<std::span<const std::byte>> vector(std::size_t width) {
    const auto length = number(width);
    return length ? take(*length) : std::nullopt;
  }
  bool at_end() const { return data_.empty(); }

 private:
  std::span<const std::byte> data_;
};

// The host name of a server_name extension. Nothing: malformed.
std::optional<std::string> host_name(std::span<const std::byte> extension) {
  Cursor outer(extension);
  const auto list = outer.vector(2);
  if (!list || !outer.at_end()) return std::nullopt;
  Cursor entries(*list);
  const auto type = entries.number(1);
  const auto name = entries.vector(2);
  if (!type || !name || *type != kHostNameType || name->empty()) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(name->data()), name->size());
}

// Nothing: malformed; empty: it has no name.
std::optional<std::string> name_in(std::span<const std::byte> hello) {
  Cursor cursor(hello);
  if (!cursor.number(2) || !cursor.take(32) || !cursor.vector(1) || !cursor.vector(2) ||
      !cursor.vector(1)) {
    return std::nullopt;
  }
  if (cursor.at_end()) return std::string();
  const auto extensions = cursor.vector(2);
  if (!extensions || !cursor.at_end()) return std::nullopt;
  Cursor entries(*extensions);
  while (!entries.at_end()) {
    const auto type = entries.number(2);
    const auto body = entries.vector(2);
    if (!type || !body) return std::nullopt;
    if (*type == kServerNameExtension) return host_name(*body);
  }
  return std::string();
}

}  // namespace

ClientHello parse_client_hello(std::span<const std::byte> data) {
  ClientHello result;
  if (data.empty() || data[0] != kTlsFirstByte) {
    result.state = data.empty() ? ClientHello::State::kIncomplete : ClientHello::State::kMalformed;
    result.bytes_wanted = kRecordHeaderBytes;
    return result;
  }
  if (data.size() > 1 && data[1] != std::byte{3}) return result;
  if (data.size() < kRecordHeaderBytes) {
    result.state = ClientHello::State::kIncomplete;
    result.bytes_wanted = kRecordHeaderBytes;
    return result;
  }
  Cursor header(data.subspan(3));
  const std::size_t length = *header.number(2);
  const std::size_t whole = kRecordHeaderBytes + length;
  if (length < 4 || whole > limits::kClientHelloBytesMax) return result;
  if (data.size() < whole) {
    result.state = ClientHello::State::kIncomplete;
    result.bytes_wanted = whole;
    return result;
  }
  Cursor record(data.subspan(kRecordHeaderBytes, length));
  const auto type = record.number(1);
  const auto hello = record.vector(3);
  if (type != kClientHelloType || !hello || !record.at_end()) return result;
  auto name = name_in(*hello);
  if (!name) return result;
  result.state = ClientHello::State::kComplete;
  result.server_name = std::move(*name);
  return result;
}

}  // namespace troupe::net
