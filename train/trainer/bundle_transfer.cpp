#include "train/trainer/bundle_transfer.h"

#include <array>

#include "runtime/memory/unix_socket.h"

namespace troupe::train {
namespace {

// Larger bundles are a mistake: 64 GiB of tokens do not fit a trainer's memory either.
constexpr std::uint64_t kBundleBytesMax = std::uint64_t{64} << 30;
constexpr std::byte kAcknowledged{0x42};

}  // namespace

Status send_bundle(ByteStream& stream, bool same_node, const memory::Segment& bundle,
                   Deadline deadline) {
  const std::uint64_t size = bundle.size();
  const auto header = std::as_bytes(std::span(&size, 1));
  if (same_node) {
    const std::array fds = {bundle.fd()};
    TROUPE_RETURN_IF_ERROR(memory::send_with_fds(stream.fd(), header, fds, deadline));
  } else {
    TROUPE_RETURN_IF_ERROR(send_all(stream, header, deadline));
    TROUPE_RETURN_IF_ERROR(send_all(stream, {bundle.data(), bundle.size()}, deadline));
  }
  std::byte answer{};
  TROUPE_RETURN_IF_ERROR(receive_all(stream, std::span(&answer, 1), deadline));
  return answer == kAcknowledged ? Status()
                                 : error(Code::kProtocol, "the bundle was not acknowledged");
}

Result<memory::Segment> receive_bundle(ByteStream& stream, bool same_node, Deadline deadline) {
  std::uint64_t size = 0;
  const auto header = std::as_writable_bytes(std::span(&size, 1));
  memory::Segment segment;
  if (same_node) {
    auto fds = TROUPE_TRY(memory::receive_with_fds(stream.fd(), header, 1, deadline));
    segment =
        TROUPE_TRY(memory::Segment::adopt(std::move(fds[0]), size, memory::Access::kReadOnly));
  } else {
    TROUPE_RETURN_IF_ERROR(receive_all(stream, header, deadline));
    if (size == 0 || size > kBundleBytesMax) {
      return error(Code::kProtocol, "a bundle of {} bytes was announced", size);
    }
    segment = TROUPE_TRY(memory::Segment::create("troupe-bundle", size));
    TROUPE_RETURN_IF_ERROR(receive_all(stream, segment.bytes(), deadline));
  }
  TROUPE_RETURN_IF_ERROR(send_all(stream, std::span(&kAcknowledged, 1), deadline));
  return segment;
}

}  // namespace troupe::train
