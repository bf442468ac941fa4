#include "train/cpu/scratch_sizes.h"

#include <limits>

#include "train/cpu/attention_block.h"
#include "train/cpu/gemm.h"
#include "train/cpu/packed_product.h"

namespace troupe::train {

CpuScratchSizes cpu_scratch_sizes() {
  constexpr std::int64_t kLarge = std::int64_t{1} << 16;
  const GemmTiling tile = gemm_tiling(kLarge, kLarge, kLarge);
  return {.query_rows = kernels::kQueryBlock,
          .key_group = AttentionBlock::kGroup,
          .packed_floats = static_cast<std::int64_t>(kernels::packed_scratch_floats()),
          .tile_rows = tile.rows,
          .tile_columns = tile.columns,
          .tile_depth = tile.depth};
}

}  // namespace troupe::train
