#include "runtime/memory/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/passed_fds.h"

namespace troupe::memory {
namespace {

// Waits until the socket is ready for `events`.
Status wait_ready(int socket, short events, Deadline deadline, const char* doing) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()).count();
    if (deadline.passed())
      return error(Code::kDeadlineExceeded, "{} on a socket: the deadline passed", doing);
    pollfd entry{socket, events, 0};
    const int rc = ::poll(&entry, 1, static_cast<int>(std::clamp<long long>(left + 1, 1, 60'000)));
    if (rc > 0) return {};
    if (rc < 0 && errno != EINTR)
      return error(Code::kUnavailable, "{} on a socket: {}", doing, std::strerror(errno));
  }
}

Status peer_gone(const char* doing, std::size_t done, std::size_t total) {
  return error(Code::kUnavailable, "{} on a socket: the peer closed it after {} of {} bytes", doing,
               done, total);
}

bool would_block(int number) { return number == EAGAIN || number == EWOULDBLOCK; }

// One sendmsg with `fds` attached (none for plain bytes): how many bytes went.
ssize_t send_some(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPassedFdsMax)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// One recvmsg; descriptors that came along are appended to `fds`.
ssize_t receive_some(int socket, std::span<std::byte> bytes, std::vector<UniqueFd>* fds,
                     bool* truncated) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPassedFdsMax)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  take_passed_fds(message, *fds);
  if (message.msg_flags & MSG_CTRUNC) *truncated = true;
  return got;
}

Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                    Deadline deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t sent =
        send_some(socket, bytes.subspan(done), done == 0 ? fds : std::span<const int>{});
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
    } else if (would_block(errno)) {
      TROUPE_RETURN_IF_ERROR(wait_ready(socket, POLLOUT, deadline, "sending"));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return peer_gone("sending", done, bytes.size());
    } else if (errno != EINTR) {
      return error(Code::kUnavailable, "sending on a socket: {}", std::strerror(errno));
    }
  }
  return {};
}

}  // namespace

Result<std::pair<UniqueFd, UniqueFd>> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return error(Code::kResourceExhausted, "no socket pair: {}", std::strerror(errno));
  return std::pair<UniqueFd, UniqueFd>(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

Status send_all(int socket, std::span<const std::byte> bytes, Deadline deadline) {
  return send_message(socket, bytes, {}, deadline);
}

Status send_with_fds(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                     Deadline deadline) {
  if (bytes.empty() || fds.size() > kPassedFdsMax)
    return error(Code::kInvalidArgument,
                 "passing {} descriptors with {} bytes: at most {}, with at least one byte",
                 fds.size(), bytes.size(), kPassedFdsMax);
  return send_message(socket, bytes, fds, deadline);
}

Result<std::vector<UniqueFd>> receive_with_fds(int socket, std::span<std::byte> bytes,
                                               std::size_t fd_count, Deadline deadline) {
  std::vector<UniqueFd> fds;
  bool truncated = false;
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = receive_some(socket, bytes.subspan(done), &fds, &truncated);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0 || errno == ECONNRESET) {
      return peer_gone("receiving", done, bytes.size());
    } else if (would_block(errno)) {
      TROUPE_RETURN_IF_ERROR(wait_ready(socket, POLLIN, deadline, "receiving"));
    } else if (errno != EINTR) {
      return error(Code::kUnavailable, "receiving on a socket: {}", std::strerror(errno));
    }
  }
  if (truncated || fds.size() != fd_count)
    return error(Code::kProtocol, "a message came with {} file descriptors instead of {}",
                 fds.size(), fd_count);
  return fds;
}

Status receive_all(int socket, std::span<std::byte> bytes, Deadline deadline) {
  return receive_with_fds(socket, bytes, 0, deadline).status();
}

}  // namespace troupe::memory
