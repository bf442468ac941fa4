#pragma once
// Cuts a stream of bytes into frames: u32 little-endian length, then the bytes.
//
// A frame may have an attachment: bytes of any number that belong to it and follow it. Then the
// length's highest bit is set, and a u64 with the attachment's length stands between it and the
// frame.
//
// Small frames are cut from one buffer; a large one, and an attachment, gets a buffer of its own
// that grows with what arrives, so that a length alone costs no memory. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::net {

// The bytes beside a frame, as they arrived.
struct Attachment {
  std::vector<std::byte> bytes;
  // More than the reader takes: so many were announced, and thrown away as they came.
  std::optional<std::uint64_t> refused_bytes;
};

inline constexpr std::uint32_t kAttachmentFlag = 1u << 31;
inline constexpr std::size_t kFrameLengthBytes = 4;
inline constexpr std::size_t kAttachmentLengthBytes = 8;
// Frames are cut from a buffer of this size.
inline constexpr std::size_t kFrameBufferBytes = 32u << 10;
// A frame with an attachment must fit in it: what is large is in the attachment.
inline constexpr std::size_t kAttachedFrameBytesMax =
    kFrameBufferBytes - kFrameLengthBytes - kAttachmentLengthBytes;

class FrameReader {
 public:
  // A complete frame, which lives only during the call. False: no more of them now.
  using OnFrame = std::function<bool(std::span<const std::byte> frame, Attachment&& attachment)>;

  // attachment_bytes_max: of one attachment; 0: a frame that has one is against the protocol.
  explicit FrameReader(std::size_t frame_bytes_max, std::uint64_t attachment_bytes_max = 0);
  // Where the next bytes of the stream are to be written; never empty.
  std::span<std::byte> space();
  // `count` bytes of space() were written. Calls `on_frame` for each frame that is complete, until
  // it returns false. kProtocol for a frame that announces more than the limit; then the stream
  // cannot be read any further.
  Status filled(std::size_t count, const OnFrame& on_frame);
  // Bytes of an unfinished frame wait.
  bool in_frame() const { return large_length_ > 0 || end_ > 0 || attachment_left_ > 0; }

 private:
  // What stands before a frame.
  struct Header {
    std::size_t bytes = 0;
    std::size_t frame_bytes = 0;
    std::uint64_t attachment_bytes = 0;
  };
  // Nothing where it is not there whole.
  Result<std::optional<Header>> header(std::span<const std::byte> bytes) const;
  // Moves the beginning of a frame that the buffer cannot hold into a buffer of its own.
  void begin_large(std::size_t length, std::span<const std::byte> first);
  void begin_attachment(std::uint64_t length, std::span<const std::byte> first);
  void attachment_filled(std::size_t count, const OnFrame& on_frame);
  Status cut(const OnFrame& on_frame);

  const std::size_t frame_bytes_max_;
  const std::uint64_t attachment_bytes_max_;
  std::vector<std::byte> buffer_;
  std::size_t end_ = 0;           // bytes in buffer_
  std::vector<std::byte> large_;  // a large frame, or the frame that an attachment belongs to
  std::size_t large_have_ = 0;
  std::size_t large_length_ = 0;  // 0: no large frame is being read
  Attachment attachment_;
  std::size_t attachment_have_ = 0;
  std::uint64_t attachment_left_ = 0;  // 0: no attachment is being read
};

}  // namespace troupe::net
