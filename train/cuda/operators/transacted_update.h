#pragma once
// AdamW over all that a rank owns of a device's memory, as a transaction: a process that is killed
// at any instant leaves memory from which the next one finishes the update, with the bits of an
// undisturbed one. The GPU's counterpart of train/optimizer/update_log.h.
//
// The log lies in the device's memory beside the state, in the allocation that outlives the
// process. Marks and slots name their step, so those of an earlier one mean nothing.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "train/cuda/device/stream.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/update_range.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

// What is updated. Addresses are the device's.
struct UpdateTarget {
  DType state = DType::kF32;            // of parameters and moments; or kBF16
  std::span<const UpdateRange> ranges;  // whole chunks each, in flat order
  // Cover them; all with the same learning rate.
  const ParameterGroups* groups = nullptr;
  void* parameters = nullptr;
  const float* gradients = nullptr;
  void* first_moments = nullptr;
  void* second_moments = nullptr;
};

// Enqueues on one stream. One thread at a time.
class TransactedUpdate {
 public:
  // Bytes of the log: memory that outlives the process, as the state does.
  static std::int64_t log_bytes(std::int64_t chunks, DType state);
  // Bytes of memory that need not.
  static std::int64_t scratch_bytes(std::int64_t ranges, const ParameterGroups& groups);
  // Keeps the target's tables in `scratch`. `stream` and the memory outlive the object; spans of
  // the target need not. `log` and `scratch` are aligned to 256 bytes.
  static Result<TransactedUpdate> create(CudaStream& stream, const UpdateTarget& target,
                                         std::span<std::byte> log, std::span<std::byte> scratch);

  // Enqueues the transaction's update `number` ≥ 1, or what an update of that number left of it.
  Status enqueue(const AdamWStep& step, std::int64_t number);
  // Nothing is marked, nothing is saved: new memory, or steps are done again. Waits.
  Status forget();

 private:
  TransactedUpdate(CudaStream& stream, const UpdateTarget& target, std::span<std::byte> log,
                   std::span<std::byte> scratch);
  Status upload(const UpdateTarget& target);

  CudaStream* stream_;
  TroupeCudaUpdate update_{};  // all but what a step brings
  std::span<std::byte> forgotten_;
  std::span<std::byte> scratch_;
};

}  // namespace troupe::train
