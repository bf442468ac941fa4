#pragma once
// The part of encoding and decoding that all message families share. Private to this folder: it
// shows Cap'n Proto.

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/limits.h"
#include "runtime/wire/types.h"

namespace troupe::wire::codec {

// Thrown while decoding and caught in decode_frame, as Cap'n Proto's own exceptions are.
struct Malformed {
  std::string what;
};

// Runs `read` on the message in `frame`: one message, whole, nothing after it, within the limits.
// Whatever is wrong with the bytes ends as kProtocol, naming `family` ("control message").
Status decode_frame(std::span<const std::byte> frame, const char* family,
                    const std::function<void(capnp::MessageReader&)>& read);

// The message as bytes.
Bytes to_bytes(capnp::MessageBuilder& message);

// Words for a first segment that holds a message with `payload_bytes` in its large field, so that
// it is neither moved nor split.
inline capnp::uint segment_words(std::size_t payload_bytes) {
  return static_cast<capnp::uint>(128 + payload_bytes / 8 + 1);
}

// How many elements a list may claim.
template <typename List>
std::size_t checked_count(const List& list, const char* name) {
  if (list.size() > limits::kWireListCountMax) {
    throw Malformed{fmt::format("the list '{}' has {} elements; at most {} are allowed", name,
                                list.size(), limits::kWireListCountMax)};
  }
  return list.size();
}

inline capnp::Text::Reader text(const std::string& value) { return {value.c_str(), value.size()}; }
inline std::string text(capnp::Text::Reader value) { return {value.begin(), value.size()}; }
inline capnp::Data::Reader data(const Bytes& value) {
  return {reinterpret_cast<const kj::byte*>(value.data()), value.size()};
}
inline Bytes data(capnp::Data::Reader value) {
  const auto* begin = reinterpret_cast<const std::byte*>(value.begin());
  return {begin, begin + value.size()};
}

}  // namespace troupe::wire::codec
