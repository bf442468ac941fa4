#pragma once
// BytesView: bytes as an argument that the actor reads where they are.
//
//   std::uint64_t checksum(troupe::BytesView bytes) const;
//   actor.call<&Blobs::checksum>(my_vector_of_bytes)
//
// For the caller it is whatever is a contiguous range of bytes, copied before call() returns. In
// the method it refers to the call's own memory (a caller on the same node wrote it straight into
// shared memory), and is valid until the method returns: keep a copy, never the view. It cannot be
// a result, a constructor's argument or saved state. To the peer it is a std::vector<std::byte>.

#include <cstddef>
#include <span>
#include <vector>

#include "troupe/serialize.h"

namespace troupe {

class BytesView : public std::span<const std::byte> {
 public:
  using std::span<const std::byte>::span;
  BytesView(std::span<const std::byte> bytes) : std::span<const std::byte>(bytes) {}
};

template <>
struct Codec<BytesView> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 4;
  static constexpr std::uint64_t kHash = Codec<std::vector<std::byte>>::kHash;
  static void encode(Encoder& out, const BytesView& value) {
    out.put_count(value.size());
    out.append(value.data(), value.size());
  }
  static bool decode(Decoder& in, BytesView& value) {
    std::size_t count = 0;
    if (!in.get_count(count, 1)) return false;
    if (!in.context().in_place) {
      return in.fail("a BytesView outside of a method's arguments: use std::vector<std::byte>");
    }
    std::span<const std::byte> bytes;
    if (!in.get_view(bytes, count)) return false;
    value = BytesView(bytes);
    return true;
  }
};

}  // namespace troupe
