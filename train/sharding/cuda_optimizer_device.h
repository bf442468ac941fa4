#pragma once
// AdamW's arithmetic on a GPU.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "train/cuda/operators/cuda_optimizer.h"
#include "train/cuda/operators/transacted_update.h"
#include "train/optimizer/adamw.h"
#include "train/sharding/optimizer_device.h"

namespace troupe::train {

// Enqueues on one stream and waits for it, at most kStreamWaitMax.
class CudaOptimizerDevice final : public OptimizerDevice {
 public:
  // kUnsupported, with the way out, where the device has no arithmetic for this optimizer, or for
  // groups with learning rates of their own.
  static Status check(const Optimizer& optimizer, const ParameterGroups& groups);
  // Bytes of the device's memory that the log of updates takes, beside the state and as surviving
  // as it is. MemoryPurpose::kOptimizerState.
  static std::int64_t log_bytes(const RankLayout& layout, DType state);
  // Bytes of the device's memory for the object alone that need not outlive it: kWorkspace.
  static std::int64_t scratch_bytes(const RankLayout& layout);

  // The shard's buffers are the device's. `log`: log_bytes(), or empty where no other process could
  // finish an update; `scratch`: scratch_bytes(); both aligned to 256 bytes. What is new memory is
  // given to forget_updates() before the first update. `stream`: the one that gradients are reduced
  // for, or that has waited for them; it and all memory outlive the object. `observer` may be
  // empty; it is told of chunk 0 "before" (nothing is enqueued), "launched" (the device is at it)
  // and "after" (all is done).
  static Result<std::unique_ptr<CudaOptimizerDevice>> create(CudaStream& stream,
                                                             OptimizerShard shard,
                                                             std::span<std::byte> log,
                                                             std::span<std::byte> scratch,
                                                             UpdateObserver observer = {});

  Result<std::vector<double>> tile_sums() override;
  Status update(const OptimizerStep& step, std::int64_t number) override;
  Status forget_updates() override;

 private:
  CudaOptimizerDevice(CudaStream& stream, OptimizerShard shard, CudaOptimizer optimizer,
                      std::optional<TransactedUpdate> transacted, UpdateObserver observer);
  Status enqueue(const AdamWStep& step, std::int64_t number);

  CudaStream* stream_;
  const OptimizerShard shard_;
  const AdamW* const adamw_;  // the shard's optimizer
  CudaOptimizer optimizer_;
  std::optional<TransactedUpdate> transacted_;  // none: without a log
  const UpdateObserver observer_;
};

}  // namespace troupe::train
