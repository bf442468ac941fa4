#pragma once
// The memory of a trainer's progress record.

#include <string>

#include <fmt/format.h>

#include "runtime/base/check.h"
#include "runtime/memory/segment.h"
#include "train/progress/progress_record.h"

namespace troupe::train {

// The prefix of a rank's surviving memory, in the world of that number (run_inputs.h).
inline std::string rank_memory(int world, int rank) {
  return world == 0 ? fmt::format("rank-{}", rank) : fmt::format("world-{}-rank-{}", world, rank);
}
// In a rank's surviving memory: its process's record, and that of the process before.
inline constexpr const char* kProgressName = "progress";
inline constexpr const char* kProgressBeforeName = "progress-before";

// A segment with a ProgressRecord, zeroed. A process that cannot have these few pages ends.
class ProgressMemory {
 public:
  ProgressMemory() {
    auto made =
        memory::Segment::create("troupe-progress", sizeof(ProgressRecord), memory::Populate::kNow);
    TROUPE_CHECK(made.ok(), "{}", made.status().to_string());
    segment_ = std::move(*made);
  }
  ProgressRecord& record() { return *reinterpret_cast<ProgressRecord*>(segment_.data()); }
  const memory::Segment& segment() const { return segment_; }

 private:
  memory::Segment segment_;
};

}  // namespace troupe::train
