#pragma once
// What a trainer must not lose: parameters, reduced gradients, optimizer moments and the step
// record, in one sealed shared-memory segment that can outlive the process.
//
// Regions, each flat over all units in the order of ParameterLayout (whole tiles):
//   parameters, gradients, exp_avg, exp_avg_sq: (total_elements) fp32; record: one CommitRecord.

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/segment_layout.h"
#include "train/model/parameter_layout.h"

namespace troupe::train {

// Which step the state is of. Written by its trainer only.
struct CommitRecord {
  std::int64_t step = 0;  // optimizer steps done
  std::uint64_t generation = 0;
  double grad_norm = 0;  // of that step, before clipping
};
static_assert(std::is_trivially_copyable_v<CommitRecord>);

class TrainingState {
 public:
  // Zeroed, every page touched: no page fault and no lack of memory comes later.
  static Result<TrainingState> create(const ParameterLayout& layout, const std::string& name);

  std::span<float> parameters() { return floats("parameters"); }
  std::span<float> gradients() { return floats("gradients"); }
  std::span<float> exp_avg() { return floats("exp_avg"); }
  std::span<float> exp_avg_sq() { return floats("exp_avg_sq"); }
  CommitRecord& record();
  memory::Segment& segment() { return segment_; }

 private:
  TrainingState(memory::SegmentLayout layout, memory::Segment segment)
      : layout_(std::move(layout)), segment_(std::move(segment)) {}
  std::span<float> floats(std::string_view region);

  memory::SegmentLayout layout_;
  memory::Segment segment_;
};

}  // namespace troupe::train
