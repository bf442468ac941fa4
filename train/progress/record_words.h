#pragma once
// Words of a progress record as they are written. Internal.

#include <algorithm>
#include <cstring>

#include "train/progress/progress_record.h"

namespace troupe::train {

// "TRUPPRO" and the version of the layout.
inline constexpr std::uint64_t kProgressMagic = 0x54525550'50524f01;

// `name`, and `group` behind it where there is one; both as far as there is room.
inline void store_name(ProgressName& to, std::string_view name, std::string_view group = {}) {
  char text[kOperationNameBytes] = {};
  std::size_t used = std::min(name.size(), sizeof text);
  if (used != 0) std::memcpy(text, name.data(), used);
  if (!group.empty() && used + 1 < sizeof text) {
    text[used++] = ' ';
    std::memcpy(text + used, group.data(), std::min(group.size(), sizeof text - used));
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::uint64_t word;
    std::memcpy(&word, text + 8 * i, sizeof word);
    to[i].store(word, std::memory_order_relaxed);
  }
}

}  // namespace troupe::train
