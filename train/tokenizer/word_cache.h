#pragma once
// The ids of words seen before, for one thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::train {

// Short words of few tokens, nearly all of a text, lie in a table that a processor's cache holds:
// one slot a word, half a cache line with key and ids, so that a word is found with one memory
// access and nothing is allocated. A word takes the slot of the one that was there. Longer words
// are kept beside in a table of their own, with their bytes and ids in two arrays, and all of it is
// emptied when full: nothing here is allocated word by word, which would keep pages that lie
// between texts from being given back.
class WordCache {
 public:
  static constexpr std::size_t kWordBytesMax = 64;

  // The ids of `word` (1 to kWordBytesMax bytes), or nothing; valid until the next insert.
  std::span<const std::int32_t> find(std::string_view word) const;
  // Remembers a word that find() does not know, and its ids (at least one).
  void insert(std::string_view word, std::span<const std::int32_t> ids);
  // Appends the ids of `word` to `out`: those that are remembered, else those that encode()
  // appends, which are remembered then.
  template <typename Encode>
  void append(std::string_view word, std::vector<std::int32_t>& out, const Encode& encode);

 private:
  static constexpr std::size_t kShortBytesMax = 15;
  static constexpr std::size_t kShortIdsMax = 3;
  static constexpr int kSlotBits = 15;  // 1 MiB
  static constexpr int kLongSlotBits = 13;
  static constexpr std::size_t kLongWordsMax = 1 << 12;  // half of the slots

  // The bytes of a short word, zeros behind them, its length in the last byte; all zero: none.
  struct Key {
    std::uint64_t low = 0, high = 0;
    bool operator==(const Key&) const = default;
  };
  struct alignas(32) Slot {
    Key key;
    std::array<std::int32_t, kShortIdsMax> ids{};
    std::uint32_t count = 0;
  };
  static_assert(sizeof(Slot) == 32);
  struct LongSlot {
    std::uint32_t hash = 0;
    std::uint32_t text = 0;  // where in `long_text_`
    std::uint32_t bytes = 0;
    std::uint32_t ids = 0;    // where in `long_ids_`
    std::uint32_t count = 0;  // of ids; 0: nothing is here
  };

  static Key key_of(std::string_view word);
  static std::size_t slot_of(const Key& key);
  // The slot of a long word, or the empty one where it belongs.
  std::size_t long_slot_of(std::string_view word, std::uint32_t hash) const;
  static std::uint32_t hash_of(std::string_view word) {
    return static_cast<std::uint32_t>(std::hash<std::string_view>()(word));
  }

  // Both are made by the first insert: a tokenizer may never encode.
  std::vector<Slot> slots_;
  std::vector<LongSlot> long_slots_;
  std::size_t long_words_ = 0;
  std::string long_text_;
  std::vector<std::int32_t> long_ids_;
};

// --- inline: called once a word

inline WordCache::Key WordCache::key_of(std::string_view word) {
  const char* data = word.data();
  const std::size_t size = word.size();
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint64_t>(static_cast<unsigned char>(data[i]));
  };
  const auto load = [&](std::size_t at, auto value) {
    __builtin_memcpy(&value, data + at, sizeof value);
    return static_cast<std::uint64_t>(value);
  };
  // Loads that overlap read a word of any length without a loop and without a byte beyond it.
  Key key;
  if (size >= 8) {
    key.low = load(0, std::uint64_t{});
    if (size > 8) key.high = load(size - 8, std::uint64_t{}) >> (8 * (16 - size));
  } else if (size >= 4) {
    key.low = load(0, std::uint32_t{}) | load(size - 4, std::uint32_t{}) << (8 * (size - 4));
  } else {
    key.low = byte(0) | byte(size / 2) << (8 * (size / 2)) | byte(size - 1) << (8 * (size - 1));
  }
  key.high |= static_cast<std::uint64_t>(size) << 56;
  return key;
}

inline std::size_t WordCache::slot_of(const Key& key) {
  std::uint64_t hash = (key.low ^ (key.high * 0xff51afd7ed558ccdu)) * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 32;
  return static_cast<std::size_t>((hash * 0xc4ceb9fe1a85ec53u) >> (64 - kSlotBits));
}

inline std::span<const std::int32_t> WordCache::find(std::string_view word) const {
  if (slots_.empty()) return {};
  if (word.size() <= kShortBytesMax) {
    const Key key = key_of(word);
    const Slot& slot = slots_[slot_of(key)];
    if (slot.key == key) return {slot.ids.data(), slot.count};
  }
  const LongSlot& slot = long_slots_[long_slot_of(word, hash_of(word))];
  return {long_ids_.data() + slot.ids, slot.count};
}

inline std::size_t WordCache::long_slot_of(std::string_view word, std::uint32_t hash) const {
  constexpr std::size_t mask = (std::size_t{1} << kLongSlotBits) - 1;
  std::size_t at = hash & mask;
  for (;; at = (at + 1) & mask) {
    const LongSlot& slot = long_slots_[at];
    if (slot.count == 0) return at;
    if (slot.hash == hash && std::string_view(long_text_).substr(slot.text, slot.bytes) == word)
      return at;
  }
}

template <typename Encode>
void WordCache::append(std::string_view word, std::vector<std::int32_t>& out,
                       const Encode& encode) {
  if (word.size() > kWordBytesMax) return encode();
  if (const auto known = find(word); !known.empty()) {
    out.insert(out.end(), known.begin(), known.end());
    return;
  }
  const std::size_t before = out.size();
  encode();
  insert(word, std::span(out).subspan(before));
}

}  // namespace troupe::train
