#include "runtime/collective/tcp_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/near_socket.h"

namespace troupe::collective {
namespace {

// Pieces up to this are gathered; larger ones go to the kernel as they lie.
constexpr std::size_t kGatherBytes = 8192;
// A peer's machine that vanished without a word is given up after this.
constexpr int kUnansweredMs = 10'000;

void set_option(int socket, int level, int option, int value) {
  // Refusals (a Unix socket, a kernel limit) only cost speed.
  (void)::setsockopt(socket, level, option, &value, sizeof value);
}

}  // namespace

TcpLink::TcpLink(ByteStream stream, bool near) : stream_(std::move(stream)), near_(near) {
  const int fd = stream_.fd();
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMs);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  if (near_) end_pacing(fd);
  // The sizes of the socket's buffers are the kernel's affair: what may be asked for ends at some
  // 200 KiB on an untouched system, what it grows to by itself at megabytes.
  capacity_ = kChunksBuffered * (kChunkBytes + kStreamAlignment);
  buffer_.resize(capacity_ + kStreamAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(buffer_.data());
  buffer_shift_ = (kStreamAlignment - address % kStreamAlignment) % kStreamAlignment;
  pending_.reserve(2 * kGatherBytes);
}

std::size_t TcpLink::send_now(std::span<const std::byte> bytes) {
  if (broken_) return 0;
  const StreamIo io = stream_.write(bytes);
  if (io.state != StreamIo::State::kOpen) broken_ = true;
  return io.count;
}

void TcpLink::flush() {
  if (!unsent()) return;
  const std::size_t sent = send_now(pending_);
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(sent));
}

std::size_t TcpLink::send(std::span<const std::byte> bytes) {
  if (bytes.size() <= kGatherBytes) {
    if (pending_.size() + bytes.size() > 2 * kGatherBytes) flush();
    if (pending_.size() + bytes.size() > 2 * kGatherBytes) return 0;
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    return bytes.size();
  }
  flush();
  return pending_.empty() ? send_now(bytes) : 0;
}

std::size_t TcpLink::receive_now(std::byte* out, std::size_t count) {
  if (broken_ || count == 0) return 0;
  const StreamIo io = stream_.read({out, count});
  if (io.state != StreamIo::State::kOpen) broken_ = true;
  return io.count;
}

std::span<const std::byte> TcpLink::readable(std::size_t want) {
  if (end_ - begin_ < want) {
    if (begin_ + want > capacity_ || begin_ == end_) {
      const std::size_t to = begin_ % kStreamAlignment;
      std::memmove(buffer() + to, buffer() + begin_, end_ - begin_);
      end_ = to + (end_ - begin_);
      begin_ = to;
    }
    end_ += receive_now(buffer() + end_, capacity_ - end_);
  }
  return {buffer() + begin_, end_ - begin_};
}

void TcpLink::consume(std::size_t count) { begin_ += count; }

std::size_t TcpLink::receive(std::span<std::byte> out) {
  const std::size_t buffered = std::min(out.size(), end_ - begin_);
  if (buffered != 0) std::memcpy(out.data(), buffer() + begin_, buffered);
  begin_ += buffered;
  if (buffered == out.size()) return buffered;
  if (out.size() - buffered < kGatherBytes) {
    // A short rest: take what else is there with the same call.
    const auto more = readable(out.size() - buffered);
    const std::size_t count = std::min(more.size(), out.size() - buffered);
    if (count != 0) std::memcpy(out.data() + buffered, more.data(), count);
    begin_ += count;
    return buffered + count;
  }
  const std::size_t direct = receive_now(out.data() + buffered, out.size() - buffered);
  // The empty buffer's position follows the stream's alignment.
  begin_ = end_ = (begin_ + direct) % kStreamAlignment;
  return buffered + direct;
}

}  // namespace troupe::collective
