#pragma once
// AdamW and gradient norms over flat ranges of a device's memory.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "train/cuda/device/host_transfer.h"
#include "train/cuda/device/stream.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/update_range.h"

namespace troupe::train {

// Enqueues on one stream. One thread at a time. The same arithmetic as train/optimizer, element by
// element.
class CudaOptimizer {
 public:
  // Memory of the device that it uses between calls: for sums of at most `tiles_max` tiles.
  static std::int64_t scratch_bytes(std::int64_t tiles_max);
  // `stream` must outlive the object. `scratch`: scratch_bytes(tiles_max), aligned to 256 bytes,
  // for it alone.
  static Result<CudaOptimizer> create(CudaStream& stream, std::span<std::byte> scratch);

  // sums[i] = Σ x² of the i-th tile of `tile_elements` elements of x (the last may be shorter),
  // downloaded: what combine_tile_sums() takes.
  Result<std::vector<double>> tile_sums(const float* x, std::int64_t count,
                                        std::int64_t tile_elements);
  // The same of the gradients of all ranges, whole tiles each, one range after another: enqueued
  // together, downloaded once.
  Result<std::vector<double>> tile_sums(const float* gradients, std::span<const UpdateRange> ranges,
                                        std::int64_t tile_elements);
  // Updates the flat positions [begin, begin + count), of `groups`; see
  // adamw_update(). The state is fp32 (float) or bf16 (std::uint16_t, rounded as the step says).
  Status update(const AdamWStep& step, const ParameterGroups& groups, std::int64_t begin,
                float* parameters, const float* gradients, float* first_moments,
                float* second_moments, std::int64_t count);
  Status update(const AdamWStep& step, const ParameterGroups& groups, std::int64_t begin,
                std::uint16_t* parameters, const float* gradients, std::uint16_t* first_moments,
                std::uint16_t* second_moments, std::int64_t count);

 private:
  CudaOptimizer(CudaStream& stream, HostTransfer transfer, std::span<std::byte> scratch)
      : stream_(&stream), transfer_(std::move(transfer)), scratch_(scratch) {}
  double* sums() const;
  // Sums of the tiles first_tile … of what download_sums() gives.
  Status enqueue_sums(const float* x, std::int64_t count, std::int64_t tile_elements,
                      std::int64_t first_tile);
  Result<std::vector<double>> download_sums(std::int64_t tiles);
  Status update_as(std::int32_t type, const AdamWStep& step, const ParameterGroups& groups,
                   std::int64_t begin, void* parameters, const float* gradients,
                   void* first_moments, void* second_moments, std::int64_t count);

  CudaStream* stream_;
  HostTransfer transfer_;
  std::span<std::byte> scratch_;
};

}  // namespace troupe::train
