#pragma once
// A caller without a channel: says what it wants over a socket, and reads when it wants.

#include <doctest/doctest.h>

#include <optional>
#include <span>

#include "runtime/base/unique_fd.h"
#include "runtime/memory/unix_socket.h"
#include "runtime/wire/call_messages.h"

namespace troupe::tests {

inline void say(const UniqueFd& socket, const wire::CallMessage& message) {
  const auto body = wire::encode(message);
  const auto length = static_cast<std::uint32_t>(body.size());
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  REQUIRE(memory::send_all(socket.get(), std::as_bytes(std::span(&length, 1)), deadline).ok());
  REQUIRE(memory::send_all(socket.get(), body, deadline).ok());
}

// The next message; nothing when the server closed, or says nothing for a while.
inline std::optional<wire::CallMessage> hear(const UniqueFd& socket) {
  std::uint32_t length = 0;
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  auto header = std::as_writable_bytes(std::span(&length, 1));
  if (!memory::receive_all(socket.get(), header, deadline).ok()) return std::nullopt;
  wire::Bytes body(length);
  REQUIRE(memory::receive_all(socket.get(), body, deadline).ok());
  return wire::decode_call(body).value();
}

}  // namespace troupe::tests
