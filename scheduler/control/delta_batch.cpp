#include "scheduler/control/delta_batch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "runtime/base/limits.h"

namespace troupe::scheduler {
namespace {

using Bytes = std::vector<std::byte>;
using BytesView = std::span<const std::byte>;

constexpr std::byte kSingle{1};  // the version of delta.h's encoding, which it begins with
constexpr std::byte kSeveral{2};
constexpr std::byte kPacked{3};
constexpr std::size_t kFrontBytes = 2;  // of delta.h's encoding: version and kind
constexpr unsigned kKinds = 0x80;
constexpr unsigned kCompared = 0x80;
constexpr std::size_t kWord = 8;
constexpr std::size_t kRunMax = 255;
constexpr std::uint64_t kReservedMax = 2u << 20;  // for bytes that may not come
// A word with at most so many zeros does not end a run of words that stand as they are.
constexpr int kZerosInRunMax = 1;

// By kind, the last one in a payload: its bytes without the front.
using LastOfKind = std::array<Bytes, kKinds>;

static_assert(std::endian::native == std::endian::little, "a word's first byte is its lowest");

// What is behind the end counts as zeros.
std::uint64_t word_at(BytesView bytes, std::size_t at) {
  std::uint64_t word = 0;
  if (at < bytes.size()) {
    std::memcpy(&word, bytes.data() + at, std::min(kWord, bytes.size() - at));
  }
  return word;
}

int zeros_in(std::uint64_t word) {
  constexpr std::uint64_t kLow = 0x7f7f'7f7f'7f7f'7f7f;
  return std::popcount(~(((word & kLow) + kLow) | word | kLow));
}

void put_word(Bytes& out, std::uint64_t word, std::size_t bytes = kWord) {
  const auto* from = reinterpret_cast<const std::byte*>(&word);
  out.insert(out.end(), from, from + bytes);
}

// The first words of `bytes`, xor those of the reference from `at` on.
void put_words(Bytes& out, BytesView bytes, std::size_t words, BytesView reference,
               std::size_t at) {
  if (at < reference.size()) {
    for (std::size_t i = 0; i < words; ++i) {
      put_word(out, word_at(bytes, i * kWord) ^ word_at(reference, at + i * kWord));
    }
    return;
  }
  const std::size_t end = out.size() + words * kWord;
  const auto some = bytes.first(std::min(bytes.size(), words * kWord));
  out.insert(out.end(), some.begin(), some.end());
  out.resize(end);
}

Bytes packed(BytesView bytes, BytesView reference) {
  Bytes out;
  const auto difference_at = [&](std::size_t at) {
    return word_at(bytes, at) ^ word_at(reference, at);
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t word = difference_at(at);
    at += kWord;
    const std::size_t tag_at = out.size();
    unsigned tag = 0;
    out.push_back(std::byte{0});
    for (unsigned i = 0; word != 0 && i < kWord; ++i) {
      const auto byte = static_cast<std::byte>(word >> (8 * i));
      if (byte == std::byte{0}) continue;
      tag |= 1u << i;
      out.push_back(byte);
    }
    out[tag_at] = static_cast<std::byte>(tag);
    if (tag != 0 && tag != 0xff) continue;
    const std::size_t count_at = out.size();
    out.push_back(std::byte{0});
    const std::size_t begin = at;
    unsigned count = 0;
    for (; count < kRunMax && at < bytes.size(); ++count, at += kWord) {
      const std::uint64_t next = difference_at(at);
      if (tag == 0 ? next != 0 : zeros_in(next) > kZerosInRunMax) break;
    }
    out[count_at] = static_cast<std::byte>(count);
    if (tag != 0)
      put_words(out, bytes.subspan(std::min(begin, bytes.size())), count, reference, begin);
  }
  return out;
}

class PayloadReader {
 public:
  explicit PayloadReader(BytesView rest) : rest_(rest) {}
  bool empty() const { return rest_.empty(); }
  std::optional<BytesView> take(std::uint64_t count) {
    if (count > rest_.size()) return std::nullopt;
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  std::optional<unsigned> u8() {
    const auto byte = take(1);
    if (!byte) return std::nullopt;
    return std::to_integer<unsigned>(byte->front());
  }
  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      const auto byte = u8();
      if (!byte) return std::nullopt;
      value |= std::uint64_t{*byte & 0x7f} << shift;
      if (*byte < 0x80) return value;
    }
    return std::nullopt;
  }
  // Appends so many bytes to `out`.
  bool unpack(std::uint64_t count, BytesView reference, Bytes& out) {
    std::size_t at = 0;
    const auto put = [&](std::uint64_t word) {
      const auto bytes = std::min<std::uint64_t>(kWord, count - at);
      put_word(out, word ^ word_at(reference, at), bytes);
      at += bytes;
    };
    while (at < count) {
      const auto tag = u8();
      if (!tag) return false;
      std::uint64_t word = 0;
      for (unsigned i = 0; *tag != 0 && i < kWord; ++i) {
        if ((*tag & 1u << i) == 0) continue;
        const auto byte = u8();
        if (!byte) return false;
        word |= std::uint64_t{*byte} << (8 * i);
      }
      put(word);
      if (*tag != 0 && *tag != 0xff) continue;
      const auto more = u8();
      const auto words = take(*tag == 0 ? 0 : more.value_or(0) * kWord);
      if (!more || !words || (*more > 0 && (*more - 1) * kWord >= count - at)) return false;
      put_words(out, *words, *more, reference, at);
      at += *more * kWord;
      if (at > count) out.resize(out.size() - (at - count));
    }
    return true;
  }

