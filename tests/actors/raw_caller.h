#pragma once
// A caller without a channel: says what it wants over a socket, and reads when it wants.

#include <doctest/doctest.h>

#include <optional>
#include <span>

#include "runtime/memory/unix_socket.h"
#include "runtime/net/frame_reader.h"
#include "runtime/wire/call_messages.h"
#include "troupe/unique_fd.h"

namespace troupe::tests {

// `attachment`: what goes beside the message; empty: nothing.
inline void say(const UniqueFd& socket, const wire::CallMessage& message,
                const wire::Bytes& attachment = {}) {
  const auto body = wire::encode(message);
  const std::uint64_t attached = attachment.size();
  const auto length =
      static_cast<std::uint32_t>(body.size()) | (attached > 0 ? net::kAttachmentFlag : 0);
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  const auto send = [&](std::span<const std::byte> bytes) {
    REQUIRE(memory::send_all(socket.get(), bytes, deadline).ok());
  };
  send(std::as_bytes(std::span(&length, 1)));
  if (attached > 0) send(std::as_bytes(std::span(&attached, 1)));
  send(body);
  if (attached > 0) send(attachment);
}

// The next message; nothing when the server closed, or says nothing for a while.
inline std::optional<wire::CallMessage> hear(const UniqueFd& socket) {
  std::uint32_t length = 0;
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  auto header = std::as_writable_bytes(std::span(&length, 1));
  if (!memory::receive_all(socket.get(), header, deadline).ok()) return std::nullopt;
  std::uint64_t attached = 0;
  if ((length & net::kAttachmentFlag) != 0) {
    auto second = std::as_writable_bytes(std::span(&attached, 1));
    REQUIRE(memory::receive_all(socket.get(), second, deadline).ok());
  }
  wire::Bytes body(length & ~net::kAttachmentFlag), attachment(attached);
  REQUIRE(memory::receive_all(socket.get(), body, deadline).ok());
  if (attached > 0) REQUIRE(memory::receive_all(socket.get(), attachment, deadline).ok());
  return wire::decode_call(body, std::move(attachment)).value();
}

}  // namespace troupe::tests
