#include "train/cpu/gemm.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/cpu/division.h"
#include "train/cpu/packed_product.h"

namespace troupe::train {
namespace {

// Tiles of an operand that are converted before they are multiplied: two tiles of A of full depth
// for each thread and one of B, so that every thread finds work and what was converted is still in
// a cache.
constexpr std::int64_t kStagedElementsOfA = 2 * 256 * 2080;  // a thread
constexpr std::int64_t kStagedElementsOfB = 768 * 2080;
// Below so many rows (decoded tokens) packing B would take longer than the product.
constexpr std::int64_t kPackedRowsMin = 16;
// Several tiles for each thread even out their ends; with less rows a tile copies too much of B.
constexpr std::int64_t kTilesPerThread = 4, kTileRowsMin = 64;

// The part of an fp32 product that computes rows [m0, m0 + m) and columns [n0, n0 + n) from the
// terms [k0, k0 + k).
Gemm part_of(const Gemm& g, std::int64_t m0, std::int64_t m, std::int64_t n0, std::int64_t n,
             std::int64_t k0, std::int64_t k) {
  Gemm part = g;
  part.m = m, part.n = n, part.k = k;
  part.a = static_cast<const float*>(g.a) +
           (g.transpose_a ? k0 * g.a_stride + m0 : m0 * g.a_stride + k0);
  part.b = static_cast<const float*>(g.b) +
           (g.transpose_b ? n0 * g.b_stride + k0 : k0 * g.b_stride + n0);
  part.c += m0 * g.c_stride + n0;
  part.accumulate = g.accumulate || k0 > 0;
  return part;
}

// Rows that a task dequantises: a few microseconds' work.
constexpr std::int64_t kDequantizedTask = 1 << 14;

void check_gemm(const Gemm& g) {
  TROUPE_CHECK(g.m > 0 && g.n > 0 && g.k > 0, "gemm of m={} n={} k={}", g.m, g.n, g.k);
  const auto fits = [&](DType type) {
    return type == DType::kF32 || (type == DType::kBF16 && g.arithmetic != Arithmetic::kFp32);
  };
  TROUPE_CHECK(fits(g.a_type) && fits(g.b_type), "operands of types {} and {}",
               dtype_name(g.a_type), dtype_name(g.b_type));
  TROUPE_CHECK(g.c.type == DType::kF32, "a product of type {}", dtype_name(g.c.type));
  TROUPE_CHECK(g.epilogue == Epilogue::kNone, "a product that goes on with what fuses() refuses");
}

}  // namespace

// Large tiles amortise oneDNN's packing of both operands (below 128 × 256 it costs 10 % and more);
// small products are cut once or twice so that a few threads find work.
GemmTiling gemm_tiling(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kRows = 256, kColumns = 768, kDepth = 2048;
  constexpr std::int64_t kTilesWanted = 8, kTileEdgeMin = 64;
  constexpr std::int64_t kFlopsWorthSplitting = 1 << 22;
  GemmTiling tiling{std::min(m, kRows), std::min(n, kColumns), std::min(k, kDepth)};
  while (ceil_div(m, tiling.rows) * ceil_div(n, tiling.columns) < kTilesWanted &&
         2 * tiling.rows * tiling.columns * k > kFlopsWorthSplitting) {
    std::int64_t& edge = tiling.rows >= tiling.columns ? tiling.rows : tiling.columns;
    if (edge <= kTileEdgeMin) break;
    edge = ceil_to(ceil_div(edge, 2), 16);
  }
  return tiling;
}

GemmEngine::GemmEngine(int slots, const CpuOptions& options)
    : compiled_(slots),
      packed_(slots),
      staged_type_(options.native_bf16 && cpu_multiplies_bf16() ? DType::kBF16 : DType::kF32) {
  if (native_bf16() && Bf16Gemms::supported()) bf16_.emplace(slots);
}

std::size_t GemmEngine::staging_bytes_max(int slots, bool native_bf16) {
  if (native_bf16 && Bf16Gemms::supported()) return Bf16Gemms::packed_bytes_max(slots);
  return static_cast<std::size_t>(kStagedElementsOfA * slots + kStagedElementsOfB) *
         dtype_size(native_bf16 ? DType::kBF16 : DType::kF32);
}

void GemmEngine::run(Arena& arena, const Gemm& g) {
  if (g.b_quantized) return run_quantized(arena, g);
  check_gemm(g);
  const GemmTiling tiling = gemm_tiling(g.m, g.n, g.k);
  switch (g.arithmetic) {
    case Arithmetic::kFp32:
      if (g.m < kPackedRowsMin || !kernels::has_packed_products())
        return run_compiled(arena, g, tiling);
      return run_fp32(arena, g);
    case Arithmetic::kBf16:
      if (bf16_ && g.m >= kPackedRowsMin) return bf16_->run(arena, g);
      return run_staged(arena, g, tiling, staged_type_);
    case Arithmetic::kFp16:
      return run_staged(arena, g, tiling, DType::kF32);
  }
}

// How many rows are there at once depends on the shape alone, and so do the sums.
void GemmEngine::run_quantized(Arena& arena, const Gemm& g) {
  // B's rows in memory are columns of C, or terms of the sums.
  const std::int64_t rows = g.transpose_b ? g.n : g.k, width = g.transpose_b ? g.k : g.n;
  TROUPE_CHECK(g.b_quantized.rows == rows && g.b_quantized.width == width,
               "a matrix of {} × {} in the place of {} × {}", g.b_quantized.rows,
               g.b_quantized.width, rows, width);
  const bool bf16 = g.arithmetic == Arithmetic::kBf16;
  const auto size = static_cast<std::int64_t>(bf16 ? sizeof(std::uint16_t) : sizeof(float));
  // An even number, so that bytes of two codes are not cut.
  const std::int64_t at_once =
      std::min(rows, std::max<std::int64_t>(kDequantizedBytes / size / width / 64 * 64, 64));
  const std::int64_t bytes = std::max(at_once * width * size, kDequantizedBytes);
  if (dequantized_bytes_ < bytes) {
    dequantized_.reset(allocate_huge(static_cast<std::size_t>(bytes)));
    dequantized_bytes_ = bytes;
    TROUPE_CHECK(dequantized_, "no memory for {} bytes of a quantised matrix", bytes);
  }
  for (std::int64_t row = 0; row < rows; row += at_once) {
    const std::int64_t count = std::min(at_once, rows - row), elements = count * width;
    arena.parallel_for(ceil_div(elements, kDequantizedTask), [&](std::int64_t task, int) {
      const std::int64_t first = task * kDequantizedTask;
      const auto part = static_cast<std::size_t>(std::min(kDequantizedTask, elements - first));
      const auto read = [&]<typename T>(T* to) {
        dequantize(g.b_quantized, row * width + first, std::span(to + first, part));
      };
      if (bf16)
        read(reinterpret_cast<std::uint16_t*>(dequantized_.get()));
      else
        read(reinterpret_cast<float*>(dequantized_.get()));
    });
    Gemm part = g;
    part.b_quantized = {};
    part.b = dequantized_.get();
    part.b_type = bf16 ? DType::kBF16 : DType::kF32;
    part.b_stride = width;
    if (g.transpose_b) {
      part.n = count;
      part.c += row;
    } else {
      part.k = count;
      const std::int64_t begin = g.transpose_a ? row * g.a_stride : row;
      part.a = (ConstElements(g.a, g.a_type) + begin).data;
      part.accumulate = g.accumulate || row > 0;
    }
    run(arena, part);
  }
}

// Whole columns of parts that are copied once, and as many cuts of the rows as threads want. One
// thread wants no cuts: a call that sees all parts fetches the next one in time.
void GemmEngine::run_fp32(Arena& arena, const Gemm& g) {
  if (arena.threads() == 1)
    return kernels::multiply_packed(g, packed_.floats(0, kernels::packed_scratch_floats()));
  const std::int64_t columns = std::min(g.n, kernels::packed_columns(g.k));
  const std::int64_t tile_columns = ceil_div(g.n, columns);
  const std::int64_t wanted = kTilesPerThread * arena.threads();
  const std::int64_t rows = std::min(
      g.m, std::max(kTileRowsMin, ceil_div(g.m, ceil_div(wanted, tile_columns)) / 32 * 32));
  const std::int64_t tile_rows = ceil_div(g.m, rows);
  arena.parallel_for(tile_rows * tile_columns, [&](std::int64_t tile, int slot) {
    const std::int64_t m0 = tile % tile_rows * rows, n0 = tile / tile_rows * columns;
    kernels::multiply_packed(
        part_of(g, m0, std::min(rows, g.m - m0), n0, std::min(columns, g.n - n0), 0, g.k),
        packed_.floats(slot, kernels::packed_scratch_floats()));
  });
}

void GemmEngine::run_compiled(Arena& arena, const Gemm& g, const GemmTiling& tiling) {
  const std::int64_t tile_rows = ceil_div(g.m, tiling.rows);
  arena.parallel_for(tile_rows * ceil_div(g.n, tiling.columns), [&](std::int64_t tile, int slot) {
    const std::int64_t m0 = tile % tile_rows * tiling.rows;
    const std::int64_t n0 = tile / tile_rows * tiling.columns;
    const std::int64_t m = std::min(tiling.rows, g.m - m0);
    const std::int64_t n = std::min(tiling.columns, g.n - n0);
    for (std::int64_t k0 = 0; k0 < g.k; k0 += tiling.depth)
      compiled_.run(part_of(g, m0, m, n0, n, k0, std::min(tiling.depth, g.k - k0)), slot);
  });
}

// Depth outermost, so that a panel of A and one of B suffice: a tile still adds its pieces in
// order. A is converted again for each panel of B, unless it fits as a whole.
void GemmEngine::run_staged(Arena& arena, const Gemm& g, const GemmTiling& tiling, DType staged) {
  staged_a_.begin({g.a, g.a_type, g.a_stride, !g.transpose_a, g.m, g.k, tiling.rows, tiling.depth},
                  staged, g.arithmetic, kStagedElementsOfA * arena.threads());
  staged_b_.begin(
      {g.b, g.b_type, g.b_stride, g.transpose_b, g.n, g.k, tiling.columns, tiling.depth}, staged,
      g.arithmetic, kStagedElementsOfB);
  const std::int64_t blocks_a = ceil_div(g.m, tiling.rows);
  const std::int64_t blocks_b = ceil_div(g.n, tiling.columns);
  const std::int64_t panel_a = staged_a_.blocks_per_panel();
  const std::int64_t panel_b = staged_b_.blocks_per_panel();
  for (std::int64_t k0 = 0; k0 < g.k; k0 += tiling.depth) {
    const std::int64_t depth = std::min(tiling.depth, g.k - k0);
    for (std::int64_t b0 = 0; b0 < blocks_b; b0 += panel_b) {
      staged_b_.stage(arena, b0, k0, depth);
      for (std::int64_t a0 = 0; a0 < blocks_a; a0 += panel_a) {
        if (b0 == 0 || panel_a < blocks_a) staged_a_.stage(arena, a0, k0, depth);
        const std::int64_t rows = std::min(panel_a, blocks_a - a0);
        const std::int64_t columns = std::min(panel_b, blocks_b - b0);
        arena.parallel_for(rows * columns, [&](std::int64_t tile, int slot) {
          const std::int64_t a = a0 + tile % rows, b = b0 + tile / rows;
          const OperandPart part_a = staged_a_.part(a), part_b = staged_b_.part(b);
          compiled_.run({.m = std::min(tiling.rows, g.m - a * tiling.rows),
                         .n = std::min(tiling.columns, g.n - b * tiling.columns),
                         .k = depth,
                         .a = part_a.data,
                         .a_type = part_a.type,
                         .a_stride = part_a.stride,
                         .transpose_a = g.transpose_a,
                         .b = part_b.data,
                         .b_type = part_b.type,
                         .b_stride = part_b.stride,
                         .transpose_b = g.transpose_b,
                         .c = g.c + a * tiling.rows * g.c_stride + b * tiling.columns,
                         .c_stride = g.c_stride,
                         .accumulate = g.accumulate || k0 > 0,
                         .arithmetic = g.arithmetic},
                        slot);
        });
      }
    }
  }
}

}  // namespace troupe::train
