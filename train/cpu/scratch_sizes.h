#pragma once
// What products and attention on CPUs hold while they work, for who plans a run's memory: the sizes
// that the code of train/cpu works with, none of them a promise.

#include <cstdint>

namespace troupe::train {

struct CpuScratchSizes {
  std::int64_t query_rows = 0;     // of queries that attention works on at once
  std::int64_t key_group = 0;      // keys are counted in as many
  std::int64_t packed_floats = 0;  // copied of an fp32 product's operands
  // A tile of a bf16 product at most: both operands are copied.
  std::int64_t tile_rows = 0, tile_columns = 0, tile_depth = 0;
};
CpuScratchSizes cpu_scratch_sizes();

}  // namespace troupe::train
