#pragma once
// Samples put together into bins by first fit, in the order of an epoch: Axolotl's multipack.

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::train {

struct SamplePacking {
  std::int64_t capacity = 0;    // tokens of a bin
  std::int64_t batch_bins = 1;  // bins of a micro-batch
  std::int64_t group_size = 100'000;
  std::int64_t bin_size = 200;  // samples of a bin at most
  bool sequentially = false;    // next fit: a bin that a sample does not fit into is closed
};

// Micro-batches: the samples of `order` in bins, in the order in which bins were opened. Every
// sample goes into the first bin of its group that has room. Samples above the capacity have a bin
// of their own; the last micro-batch is left out where it is not full.
//
// `lengths`: of each sample, in tokens.
std::vector<std::vector<std::uint32_t>> pack_samples(std::span<const std::uint32_t> order,
                                                     std::span<const std::int32_t> lengths,
                                                     const SamplePacking& packing);

}  // namespace troupe::train
