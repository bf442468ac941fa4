#include "train/tokenizer/word_cache.h"

#include <algorithm>
#include <bit>

namespace troupe::train {

static_assert(std::endian::native == std::endian::little, "key_of() puts bytes together");

void WordCache::insert(std::string_view word, std::span<const std::int32_t> ids) {
  if (slots_.empty()) slots_.resize(std::size_t{1} << kSlotBits);
  if (word.size() <= kShortBytesMax && ids.size() <= kShortIdsMax) {
    const Key key = key_of(word);
    Slot& slot = slots_[slot_of(key)];
    slot.key = key;
    std::copy(ids.begin(), ids.end(), slot.ids.begin());
    slot.count = static_cast<std::uint32_t>(ids.size());
    return;
  }
  if (long_words_.size() >= kLongWordsMax) {
    long_words_.clear();
    long_ids_.clear();
  }
  long_words_.emplace(word, std::pair(static_cast<std::uint32_t>(long_ids_.size()),
                                      static_cast<std::uint32_t>(ids.size())));
  long_ids_.insert(long_ids_.end(), ids.begin(), ids.end());
}

}  // namespace troupe::train
