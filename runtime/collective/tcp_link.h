#pragma once
// A peer on another node: one stream. Internal.
//
// Reduced chunks follow the unreduced ones at a distance. Between machines it fills the way: it
// is for 10 Gbit/s and a round trip of 3 ms (by arithmetic; measured at 4 Gbit/s and 1 ms: 96 % of
// the rate from 8 chunks on, 75 % with 2). Within one machine (nodes that share it) it only spares
// sleeps and should be short, while what the chunks were made of is in the caches.

#include <vector>

#include "runtime/collective/link.h"
#include "troupe/byte_stream.h"

namespace troupe::collective {

class TcpLink final : public Link {
 public:
  // Takes a connected stream on which nothing is under way. near: both ends are on one
  // machine, which both ends must say.
  TcpLink(ByteStream stream, bool near);

  std::size_t send(std::span<const std::byte> bytes) override;
  void flush() override;
  bool unsent() const override { return !pending_.empty() || stream_.unsent(); }
  std::span<const std::byte> readable(std::size_t want) override;
  void consume(std::size_t count) override;
  std::size_t receive(std::span<std::byte> out) override;
  bool broken() const override { return broken_; }
  std::size_t ahead_bytes() const override { return near_ ? SIZE_MAX / 2 : 64 * kChunkBytes; }
  std::size_t lag_chunks() const override { return near_ ? 8 : 32; }
  int socket() const override { return stream_.fd(); }
  short poll_events(bool receiving, bool sending) const override {
    return static_cast<short>((receiving ? POLLIN : 0) | (sending || unsent() ? POLLOUT : 0));
  }

 private:
  std::size_t send_now(std::span<const std::byte> bytes);
  std::size_t receive_now(std::byte* out, std::size_t count);

  ByteStream stream_;
  bool near_;
  bool broken_ = false;
  // Small pieces (headers, padding, small messages) gathered into one send.
  std::vector<std::byte> pending_;
  // Received and not consumed: [begin_, end_) of buffer_; begin_ keeps the stream's alignment.
  std::byte* buffer() { return buffer_.data() + buffer_shift_; }
  std::vector<std::byte> buffer_;
  std::size_t buffer_shift_ = 0;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace troupe::collective
