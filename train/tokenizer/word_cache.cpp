#include "train/tokenizer/word_cache.h"

#include <algorithm>
#include <bit>

namespace troupe::train {

static_assert(std::endian::native == std::endian::little, "key_of() puts bytes together");

void WordCache::insert(std::string_view word, std::span<const std::int32_t> ids) {
  if (slots_.empty()) {
    slots_.resize(std::size_t{1} << kSlotBits);
    long_slots_.resize(std::size_t{1} << kLongSlotBits);
  }
  if (word.size() <= kShortBytesMax && ids.size() <= kShortIdsMax) {
    const Key key = key_of(word);
    Slot& slot = slots_[slot_of(key)];
    slot.key = key;
    std::copy(ids.begin(), ids.end(), slot.ids.begin());
    slot.count = static_cast<std::uint32_t>(ids.size());
    return;
  }
  if (long_words_ == kLongWordsMax) {
    std::ranges::fill(long_slots_, LongSlot());
    long_words_ = 0;
    long_text_.clear();
    long_ids_.clear();
  }
  const std::uint32_t hash = hash_of(word);
  long_slots_[long_slot_of(word, hash)] = {.hash = hash,
                                           .text = static_cast<std::uint32_t>(long_text_.size()),
                                           .bytes = static_cast<std::uint32_t>(word.size()),
                                           .ids = static_cast<std::uint32_t>(long_ids_.size()),
                                           .count = static_cast<std::uint32_t>(ids.size())};
  ++long_words_;
  long_text_ += word;
  long_ids_.insert(long_ids_.end(), ids.begin(), ids.end());
}

}  // namespace troupe::train
