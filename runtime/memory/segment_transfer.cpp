#include "runtime/memory/segment_transfer.h"

#include <array>

#include "runtime/memory/unix_socket.h"

namespace troupe::memory {
namespace {

constexpr std::byte kAcknowledged{0x42};

}  // namespace

Status send_segment(ByteStream& stream, bool same_node, const Segment& segment, Deadline deadline) {
  const std::uint64_t size = segment.size();
  const auto header = std::as_bytes(std::span(&size, 1));
  if (same_node) {
    const std::array fds = {segment.fd()};
    TROUPE_RETURN_IF_ERROR(send_with_fds(stream.fd(), header, fds, deadline));
  } else {
    TROUPE_RETURN_IF_ERROR(send_all(stream, header, deadline));
    TROUPE_RETURN_IF_ERROR(send_all(stream, {segment.data(), segment.size()}, deadline));
  }
  std::byte answer{};
  TROUPE_RETURN_IF_ERROR(receive_all(stream, std::span(&answer, 1), deadline));
  return answer == kAcknowledged ? Status()
                                 : error(Code::kProtocol, "the segment was not acknowledged");
}

Result<Segment> receive_segment(ByteStream& stream, bool same_node, std::uint64_t bytes_max,
                                Deadline deadline) {
  std::uint64_t size = 0;
  const auto header = std::as_writable_bytes(std::span(&size, 1));
  Segment segment;
  if (same_node) {
    auto fds = TROUPE_TRY(receive_with_fds(stream.fd(), header, 1, deadline));
    segment = TROUPE_TRY(Segment::adopt(std::move(fds[0]), size, Access::kReadOnly));
  } else {
    TROUPE_RETURN_IF_ERROR(receive_all(stream, header, deadline));
    if (size == 0 || size > bytes_max) {
      return error(Code::kProtocol, "a segment of {} bytes was announced; at most {} are taken",
                   size, bytes_max);
    }
    segment = TROUPE_TRY(Segment::create("troupe-received", size));
    TROUPE_RETURN_IF_ERROR(receive_all(stream, segment.bytes(), deadline));
  }
  TROUPE_RETURN_IF_ERROR(send_all(stream, std::span(&kAcknowledged, 1), deadline));
  return segment;
}

}  // namespace troupe::memory
