#include "runtime/wire/codec.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"

namespace troupe::wire::codec {
namespace {

// A message of ours has one segment, or a few where its size was not known beforehand.
constexpr std::uint32_t kSegmentsMax = 64;

Status malformed(const char* family, std::size_t size, std::string_view what) {
  return error(Code::kProtocol, "not a {} ({} bytes): {}", family, size, what);
}

// Cap'n Proto reads whole words at word boundaries; a frame in the middle of a buffer is copied.
class AlignedCopy {
 public:
  kj::ArrayPtr<const capnp::word> of(std::span<const std::byte> frame) {
    const std::size_t count = frame.size() / sizeof(capnp::word);
    void* space = small_;
    if (frame.size() > sizeof small_) {
      large_ = kj::heapArray<capnp::word>(count);
      space = large_.begin();
    }
    std::memcpy(space, frame.data(), frame.size());
    return kj::arrayPtr(static_cast<const capnp::word*>(space), count);
  }

 private:
  alignas(capnp::word) std::byte small_[512];  // most calls and answers
  kj::Array<capnp::word> large_;
};

}  // namespace

Status decode_frame(std::span<const std::byte> frame, const char* family,
                    const std::function<void(capnp::MessageReader&)>& read) {
  constexpr std::size_t kWord = sizeof(capnp::word);
  if (frame.size() < 2 * kWord) return malformed(family, frame.size(), "too short");
  if (frame.size() > limits::kFrameBytesMax) return malformed(family, frame.size(), "too long");
  if (frame.size() % kWord != 0) return malformed(family, frame.size(), "not whole words");
  std::uint32_t segments_minus_one = 0;
  std::memcpy(&segments_minus_one, frame.data(), sizeof(segments_minus_one));
  if (segments_minus_one >= kSegmentsMax) {
    return malformed(family, frame.size(), "too many segments");
  }

  AlignedCopy copy;
  const bool aligned = reinterpret_cast<std::uintptr_t>(frame.data()) % alignof(capnp::word) == 0;
  const auto words = aligned ? kj::arrayPtr(reinterpret_cast<const capnp::word*>(frame.data()),
                                            frame.size() / kWord)
                             : copy.of(frame);

  capnp::ReaderOptions options;
  // In proportion to the frame, so that a small one cannot point at itself a million times.
  options.traversalLimitInWords =
      std::min<std::uint64_t>(limits::kTraversalWordsMax, 4 * words.size() + 1024);
  options.nestingLimit = limits::kMessageDepthMax;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    if (reader.getEnd() != words.end()) {
      return malformed(family, frame.size(), "bytes follow the message");
    }
    read(reader);
    return {};
  } catch (const Malformed& problem) {
    return malformed(family, frame.size(), problem.what);
  } catch (const kj::Exception& problem) {
    return malformed(family, frame.size(), problem.getDescription().cStr());
  }
}

Bytes to_bytes(capnp::MessageBuilder& message) {
  const auto segments = message.getSegmentsForOutput();
  Bytes bytes(capnp::computeSerializedSizeInWords(segments) * sizeof(capnp::word));
  kj::ArrayOutputStream stream(
      kj::arrayPtr(reinterpret_cast<kj::byte*>(bytes.data()), bytes.size()));
  capnp::writeMessage(stream, segments);
  TROUPE_CHECK(stream.getArray().size() == bytes.size());
  return bytes;
}

}  // namespace troupe::wire::codec
