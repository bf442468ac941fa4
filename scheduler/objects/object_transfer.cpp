#include "scheduler/objects/object_transfer.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "runtime/wire/object_messages.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kConnectPatience = std::chrono::seconds(3);
constexpr std::uint32_t kRequestBytesMax = 4096;
constexpr std::uint32_t kErrorBytesMax = 4096;
constexpr std::uint64_t kPieceBytes = 1u << 20;
constexpr int kLookMs = 1000;

struct ReplyHeader {
  std::int32_t code = 0;
  std::uint32_t text_bytes = 0;
  std::uint64_t bytes = 0;  // of the object
};

template <typename T>
std::span<const std::byte> raw(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
std::span<std::byte> raw(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Status refuse(ByteStream& stream, const Status& why) {
  std::string text = why.to_string().substr(0, kErrorBytesMax);
  const ReplyHeader header{.code = static_cast<std::int32_t>(why.code()),
                           .text_bytes = static_cast<std::uint32_t>(text.size())};
  const Deadline deadline = Deadline::after(kTransferPatience);
  TROUPE_RETURN_IF_ERROR(send_all(stream, raw(header), deadline));
  return send_all(stream, std::as_bytes(std::span(text)), deadline);
}

// Waits a while for the socket to take bytes, or to have some.
void wait_a_while(int fd, short events) {
  pollfd waited{.fd = fd, .events = events, .revents = 0};
  (void)::poll(&waited, 1, kLookMs);
}

Status stuck_error() {
  return Status(Code::kDeadlineExceeded, "the reader of an object's bytes takes none any more");
}

// From the memory's own pages, which are not copied. They are the socket's until the reader has
// them: read_to_the_end().
Status send_pages(ByteStream& stream, int memory, std::uint64_t offset, std::uint64_t bytes) {
  auto at = static_cast<off_t>(offset);
  const auto end = static_cast<off_t>(offset + bytes);
  Deadline deadline = Deadline::after(kTransferPatience);
  while (at < end) {
    const ::ssize_t sent = ::sendfile(stream.fd(), memory, &at, static_cast<std::size_t>(end - at));
    if (sent > 0) {
      deadline = Deadline::after(kTransferPatience);
    } else if (sent < 0 && errno == EAGAIN) {
      if (deadline.passed()) return stuck_error();
      wait_a_while(stream.fd(), POLLOUT);
    } else if (sent == 0 || errno != EINTR) {
      return Status(Code::kUnavailable, "the reader has gone");
    }
  }
  return {};
}

// The reader closes its end when it has everything.
Status read_to_the_end(ByteStream& stream) {
  Deadline deadline = Deadline::after(kTransferPatience);
  int unread_before = std::numeric_limits<int>::max();
  std::array<std::byte, 1> byte{};
  while (stream.read(byte).state == StreamIo::State::kOpen) {
    int unread = 0;
    (void)::ioctl(stream.fd(), SIOCOUTQ, &unread);
    if (unread < unread_before) {
      unread_before = unread;
      deadline = Deadline::after(kTransferPatience);
    } else if (deadline.passed()) {
      return stuck_error();
    }
    wait_a_while(stream.fd(), POLLIN);
  }
  return {};
}

// What was sent and not read is dropped: its pages may have other contents soon.
void drop_unread(const ByteStream& stream) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(stream.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

// The bytes from `sent` on, as they come.
Status send_bytes(ByteStream& stream, const ReadableObject& object, std::uint64_t sent) {
  while (sent < object.bytes) {
    const std::uint64_t there = TROUPE_TRY(
        object.memory->wait_beyond(object.offset + sent, Deadline::after(kTransferPatience)));
    const std::uint64_t end = std::min(there - object.offset, object.bytes);
    const std::uint64_t piece = std::min(kPieceBytes, end - sent);
    const std::uint64_t offset = object.offset + sent;
    TROUPE_RETURN_IF_ERROR(stream.encrypted()
                               ? send_all(stream, object.memory->mapped().subspan(offset, piece),
                                          Deadline::after(kTransferPatience))
                               : send_pages(stream, object.memory->fd(), offset, piece));
    sent += piece;
  }
  return stream.encrypted() ? Status() : read_to_the_end(stream);
}

}  // namespace

void OpenStreams::add(int fd) {
  const std::lock_guard lock(mutex_);
  fds_.insert(fd);
  if (shut_) ::shutdown(fd, SHUT_RDWR);
}

void OpenStreams::remove(int fd) {
  const std::lock_guard lock(mutex_);
  fds_.erase(fd);
}

void OpenStreams::shut_all() {
  const std::lock_guard lock(mutex_);
  shut_ = true;
  for (const int fd : fds_) ::shutdown(fd, SHUT_RDWR);
}

Status fetch_object(const net::Address& from, const net::Token& token, ObjectId object,
                    std::uint64_t bytes, ObjectMemory& memory, std::uint64_t* have,
                    OpenStreams& streams) {
  const Deadline deadline = Deadline::after(kTransferPatience);
  ByteStream stream = TROUPE_TRY(net::connect_blocking(from, wire::kObjectBytesTarget, token,
                                                       Deadline::after(kConnectPatience)));
  const OpenStreams::Entry entry(streams, stream.fd());
  const wire::Bytes request =
      wire::encode(wire::ObjectMessage(wire::ReadObject{.object_id = object, .offset = *have}));
  const auto length = static_cast<std::uint32_t>(request.size());
  TROUPE_RETURN_IF_ERROR(send_all(stream, raw(length), deadline));
  TROUPE_RETURN_IF_ERROR(send_all(stream, request, deadline));
  ReplyHeader header;
  TROUPE_RETURN_IF_ERROR(receive_all(stream, raw(header), deadline));
  if (header.code != 0) {
    std::string text(std::min(header.text_bytes, kErrorBytesMax), ' ');
    TROUPE_RETURN_IF_ERROR(receive_all(stream, std::as_writable_bytes(std::span(text)), deadline));
    return Status(code_from_number(header.code), std::move(text));
  }
  if (header.bytes != bytes || bytes > memory.size()) {
    return error(Code::kProtocol, "object {} has {} bytes on the node at {}, and {} elsewhere",
                 object.brief(), header.bytes, from.to_string(), bytes);
  }
  const std::span<std::byte> into = memory.mapped();
  while (*have < bytes) {
    if (memory.abandoned()) return Status(Code::kCancelled, "the object is not wanted any more");
    const std::uint64_t piece = std::min(kPieceBytes, bytes - *have);
    // All of its pages at once, where the kernel can: one by one they take longer than the bytes.
    (void)::madvise(into.data() + *have, piece, MADV_POPULATE_WRITE);
    TROUPE_RETURN_IF_ERROR(
        receive_all(stream, into.subspan(*have, piece), Deadline::after(kTransferPatience)));
    *have += piece;
    memory.arrived(*have);
  }
  return {};
}

Status serve_object(ByteStream stream, const std::function<Result<ReadableObject>(ObjectId)>& find,
                    OpenStreams& streams) {
  const OpenStreams::Entry entry(streams, stream.fd());
  const Deadline deadline = Deadline::after(kTransferPatience);
  std::uint32_t length = 0;
  TROUPE_RETURN_IF_ERROR(receive_all(stream, raw(length), deadline));
  if (length == 0 || length > kRequestBytesMax) {
    return Status(Code::kProtocol, "not a request for an object's bytes");
  }
  wire::Bytes request(length);
  TROUPE_RETURN_IF_ERROR(receive_all(stream, request, deadline));
  const auto message = TROUPE_TRY(wire::decode_object(request));
  const auto* read = get_if<wire::ReadObject>(&message);
  if (read == nullptr) return Status(Code::kProtocol, "not a request for an object's bytes");
  const auto found = find(read->object_id);
  if (!found.ok()) return refuse(stream, found.status());
  if (read->offset > found->bytes) {
    return refuse(stream, Status(Code::kProtocol, "an offset beyond the object's end"));
  }
  if (stream.encrypted() && found->memory->mapped().empty()) {
    return refuse(stream, Status(Code::kOutOfMemory, "it cannot be mapped"));
  }
  const ReplyHeader header{.bytes = found->bytes};
  TROUPE_RETURN_IF_ERROR(send_all(stream, raw(header), deadline));
  const int flags = ::fcntl(stream.fd(), F_GETFL);
  (void)::fcntl(stream.fd(), F_SETFL, flags | O_NONBLOCK);
  Status sent = send_bytes(stream, *found, read->offset);
  if (!sent.ok() && !stream.encrypted()) drop_unread(stream);
  return sent;
}

}  // namespace troupe::scheduler
