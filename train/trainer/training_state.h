#pragma once
// What a trainer must not lose, in memory that outlives the process.
//
// On a CPU: one sealed shared-memory segment. Regions, each whole or this rank's shard by
// RankLayout: parameters and the optimizer's slots, under their names, of the state's type,
// gradients fp32; frozen: the parameters that are not trained, in their own type; transaction:
// train/transaction's; marks and undo: UpdateLog's.
//
// On a GPU: a segment with the transaction, and one allocation of the device with the rest, whose
// descriptor is kept beside the segment under "state-tensors". What is offloaded lies in the
// segment, as on a CPU: the parameters that this rank updates, slots, marks and undo. The device
// has the gradients then, and parameters in the type that they are used in (with
// Offload::kParameters pinned memory has them): a copy that any process can make again.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/segment_layout.h"
#include "train/cuda/device/device_arena.h"
#include "train/cuda/device/device_memory.h"
#include "train/optimizer/update_log.h"
#include "train/sharding/offload.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/sharded_optimizer.h"
#include "train/trainer/surviving_memory.h"
#include "train/transaction/step_transaction.h"
#include "troupe/log.h"

namespace troupe::train {

struct StateOptions {
  DType state = DType::kF32;             // of trained parameters and slots
  DType frozen = DType::kF32;            // of what is not trained
  const Optimizer* optimizer = nullptr;  // outlives the state
  int threads = 1;                       // that update chunks at a time: of the host
  // On a GPU.
  Offload offload = Offload::kNothing;
  DType used = DType::kF32;  // offloaded: what products take parameters in
  // On a CPU: of another rank's state, which this one keeps (buddy_state.h); −1: its own.
  int kept_of = -1;
};

class TrainingState {
 public:
  // What an earlier process of the rank kept as "state" in `memory` (of another's state: as
  // "kept"), where it was laid out the same way, or a new one, zeroed, which is kept. Every page is
  // touched: no page fault and no lack of memory comes later.
  static Result<TrainingState> open(const RankLayout& layout, const StateOptions& options,
                                    SurvivingMemory& memory, const std::string& label);
  // The same of what is there already; nothing where there is none, or it was laid out otherwise.
  static Result<std::optional<TrainingState>> find(const RankLayout& layout,
                                                   const StateOptions& options,
                                                   SurvivingMemory& memory);
  // What was kept as "state" goes, and what was kept of another rank's.
  static Status drop(SurvivingMemory& memory);
  // What was kept of another rank's state goes.
  static Status drop_kept(SurvivingMemory& memory);
  // The same on a GPU; new memory of it has any content. What an earlier process left on another
  // GPU is not taken. A device that cannot export its memory keeps nothing: `log` is told what that
  // means. kOutOfMemory by purpose.
  static Result<TrainingState> open_on_device(const RankLayout& layout, const StateOptions& options,
                                              std::shared_ptr<CudaDevice> device,
                                              SurvivingMemory& memory, const std::string& label,
                                              const Logger& log);
  // What that takes of the device's memory.
  static ArenaPlan device_plan(const RankLayout& layout, const StateOptions& options);

  // What an engine works on: parameters as units are gathered from them, gradients. Slots are not
  // there where they are offloaded.
  StateBuffers buffers();
  // What is updated, loaded and saved: the same, or what is offloaded (and the device's gradients).
  StateBuffers kept();
  Offload offload() const { return options_.offload; }
  StepTransaction& transaction() { return *transaction_; }
  // Of another rank's state: memory of TileSums.
  std::span<std::byte> tile_sums() { return layout_.region(segment_, "sums"); }
  // On a CPU, or offloaded.
  UpdateLog& update_log() { return *update_log_; }
  // On a GPU: CudaOptimizerDevice's log; empty where nothing outlives the process.
  std::span<std::byte> device_log() const;
  // What it attached to was another process's.
  bool attached() const { return attached_; }
  // Whether the buffers are new memory, zeroed, that nobody has written. Asked by who is about to
  // write them: true once.
  bool take_zeroed() { return std::exchange(zeroed_, false); }

 private:
  TrainingState(const RankLayout& rank, const StateOptions& options, memory::SegmentLayout layout,
                memory::Segment segment, bool attached);
  static TrainingState made(const RankLayout& layout, const StateOptions& options,
                            memory::Segment segment, bool attached);
  void open_log(const UpdateLog::Layout& chunks);
  // The optimizer's slots, where `part(name)` says.
  template <typename F>
  std::vector<SlotBuffer> slots(F part) const;
  StateBuffers in_segment(Region parameters);

  StateOptions options_;
  memory::SegmentLayout layout_;
  memory::Segment segment_;
  std::optional<DeviceArena> arena_;    // a GPU's
  std::optional<PinnedMemory> pinned_;  // parameters, with Offload::kParameters
  bool has_frozen_ = false;
  bool outlives_ = true;
  bool attached_;
  bool zeroed_;
  std::unique_ptr<StepTransaction> transaction_;
  std::vector<SlotBuffer> slots_;  // without data
  std::unique_ptr<UpdateLog> update_log_;
};

}  // namespace troupe::train
