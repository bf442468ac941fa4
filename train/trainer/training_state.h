#pragma once
// What a trainer must not lose: parameters, reduced gradients, optimizer moments and the step
// record, in one sealed shared-memory segment that can outlive the process.
//
// Regions, each whole or this rank's shard by RankLayout: parameters, exp_avg, exp_avg_sq of the
// state's type, gradients fp32; record: one CommitRecord.

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/segment_layout.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/sharded_optimizer.h"

namespace troupe::train {

// Which step the state is of. Written by its trainer only.
struct CommitRecord {
  std::int64_t step = 0;     // steps done, skipped ones included
  std::int64_t skipped = 0;  // of them: gradients were not finite, nothing was updated
  std::int64_t skipped_in_a_row = 0;
  std::int64_t moment_updates = 0;  // of AdamW's moments: what bias correction counts
  std::uint64_t generation = 0;
  double grad_norm = 0;  // of that step, before clipping
  // Updates of the parameters so far: what the schedule counts.
  std::int64_t updates() const { return step - skipped; }
};
static_assert(std::is_trivially_copyable_v<CommitRecord>);

class TrainingState {
 public:
  // Zeroed, every page touched: no page fault and no lack of memory comes later.
  static Result<TrainingState> create(const RankLayout& layout, DType state,
                                      const std::string& name);

  StateBuffers buffers();
  CommitRecord& record();
  memory::Segment& segment() { return segment_; }

 private:
  TrainingState(DType state, memory::SegmentLayout layout, memory::Segment segment)
      : state_(state), layout_(std::move(layout)), segment_(std::move(segment)) {}

  DType state_;
  memory::SegmentLayout layout_;
  memory::Segment segment_;
};

}  // namespace troupe::train
