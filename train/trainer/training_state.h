#pragma once
// What a trainer must not lose, in one sealed shared-memory segment that outlives the process.
//
// Regions, each whole or this rank's shard by RankLayout: parameters, exp_avg, exp_avg_sq of the
// state's type, gradients fp32; transaction: train/transaction's; marks and undo: UpdateLog's.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/segment_layout.h"
#include "train/optimizer/update_log.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/sharded_optimizer.h"
#include "train/trainer/surviving_memory.h"
#include "train/transaction/step_transaction.h"

namespace troupe::train {

class TrainingState {
 public:
  // What an earlier process of the rank kept under `name` in `memory`, where it was laid out the
  // same way, or a new one, zeroed, which is kept. Every page is touched: no page fault and no lack
  // of memory comes later. threads: that update chunks at a time.
  static Result<TrainingState> open(const RankLayout& layout, DType state, int threads,
                                    SurvivingMemory& memory, const std::string& name,
                                    const std::string& label);

  StateBuffers buffers();
  StepTransaction& transaction() { return *transaction_; }
  UpdateLog& update_log() { return *update_log_; }
  // What it attached to was another process's.
  bool attached() const { return attached_; }
  // Whether the buffers are new memory that nobody has written. Asked by who is about to write
  // them: true once.
  bool take_zeroed() { return std::exchange(zeroed_, false); }

 private:
  TrainingState(DType state, memory::SegmentLayout layout, const UpdateLog::Layout& chunks,
                memory::Segment segment, bool attached);

  DType state_;
  memory::SegmentLayout layout_;
  memory::Segment segment_;
  bool attached_;
  bool zeroed_;
  std::unique_ptr<StepTransaction> transaction_;
  std::unique_ptr<UpdateLog> update_log_;
};

}  // namespace troupe::train
