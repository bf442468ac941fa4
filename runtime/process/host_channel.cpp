#include "runtime/process/host_channel.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/base/passed_fds.h"

namespace troupe::process {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;
constexpr int kDescriptorsMax = 16;
constexpr Duration kLookAgain = std::chrono::milliseconds(5);

// Whether a message travels with a descriptor.
bool has_descriptor(const wire::HostMessage& message) {
  if (const auto* start = get_if<wire::HostStart>(&message)) return start->has_saved_state;
  if (const auto* keep = get_if<wire::HostKeepSegment>(&message)) return !keep->drop;
  if (const auto* reply = get_if<wire::HostAttachReply>(&message)) return reply->status.ok();
  return holds_alternative<wire::HostConnection>(message) ||
         holds_alternative<wire::HostSavedState>(message);
}

}  // namespace

void HostChannel::start(OnMessage on_message, OnEnd on_end) {
  on_message_ = std::move(on_message);
  on_end_ = std::move(on_end);
  loop_.watch_readable(socket_.get(), [this] { on_readable(); });
}

void HostChannel::stop() {
  if (!on_end_) return;
  loop_.unwatch(socket_.get());
  on_end_ = nullptr;
}

void HostChannel::end(Status why) {
  auto on_end = std::move(on_end_);
  on_end_ = nullptr;
  loop_.unwatch(socket_.get());
  if (on_end) on_end(std::move(why));
}

void HostChannel::on_readable() {
  while (on_end_ && read_once()) {
  }
}

ssize_t HostChannel::receive(std::size_t bytes_max, int flags) {
  const std::size_t have = buffer_.size();
  buffer_.resize(have + bytes_max);
  iovec piece{buffer_.data() + have, bytes_max};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsMax)> control;
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t count;
  do {
    count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags);
  } while (count < 0 && errno == EINTR);
  buffer_.resize(have + (count > 0 ? static_cast<std::size_t>(count) : 0));
  if (count <= 0) return count;
  take_passed_fds(message, descriptors_);
  return count;
}

bool HostChannel::read_once() {
  const bool looks = take_ == Take::kAfter;
  if (looks) {
    buffer_.clear();
    descriptors_.clear();
  }
  const ssize_t count = receive(looks ? look_bytes_ : kReadBytes, looks ? MSG_PEEK : 0);
  if (count < 0) {
    if (errno != EAGAIN) end(error(Code::kUnavailable, "the other end: {}", std::strerror(errno)));
    return false;
  }
  if (count == 0) {
    end(Status(Code::kUnavailable, "the other end is gone"));
    return false;
  }
  const std::size_t delivered = deliver_frames();
  if (!looks) return true;
  discard(delivered);
  if (delivered > 0 || !on_end_) return true;
  // A message that is not whole: longer than what was looked at, or still being written.
  const bool all_seen = static_cast<std::size_t>(count) < look_bytes_;
  look_bytes_ = std::min(2 * look_bytes_, limits::kFrameBytesMax + sizeof(std::uint32_t));
  if (all_seen) look_again_soon();
  return !all_seen;
}

std::size_t HostChannel::deliver_frames() {
  std::size_t offset = 0;
  while (on_end_ && buffer_.size() - offset >= sizeof(std::uint32_t)) {
    std::uint32_t length = 0;
    std::memcpy(&length, buffer_.data() + offset, sizeof length);
    if (length > limits::kFrameBytesMax) {
      end(error(Code::kProtocol, "the other end sent a frame of {} bytes", length));
      break;
    }
    if (buffer_.size() - offset - sizeof length < length) break;
    auto message = wire::decode_host(std::span(buffer_).subspan(offset + sizeof length, length));
    offset += sizeof length + length;
    if (!message.ok()) {
      end(message.status().prefixed("a message of the other end"));
      break;
    }
    UniqueFd fd;
    if (has_descriptor(*message)) {
      if (descriptors_.empty()) {
        end(Status(Code::kProtocol, "the other end sent a message without its descriptor"));
        break;
      }
      fd = std::move(descriptors_.front());
      descriptors_.pop_front();
    }
    on_message_(std::move(*message), std::move(fd));
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(offset));
  return offset;
}

// Takes out of the socket what was delivered; its descriptors are closed by the kernel.
void HostChannel::discard(std::size_t bytes) {
  std::array<std::byte, 4096> nowhere;
  while (bytes > 0) {
    const ssize_t count =
        ::recv(socket_.get(), nowhere.data(), std::min(bytes, nowhere.size()), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    bytes -= static_cast<std::size_t>(count);
  }
}

// What stays in the socket keeps it readable: not at once, or the loop would do nothing else.
void HostChannel::look_again_soon() {
  loop_.unwatch(socket_.get());
  loop_.call_after(kLookAgain, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || !on_end_) return;
    loop_.watch_readable(socket_.get(), [this] { on_readable(); });
  });
}

Status HostChannel::send(const wire::HostMessage& message, int fd) {
  const wire::Bytes body = wire::encode(message);
  std::uint32_t length = static_cast<std::uint32_t>(body.size());
  std::array<iovec, 2> pieces{
      {{&length, sizeof length}, {const_cast<std::byte*>(body.data()), body.size()}}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr envelope{};
  envelope.msg_iov = pieces.data();
  envelope.msg_iovlen = pieces.size();
  if (fd >= 0) {
    envelope.msg_control = control.data();
    envelope.msg_controllen = control.size();
    auto* c = CMSG_FIRSTHDR(&envelope);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  MutexLock lock(send_mutex_);
  while (pieces[0].iov_len + pieces[1].iov_len > 0) {
    const ssize_t count = ::sendmsg(socket_.get(), &envelope, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      pollfd wait{socket_.get(), POLLOUT, 0};
      if (errno == EAGAIN && ::poll(&wait, 1, send_timeout_ms_) > 0) continue;
      return error(Code::kUnavailable, "the other end cannot be told: {}", std::strerror(errno));
    }
    // The descriptor left with the first byte.
    envelope.msg_control = nullptr;
    envelope.msg_controllen = 0;
    std::size_t sent = static_cast<std::size_t>(count);
    for (auto& piece : pieces) {
      const std::size_t part = std::min(sent, piece.iov_len);
      piece.iov_base = static_cast<char*>(piece.iov_base) + part;
      piece.iov_len -= part;
      sent -= part;
    }
  }
  return {};
}

}  // namespace troupe::process
