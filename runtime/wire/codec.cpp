#include "runtime/wire/codec.h"

#include <capnp/serialize.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <list>

#include "runtime/base/check.h"

namespace troupe::wire::codec {
namespace {

// Thrown while decoding and caught in decode_frame, as Cap'n Proto's own exceptions are.
struct Malformed {
  std::string why;
};

// A message of ours has one segment, or a few where its size was not known beforehand.
constexpr std::uint32_t kSegmentsMax = 64;

Status malformed(const char* what, std::size_t size, std::string_view why) {
  return error(Code::kProtocol, "not a {} ({} bytes): {}", what, size, why);
}

// Pairs of a status's context that travel; ours has five at most.
constexpr std::size_t kStatusContextMax = 64;

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

// A failure must always fit into a frame: what a user's code throws is as long as it likes. What is
// kept of too many words is in `cut`.
std::string_view shortened(const std::string& words, std::list<std::string>& cut) {
  if (words.size() <= limits::kStatusTextBytesMax) return words;
  std::size_t kept = limits::kStatusTextBytesMax;
  while (kept > 0 && (static_cast<unsigned char>(words[kept]) & 0xc0) == 0x80) --kept;  // UTF-8
  return cut.emplace_back(fmt::format(
      "{}... ({} bytes left out)", std::string_view(words).substr(0, kept), words.size() - kept));
}

}  // namespace

Status decode_frame(std::span<const std::byte> frame, const char* what,
                    const std::function<void(StructReader)>& read) {
  constexpr std::size_t kWord = sizeof(capnp::word);
  if (frame.size() < 2 * kWord) return malformed(what, frame.size(), "too short");
  if (frame.size() > limits::kFrameBytesMax) return malformed(what, frame.size(), "too long");
  if (frame.size() % kWord != 0) return malformed(what, frame.size(), "not whole words");
  std::uint32_t segments_minus_one = 0;
  std::memcpy(&segments_minus_one, frame.data(), sizeof(segments_minus_one));
  if (segments_minus_one >= kSegmentsMax) {
    return malformed(what, frame.size(), "too many segments");
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
      return malformed(what, frame.size(), "bytes follow the message");
    }
    const PointerReader root = capnp::_::PointerHelpers<capnp::AnyPointer>::getInternalReader(
        reader.getRoot<capnp::AnyPointer>());
    read(root.getStruct(nullptr));
    return {};
  } catch (const Malformed& problem) {
    return malformed(what, frame.size(), problem.why);
  } catch (const kj::Exception& problem) {
    return malformed(what, frame.size(), problem.getDescription().cStr());
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

// --- what is refused -----------------------------------------------------------------------------

void refuse_value(FieldName field, unsigned value) {
  throw Malformed{
      fmt::format("'{}' is {}, which this version does not know", name_of(field), value)};
}
void refuse_count(FieldName field, std::size_t count) {
  throw Malformed{fmt::format("the list '{}' has {} elements; at most {} are allowed",
                              name_of(field), count, limits::kWireListCountMax)};
}
void refuse_key_twice(FieldName field) {
  throw Malformed{fmt::format("a key is twice in '{}'", name_of(field))};
}
void refuse_message(unsigned number) {
  throw Malformed{fmt::format("message number {}, which this version does not know", number)};
}
void refuse_empty_message() { throw Malformed{"empty"}; }

// --- words, statuses, lists of words -------------------------------------------------------------

void write_pointer(PointerBuilder out, std::string_view value) {
  out.setBlob<capnp::Text>({value.data(), value.size()});
}

void read_pointer(PointerReader in, std::string_view& value, FieldName) {
  const auto text = in.getBlob<capnp::Text>(nullptr, 0 * capnp::BYTES);
  value = {text.begin(), text.size()};
}

void read_pointer(PointerReader in, std::string& value, FieldName) {
  const auto text = in.getBlob<capnp::Text>(nullptr, 0 * capnp::BYTES);
  value.assign(text.begin(), text.size());
}

void write_failure(PointerBuilder out, const Status& value) {
  std::list<std::string> cut;
  StatusShape shape{static_cast<std::int32_t>(value.code()), shortened(value.message(), cut), {}};
  const auto pairs =
      std::span(value.context()).first(std::min(value.context().size(), kStatusContextMax));
  shape.context.reserve(pairs.size());
  for (const auto& [key, word] : pairs) {
    shape.context.emplace_back(shortened(key, cut), shortened(word, cut));
  }
  write_new_struct(out, shape);
}

void read_pointer(PointerReader in, Status& value, FieldName) {
  if (in.isNull()) return;
  StatusShape shape;
  read_struct(in.getStruct(nullptr), shape);
  const Code code = code_from_number(shape.code);
  if (code == Code::kOk) return;
  value = Status(code, std::string(shape.message));
  for (const auto& [key, word] : shape.context) value.with(key, word);
}

void write_pointer(PointerBuilder out, const std::vector<std::string>& values) {
  auto list = ListOf<capnp::Text>::init(out, static_cast<capnp::uint>(values.size()));
  for (capnp::uint i = 0; i < values.size(); ++i) list.set(i, {values[i].data(), values[i].size()});
}

void read_pointer(PointerReader in, std::vector<std::string>& values, FieldName field) {
  const auto list = ListOf<capnp::Text>::get(in);
  values.reserve(checked_count(list, field));
  for (const auto text : list) values.emplace_back(text.begin(), text.size());
}

}  // namespace troupe::wire::codec
