#pragma once
// How large the head's journal may become.

#include <cstddef>

namespace troupe::limits {

// The head's journal. A head that is started again reads it and writes it anew before it answers,
// which is to take at most 500 ms: of a processor here 200 ms and 200 ms for the largest journal
// (tools/bench journal), besides the disk. So the file is bounded by the sum of
// what may be in it: what lives (beyond it new actors, groups, supervisors and jobs are refused),
// what has ended and is remembered for people, of each of these four kinds, events, and what was
// appended since the last rewrite. The rest is for nodes.
inline constexpr std::size_t kJournalBytesMax = 128u << 20;
inline constexpr std::size_t kJournalLivingBytesMax = 64u << 20;
inline constexpr std::size_t kJournalEndedBytesMax = 4u << 20;
inline constexpr std::size_t kJournalEventBytesMax = 8u << 20;
inline constexpr std::size_t kJournalHistoryBytesMax = 16u << 20;
// What a node says of itself: its name, resources and labels.
inline constexpr std::size_t kNodeInfoBytesMax = 64u << 10;

static_assert(kJournalLivingBytesMax + 4 * kJournalEndedBytesMax + kJournalEventBytesMax +
                  kJournalHistoryBytesMax + (16u << 20) <=
              kJournalBytesMax);

}  // namespace troupe::limits
