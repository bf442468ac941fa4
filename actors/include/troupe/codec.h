#pragma once
// Bytes of arguments and results: a writer that appends and a reader that trusts nothing.
//
// Format: little-endian; numbers at their own width; counts as u32 before what they count; no tags
// (both ends run the same type, which the method's signature hash guarantees). serialize.h says how
// each type is written.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "troupe/status.h"

namespace troupe {

namespace detail {
class ActorClient;    // what a decoded handle calls through
struct ObjectIntake;  // references to objects that were decoded
using Bytes = std::vector<std::byte>;

// What decoding needs besides the bytes: handles among the arguments call through `client`.
struct DecodeContext {
  std::shared_ptr<ActorClient> client;
  // The bytes outlive what is decoded from them: a BytesView may refer to them.
  bool in_place = false;
  // References to objects are taken: whoever decodes sees to it that their homes hear of it
  // (hold_decoded) before their sender lets go of them.
  bool takes_references = false;
  mutable std::shared_ptr<ObjectIntake> intake = nullptr;  // those that came; null: none

  // Without handles, without views.
  static const DecodeContext& none() {
    static const DecodeContext empty;
    return empty;
  }
};

}  // namespace detail

static_assert(std::endian::native == std::endian::little, "the format is the memory's own order");

// Where large arguments may be written instead of the heap: memory that the actor reads in place.
class LargeMemory {
 public:
  virtual ~LargeMemory() = default;
  // At least `bytes` bytes; empty where there is no such memory (any more). What was given before
  // is given up.
  virtual std::span<std::byte> take(std::size_t bytes) = 0;
};
// Arguments of at least so many bytes are worth it.
inline constexpr std::size_t kLargeBytesMin = 64u << 10;

// In the place of a count that a u32 does not hold.
inline constexpr std::uint32_t kCountInU64 = ~0u;

// Appends values to a buffer.
class Encoder {
 public:
  Encoder() = default;
  // `large` takes the bytes as soon as there are many of them, where it has room.
  explicit Encoder(LargeMemory* large) : large_(large) {}

  template <typename T>
  requires(std::is_arithmetic_v<T>) void put(T value) { append(&value, sizeof value); }
  // The count of what follows: a u32, or, where that does not hold it, its largest value and a u64.
  void put_count(std::size_t count) {
    if (count < kCountInU64) return put(static_cast<std::uint32_t>(count));
    put(kCountInU64);
    put(static_cast<std::uint64_t>(count));
  }
  void append(const void* data, std::size_t size) {
    if (size == 0) return;
    const auto* bytes = static_cast<const std::byte*>(data);
    if (large_ != nullptr && (!room_.empty() || bytes_.size() + size >= kLargeBytesMin)) {
      append_large(bytes, size);
      return;
    }
    append_to_heap(bytes, size);
  }
  void reserve(std::size_t size) { bytes_.reserve(size); }
  std::size_t size() const { return room_.empty() ? bytes_.size() : room_used_; }
  // Whether the bytes are in the large memory: take() then returns nothing.
  bool in_large_memory() const { return !room_.empty(); }
  std::vector<std::byte> take() { return std::move(bytes_); }
  // Something that must live until whoever decodes the bytes has them.
  void keep(std::shared_ptr<const void> kept) { kept_.push_back(std::move(kept)); }
  std::vector<std::shared_ptr<const void>>& kept() { return kept_; }

 private:
  void append_large(const std::byte* bytes, std::size_t size);
  void append_to_heap(const std::byte* bytes, std::size_t size) {
    if (size > bytes_.capacity() - bytes_.size()) grow(size);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
  }
  void grow(std::size_t size);

  std::vector<std::byte> bytes_;
  LargeMemory* large_ = nullptr;
  std::span<std::byte> room_;  // of large_; empty: bytes_ holds what there is
  std::size_t room_used_ = 0;
  std::vector<std::shared_ptr<const void>> kept_;
};

using detail::DecodeContext;

// Nesting of pointers and of types with a codec of their own; honest arguments stay far below.
inline constexpr int kDecodeDepthMax = 64;

// Reads values from bytes of a peer. Every read returns false once anything was wrong; status()
// says what and at which byte. A count is believed only if the bytes that are left could hold so
// many.
class Decoder {
 public:
  // Both outlive the decoder.
  explicit Decoder(std::span<const std::byte> bytes,
                   const DecodeContext& context = DecodeContext::none())
      : bytes_(bytes), context_(&context) {}

  template <typename T>
  requires(std::is_arithmetic_v<T>) bool get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t byte = 0;
      if (!get(byte)) return false;
      if (byte > 1) return fail("a bool that is neither 0 nor 1");
      value = byte == 1;
      return true;
    } else {
      return get_raw(&value, sizeof value);
    }
  }
  bool get_raw(void* out, std::size_t size) {
    if (size > remaining()) return fail("the bytes end early");
    if (size > 0) std::memcpy(out, bytes_.data() + offset_, size);
    offset_ += size;
    return ok();
  }
  // A count of elements of which each takes at least `element_bytes_min` (> 0) bytes.
  bool get_count(std::size_t& count, std::size_t element_bytes_min) {
    std::uint32_t value = 0;
    if (!get(value)) return false;
    std::uint64_t large = value;
    if (value == kCountInU64 && !get(large)) return false;
    if (large > remaining() / element_bytes_min) return fail("a count larger than what is left");
    count = large;
    return true;
  }
  // Records the first failure; returns false for `return decoder.fail("…")`.
  bool fail(std::string_view what);
  // The same where the failure is another one than wrong bytes.
  bool fail(Status why);
  // The next `size` bytes where they are; they live as long as what is decoded only where
  // context().in_place says so.
  bool get_view(std::span<const std::byte>& out, std::size_t size) {
    if (size > remaining()) return fail("the bytes end early");
    out = bytes_.subspan(offset_, size);
    offset_ += size;
    return ok();
  }
  bool enter() { return ++depth_ <= kDecodeDepthMax || fail("nested too deeply"); }
  void leave() { --depth_; }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  std::size_t remaining() const { return bytes_.size() - offset_; }
  const DecodeContext& context() const { return *context_; }

 private:
  std::span<const std::byte> bytes_;
  const DecodeContext* context_;
  std::size_t offset_ = 0;
  int depth_ = 0;
  Status status_;
};

// The structural hash of types and signatures: the same types give the same number in every build.
struct TypeHash {
  static constexpr std::uint64_t kSeed = 0xcbf29ce484222325ULL;  // FNV-1a, 64 bit
  static constexpr std::uint64_t of(std::string_view text) {
    std::uint64_t hash = kSeed;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return hash;
  }
  // Order matters: mix(mix(h, a), b) differs from mix(mix(h, b), a).
  static constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((value >> shift) & 0xff)) * 0x100000001b3ULL;
    }
    return hash;
  }
};

// How a type is written and read; serialize.h has those of the standard library and of plain
// aggregates. For a class of your own that is not a plain aggregate, specialise it:
//
//   template <> struct troupe::Codec<Matrix> {
//     static constexpr bool kSupported = true;
//     static constexpr std::size_t kBytesMin = 8;   // the fewest bytes a value takes; at least 1
//     static constexpr std::uint64_t kHash = troupe::TypeHash::of("Matrix/1");
//     static void encode(troupe::Encoder& out, const Matrix& value);
//     static bool decode(troupe::Decoder& in, Matrix& value);
//   };
template <typename T>
struct Codec {
  static constexpr bool kSupported = false;
};

}  // namespace troupe
