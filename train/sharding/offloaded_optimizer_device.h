#pragma once
// The optimizer of a rank that computes on a GPU and keeps its optimizer state in memory of the
// host.
//
// The norm's parts are summed on the GPU, where the gradients are. The update is the CPU's, under
// the CPU's log, of parameters and slots in the host's memory; piece by piece gradients come down
// and updated parameters go up, in the type that they are used in. While the host updates a piece,
// the next one's gradients and the last one's parameters are on their way.
//
// Where units are gathered from is a copy of what is updated. It needs no log: whoever finishes an
// update, or finds the state of a process before it, places all of it again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "train/cuda/device/device_memory.h"
#include "train/cuda/device/stream.h"
#include "train/cuda/operators/cuda_optimizer.h"
#include "train/sharding/host_update.h"
#include "train/sharding/offload.h"
#include "train/sharding/optimizer_device.h"

namespace troupe::train {

struct OffloadedShard {
  // What is updated, in memory of the host: parameters_region is kOptimizer. Gradients are the
  // device's.
  StateBuffers kept;
  // Where units are gathered from: the region kParameters, of `used`. The device's, or pinned
  // memory of the host with Offload::kParameters.
  std::span<std::byte> parameters;
  DType used = DType::kF32;
  Offload offload = Offload::kOptimizer;
};

class OffloadedOptimizerDevice final : public OptimizerDevice {
 public:
  // Bytes of the device's memory for the object alone: kWorkspace.
  static std::int64_t scratch_bytes(const RankLayout& layout);
  // Bytes of pinned memory of the host that it takes for pieces on their way.
  static std::int64_t pinned_bytes(const RankLayout& layout, DType used, Offload offload);

  // `compute`: the stream that gradients are reduced for, or that has waited for them. `log`,
  // `observer`: as make_cpu_optimizer_device(). `scratch`: scratch_bytes() of the device, aligned
  // to 256 bytes. All of it, the layout too, outlives the object. kOutOfMemory: no pinned memory.
  static Result<std::unique_ptr<OffloadedOptimizerDevice>> create(
      CudaStream& compute, const RankLayout& layout, const OffloadedShard& shard,
      const Optimizer& optimizer, ParallelFor parallel_for, UpdateLog* log,
      std::span<std::byte> scratch, UpdateObserver observer = {});
  // Waits for copies under way.
  ~OffloadedOptimizerDevice() override;

  Result<std::vector<double>> tile_sums() override;
  Status update(const OptimizerStep& step, std::int64_t number) override;
  Status forget_updates() override;
  Status place_parameters() override;

 private:
  // Tiles that lie side by side in all buffers.
  struct Piece {
    std::int64_t first_tile = 0, tiles = 0;
    std::int64_t parameters = 0;  // where the first one's are used, in elements
  };
  // Pieces take turns.
  struct Slot {
    std::optional<PinnedMemory> gradients, parameters;
    CudaEvent fetched, placed;
  };
  OffloadedOptimizerDevice(CudaStream& compute, const OffloadedShard& shard, HostUpdate update,
                           std::vector<Piece> pieces, ParallelFor parallel_for, CudaOptimizer sums,
                           CudaStream down, CudaStream up, std::array<Slot, 2> slots);

  static Result<Slot> make_slot(const std::shared_ptr<CudaDevice>& device, std::int64_t elements,
                                const OffloadedShard& shard);
  Status follow_compute();
  Status fetch(std::size_t piece);
  // Waits until the slot of a piece has room for what goes up.
  Status wait_for_room(std::size_t piece);
  // A tile's parameters, as they are used, to where they go or leave from. From any thread.
  void stage(std::size_t piece, std::int64_t tile);
  Status place(std::size_t piece);
  Slot& slot_of(std::size_t piece) { return slots_[piece % slots_.size()]; }
  bool goes_up() const { return shard_.offload != Offload::kParameters; }

  CudaStream* compute_;
  const OffloadedShard shard_;
  HostUpdate update_;
  const std::vector<Piece> pieces_;
  const ParallelFor parallel_for_;
  CudaOptimizer sums_;
  // Copies, apart from arithmetic and from one another: a GPU has an engine for each way.
  CudaStream down_, up_;
  std::array<Slot, 2> slots_;
};

}  // namespace troupe::train
