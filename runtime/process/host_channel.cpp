#include "runtime/process/host_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/base/passed_fds.h"

namespace troupe::process {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;
constexpr int kDescriptorsMax = 16;
constexpr Duration kLookAgain = std::chrono::milliseconds(5);
constexpr Duration kSendTimeout = std::chrono::seconds(10);

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
    // Unwatching has ended the wait for room, too.
    flush();
  });
}

// --- sending -------------------------------------------------------------------------------------

Status HostChannel::push_locked(const wire::HostMessage& message, int fd) {
  if (cut_off_) return Status(Code::kUnavailable, "the other end stopped reading within a message");
  Outgoing outgoing;
  outgoing.body = wire::encode(message);
  if (outgoing.body.size() > limits::kFrameBytesMax) {
    return error(Code::kInvalidArgument,
                 "a message of {} bytes between a node and its actor's process is above the limit "
                 "of {} for one message",
                 outgoing.body.size(), limits::kFrameBytesMax);
  }
  outgoing.length = static_cast<std::uint32_t>(outgoing.body.size());
  outgoing.fd = fd;
  outgoing.connection = holds_alternative<wire::HostConnection>(message);
  Waiting& waiting = waiting_locked(outgoing);
  ++waiting.messages;
  waiting.bytes += outgoing.left();
  outgoing_.push_back(std::move(outgoing));
  return {};
}

void HostChannel::drop_last_locked() {
  Waiting& waiting = waiting_locked(outgoing_.back());
  --waiting.messages;
  waiting.bytes -= outgoing_.back().left();
  outgoing_.pop_back();
}

void HostChannel::drop_all_locked() {
  outgoing_.clear();
  connections_ = others_ = {};
}

HostChannel::Written HostChannel::write_queue_locked() {
  while (!outgoing_.empty()) {
    Outgoing& first = outgoing_.front();
    const std::size_t header = std::min(first.sent, sizeof first.length);
    const std::size_t body = first.sent - header;
    std::array<iovec, 2> pieces{
        {{reinterpret_cast<char*>(&first.length) + header, sizeof first.length - header},
         {first.body.data() + body, first.body.size() - body}}};
    msghdr envelope{};
    envelope.msg_iov = pieces.data();
    envelope.msg_iovlen = pieces.size();
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    // A descriptor leaves with the first byte of its message.
    if (first.fd >= 0 && first.sent == 0) {
      envelope.msg_control = control.data();
      envelope.msg_controllen = control.size();
      auto* c = CMSG_FIRSTHDR(&envelope);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof first.fd);
      std::memcpy(CMSG_DATA(c), &first.fd, sizeof first.fd);
    }
    const ssize_t count = ::sendmsg(socket_.get(), &envelope, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Written::kFull;
      if (errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM) return Written::kLater;
      return Written::kGone;
    }
    first.sent += static_cast<std::size_t>(count);
    Waiting& waiting = waiting_locked(first);
    waiting.bytes -= static_cast<std::size_t>(count);
    if (first.left() > 0) continue;
    --waiting.messages;
    outgoing_.pop_front();
  }
  return Written::kAll;
}

Status HostChannel::send(const wire::HostMessage& message, int fd) {
  const Deadline deadline = Deadline::after(kSendTimeout);
  MutexLock lock(send_mutex_);
  TROUPE_RETURN_IF_ERROR(push_locked(message, fd));
  for (;;) {
    const Written written = write_queue_locked();
    if (written == Written::kAll) return {};
    const bool patient = written != Written::kGone && !deadline.passed();
    if (patient) {
      pollfd wait{socket_.get(), POLLOUT, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(
          written == Written::kFull ? deadline.remaining() : kLookAgain);
      (void)::poll(&wait, written == Written::kFull ? 1 : 0, static_cast<int>(left.count()));
      continue;
    }
    const std::string why = written == Written::kGone
                                ? std::string(std::strerror(errno))
                                : fmt::format("it has not read its socket for {} s",
                                              kSendTimeout / std::chrono::seconds(1));
    // What was half sent cannot be followed by anything else.
    if (outgoing_.back().sent == 0) {
      drop_last_locked();
    } else {
      cut_off_ = true;
    }
    return error(Code::kUnavailable, "the other end cannot be told: {}", why);
  }
}

Status HostChannel::queue(const wire::HostMessage& message, int fd) {
  if (!on_end_) return Status(Code::kUnavailable, "the other end is gone");
  Written written;
  {
    MutexLock lock(send_mutex_);
    TROUPE_RETURN_IF_ERROR(push_locked(message, fd));
    const bool connection = outgoing_.back().connection;
    const Waiting with = waiting_locked(outgoing_.back());
    if (connection ? with.messages > limits::kHostQueueConnectionsMax
                   : with.messages > 1 && (with.messages > limits::kHostQueueMessagesMax ||
                                           with.bytes > limits::kHostQueueBytesMax)) {
      drop_last_locked();
      return error(Code::kOverloaded, "it does not read its socket: {} {} with {} bytes wait",
                   with.messages - 1, connection ? "connections" : "messages", with.bytes);
    }
    written = write_queue_locked();
    if (written == Written::kGone) {
      const int number = errno;
      drop_all_locked();
      return error(Code::kUnavailable, "the other end cannot be told: {}", std::strerror(number));
    }
    if (written != Written::kAll && fd >= 0 && outgoing_.back().sent == 0) {
      Outgoing& last = outgoing_.back();
      last.kept = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
      last.fd = last.kept.get();
      if (!last.kept.valid()) {
        const int number = errno;
        drop_last_locked();
        return error(Code::kResourceExhausted, "no copy of a descriptor: {}",
                     std::strerror(number));
      }
    }
  }
  write_later(written);
  return {};
}

void HostChannel::write_later(Written written) {
  if (written == Written::kAll || std::exchange(writes_later_, true)) return;
  if (written == Written::kFull) return loop_.when_writable(socket_.get(), [this] { flush(); });
  loop_.call_after(kLookAgain, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired() && on_end_) flush();
  });
}

void HostChannel::flush() {
  writes_later_ = false;
  std::size_t before = 0;
  std::size_t left = 0;
  Written written;
  {
    MutexLock lock(send_mutex_);
    before = bytes_locked();
    written = write_queue_locked();
    if (written == Written::kGone) {  // reading tells it
      drop_all_locked();
      written = Written::kAll;
    }
    left = bytes_locked();
  }
  write_later(written);
  if (left < before && on_taken_) on_taken_(left);
}

std::size_t HostChannel::queued_bytes() const {
  MutexLock lock(send_mutex_);
  return bytes_locked();
}

std::size_t HostChannel::queued_connections() const {
  MutexLock lock(send_mutex_);
  return connections_.messages;
}

}  // namespace troupe::process
