#pragma once
// Lists are answered in pieces of about limits::kListPieceBytes: whoever asks goes on behind the
// last one that it got while there are more. What comes or goes meanwhile may be in the list.

#include <cstdint>

#include "runtime/base/limits.h"

namespace troupe::scheduler {

// Calls `add(record)` for the records of a map by id that follow `after` (an empty id: for all of
// them), in order, until what it says that it has added is a piece. Whether others follow.
template <typename Records, typename Add>
bool add_piece(Records& records, const typename Records::key_type& after, Add add) {
  std::uint64_t bytes = 0;
  for (auto next = records.upper_bound(after); next != records.end(); ++next) {
    if (bytes >= limits::kListPieceBytes) return true;
    bytes += add(next->second);
  }
  return false;
}

}  // namespace troupe::scheduler
