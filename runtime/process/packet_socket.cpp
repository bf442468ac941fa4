#include "runtime/process/packet_socket.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"
#include "runtime/base/passed_fds.h"

namespace troupe::process {
namespace {

constexpr std::size_t kPacketDescriptorsMax = 16;
constexpr int kBacklog = 4;

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};

Result<AbstractAddress> abstract_address(const std::string& name) {
  AbstractAddress result;
  if (name.empty() || name.size() + 1 > sizeof result.address.sun_path) {
    return error(Code::kInvalidArgument, "'{}' cannot be a socket's name", name);
  }
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

Result<UniqueFd> packet_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return errno_status(errno, "open", "a socket");
  return socket;
}

// Waits until the socket can be read, or written. False at the deadline.
bool wait_for(int socket, short events, Deadline deadline) {
  while (true) {
    pollfd waiting{socket, events, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    const int left_ms = static_cast<int>(std::min<std::int64_t>(left.count(), 1'000'000'000));
    const int ready = ::poll(&waiting, 1, left_ms);
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace

Result<UniqueFd> listen_packets(const std::string& name) {
  const auto at = TROUPE_TRY(abstract_address(name));
  auto socket = TROUPE_TRY(packet_socket());
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return error(Code::kAlreadyExists, "another process listens as '{}'", name);
    }
    return errno_status(errno, "listen as", name);
  }
  return socket;
}

Result<UniqueFd> connect_packets(const std::string& name) {
  const auto at = TROUPE_TRY(abstract_address(name));
  auto socket = TROUPE_TRY(packet_socket());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0) {
    if (errno == ECONNREFUSED) return error(Code::kUnavailable, "nobody listens as '{}'", name);
    return errno_status(errno, "connect to", name);
  }
  return socket;
}

Result<std::optional<UniqueFd>> accept_packets(int listener) {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
      return std::optional<UniqueFd>();
    return errno_status(errno, "accept", "a connection");
  }
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      peer.uid != ::getuid()) {
    return std::optional<UniqueFd>();
  }
  return std::optional<UniqueFd>(std::move(socket));
}

Result<bool> try_send_packet(int socket, std::span<const std::byte> bytes,
                             std::span<const int> descriptors) {
  if (bytes.size() > limits::kKeeperPacketBytesMax) {
    return error(Code::kInvalidArgument, "a message of {} bytes; a packet holds at most {}",
                 bytes.size(), limits::kKeeperPacketBytesMax);
  }
  TROUPE_CHECK(descriptors.size() <= kPacketDescriptorsMax);
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPacketDescriptorsMax)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    auto* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size_bytes());
  }
  while (true) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return false;
    return error(Code::kUnavailable, "the other end cannot be told: {}", std::strerror(errno));
  }
}

Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                   Deadline deadline) {
  while (!TROUPE_TRY(try_send_packet(socket, bytes, descriptors))) {
    if (!wait_for(socket, POLLOUT, deadline)) {
      return Status(Code::kUnavailable, "the other end cannot be told: it does not read");
    }
  }
  return {};
}

Result<std::optional<Packet>> receive_packet(int socket) {
  // One for all packets of a thread: most are small, and filling 128 KiB costs more than they do.
  thread_local std::vector<std::byte> space(limits::kKeeperPacketBytesMax);
  Packet packet;
  iovec piece{space.data(), space.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPacketDescriptorsMax)];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t count;
  do {
    count = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && errno == EAGAIN) return std::optional<Packet>();
  if (count < 0) return error(Code::kUnavailable, "the other end: {}", std::strerror(errno));
  take_passed_fds(message, packet.descriptors);
  if (count == 0) return error(Code::kUnavailable, "the other end is gone");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return error(Code::kProtocol, "the other end sent a packet that is too large");
  }
  packet.bytes.assign(space.begin(), space.begin() + count);
  return std::optional<Packet>(std::move(packet));
}

Result<Packet> receive_packet(int socket, Deadline deadline) {
  while (true) {
    auto packet = TROUPE_TRY(receive_packet(socket));
    if (packet) return std::move(*packet);
    if (!wait_for(socket, POLLIN, deadline)) {
      return error(Code::kDeadlineExceeded, "the other end does not answer");
    }
  }
}

}  // namespace troupe::process
