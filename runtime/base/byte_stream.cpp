#include "troupe/byte_stream.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {
namespace {

StreamIo failed_io() {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
  return {0, StreamIo::State::kBroken, errno};
}

Status wait_for_stream(const ByteStream& stream, short events, Deadline deadline,
                       const char* doing) {
  while (!deadline.passed()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
    pollfd entry{stream.fd(), events, 0};
    if (::poll(&entry, 1, static_cast<int>(std::clamp<long long>(left, 1, 60'000))) > 0) return {};
  }
  return error(Code::kDeadlineExceeded, "{} on a connection: the deadline passed", doing);
}

Status stream_ended(const ByteStream& stream, const StreamIo& io, const char* doing,
                    std::size_t done, std::size_t total) {
  if (io.state == StreamIo::State::kBroken && io.error_number != EPIPE &&
      io.error_number != ECONNRESET) {
    return error(Code::kUnavailable, "{} on a connection: {}", doing, stream.why(io));
  }
  return error(Code::kUnavailable, "{} on a connection: the peer closed it after {} of {} bytes",
               doing, done, total);
}

}  // namespace

void ByteStream::reset() {
  cipher_.reset();
  socket_.reset();
}

UniqueFd ByteStream::take_socket() { return cipher_ ? UniqueFd() : std::move(socket_); }

StreamIo ByteStream::read(std::span<std::byte> space) {
  if (cipher_) return cipher_->read(space);
  while (true) {
    const ssize_t count = ::recv(fd(), space.data(), space.size(), MSG_DONTWAIT);
    if (count > 0) return {static_cast<std::size_t>(count)};
    if (count == 0) return {0, StreamIo::State::kEnded};
    if (errno != EINTR) return failed_io();
  }
}

StreamIo ByteStream::write(std::span<const iovec> pieces) {
  if (cipher_) return cipher_->write(pieces);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // sendmsg() only reads them
  message.msg_iovlen = pieces.size();
  while (true) {
    const ssize_t count = ::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) return {static_cast<std::size_t>(count)};
    if (errno != EINTR) return failed_io();
  }
}

StreamIo ByteStream::write(std::span<const std::byte> bytes) {
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return write(std::span(&piece, 1));
}

void ByteStream::end_writing() {
  if (cipher_) cipher_->end_writing();
  ::shutdown(fd(), SHUT_WR);
}

std::string ByteStream::why(const StreamIo& io) const {
  return cipher_ ? cipher_->why() : std::strerror(io.error_number);
}

Status send_all(ByteStream& stream, std::span<const std::byte> bytes, Deadline deadline) {
  std::size_t done = 0;
  while (done < bytes.size() || stream.unsent()) {
    const StreamIo io = stream.write(bytes.subspan(done));
    done += io.count;
    if (io.state != StreamIo::State::kOpen) {
      return stream_ended(stream, io, "sending", done, bytes.size());
    }
    if (done < bytes.size() || stream.unsent()) {
      TROUPE_RETURN_IF_ERROR(wait_for_stream(stream, POLLOUT, deadline, "sending"));
    }
  }
  return {};
}

Status receive_all(ByteStream& stream, std::span<std::byte> bytes, Deadline deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const StreamIo io = stream.read(bytes.subspan(done));
    done += io.count;
    if (io.state != StreamIo::State::kOpen) {
      return stream_ended(stream, io, "receiving", done, bytes.size());
    }
    if (io.count == 0) {
      TROUPE_RETURN_IF_ERROR(wait_for_stream(stream, POLLIN, deadline, "receiving"));
    }
  }
  return {};
}

}  // namespace troupe