 private:
  BytesView rest_;
};

Status cut() { return Status(Code::kDataLoss, "a journal record of several decisions is cut"); }

Status take_several(PayloadReader reader, const std::function<Status(Delta)>& take) {
  while (!reader.empty()) {
    std::uint32_t length = 0;
    const auto front = reader.take(sizeof length);
    if (front) std::memcpy(&length, front->data(), sizeof length);
    const auto bytes = front ? reader.take(length) : std::nullopt;
    if (!bytes) return cut();
    TROUPE_RETURN_IF_ERROR(take(TROUPE_TRY(decode_delta(*bytes))));
  }
  return {};
}

}  // namespace

Bytes encode_deltas(std::span<const Delta> deltas) {
  Bytes out(1, kPacked);
  LastOfKind last;
  for (const Delta& delta : deltas) {
    Bytes bytes = encode_delta(delta);
    const auto kind = std::to_integer<unsigned>(bytes[1]);
    bytes.erase(bytes.begin(), bytes.begin() + kFrontBytes);
    Bytes best = packed(bytes, {});
    bool compared = false;
    if (!last[kind].empty()) {
      Bytes other = packed(bytes, last[kind]);
      compared = other.size() < best.size();
      if (compared) best = std::move(other);
    }
    out.push_back(static_cast<std::byte>(kind | (compared ? kCompared : 0)));
    std::uint64_t length = bytes.size();
    for (; length >= 0x80; length >>= 7) out.push_back(static_cast<std::byte>(length | 0x80));
    out.push_back(static_cast<std::byte>(length));
    out.insert(out.end(), best.begin(), best.end());
    last[kind] = std::move(bytes);
  }
  return out;
}

Status decode_deltas(BytesView payload, const std::function<Status(Delta)>& take) {
  if (payload.empty() || payload.front() == kSingle) {
    return take(TROUPE_TRY(decode_delta(payload)));
  }
  PayloadReader reader(payload.subspan(1));
  if (payload.front() == kSeveral) return take_several(reader, take);
  if (payload.front() != kPacked) {
    return error(Code::kUnsupported,
                 "the journal has a record of form {}, which a later version wrote",
                 std::to_integer<unsigned>(payload.front()));
  }
  LastOfKind last;
  Bytes bytes;
  while (!reader.empty()) {
    const auto front = reader.u8();
    const auto length = reader.varint();
    if (!front || !length) return cut();
    if (*length > limits::kDeltaBytesMax) {
      return error(Code::kDataLoss,
                   "a journal record has a decision of {} bytes, and none has more than {}",
                   *length, limits::kDeltaBytesMax);
    }
    const unsigned kind = *front % kKinds;
    bytes.assign({kSingle, static_cast<std::byte>(kind)});
    bytes.reserve(std::min<std::uint64_t>(*length, kReservedMax) + kFrontBytes);
    const auto reference = (*front & kCompared) != 0 ? BytesView(last[kind]) : BytesView();
    if (!reader.unpack(*length, reference, bytes)) return cut();
    TROUPE_RETURN_IF_ERROR(take(TROUPE_TRY(decode_delta(bytes))));
    last[kind].assign(bytes.begin() + kFrontBytes, bytes.end());
  }
  return {};
}

}  // namespace troupe::scheduler
