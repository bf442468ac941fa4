#pragma once
// Cuts a stream of bytes into frames: u32 little-endian length, then the bytes.
//
// Small frames are cut from one buffer; a large one gets a buffer of its own that grows with what
// arrives, so that a length alone reserves nothing. Not thread-safe.

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::net {

class FrameReader {
 public:
  explicit FrameReader(std::size_t frame_bytes_max);
  // Where the next bytes of the stream are to be written; never empty.
  std::span<std::byte> space();
  // `count` bytes of space() were written. Calls `on_frame` for each frame that is complete, until
  // it returns false. kProtocol for a frame that announces more than the limit; then the stream
  // cannot be read any further.
  Status filled(std::size_t count, const std::function<bool(std::span<const std::byte>)>& on_frame);
  // Bytes of an unfinished frame wait.
  bool in_frame() const { return large_length_ > 0 || end_ > 0; }

 private:
  // Moves the beginning of a frame that the buffer cannot hold into a buffer of its own.
  void begin_large(std::size_t length, std::span<const std::byte> first);
  Status cut(const std::function<bool(std::span<const std::byte>)>& on_frame);

  const std::size_t frame_bytes_max_;
  std::vector<std::byte> buffer_;
  std::size_t end_ = 0;  // bytes in buffer_
  std::vector<std::byte> large_;
  std::size_t large_have_ = 0;
  std::size_t large_length_ = 0;  // 0: no large frame is being read
};

}  // namespace troupe::net
