#pragma once
// The ids of words seen before, for one thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::train {

// Short words of few tokens, nearly all of a text, lie in a table that a processor's cache holds:
// one slot a word, half a cache line with key and ids, so that a word is found with one memory
// access and nothing is allocated. A word takes the slot of the one that was there. Longer words
// are kept beside in an ordinary map, which is emptied when full.
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
  static constexpr std::size_t kLongWordsMax = 100'000;

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
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };

  static Key key_of(std::string_view word);
  static std::size_t slot_of(const Key& key);

  std::vector<Slot> slots_;  // made by the first insert: a tokenizer may never encode
  std::unordered_map<std::string, std::pair<std::uint32_t, std::uint32_t>, Hash, std::equal_to<>>
      long_words_;  // where in `long_ids_`, how many
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
  const auto at = long_words_.find(word);
  if (at == long_words_.end()) return {};
  return {long_ids_.data() + at->second.first, at->second.second};
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
