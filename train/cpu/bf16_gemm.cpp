#include "train/cpu/bf16_gemm.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/cpu/bf16_kernels.h"
#include "train/cpu/isa.h"

namespace troupe::train {
namespace {

// Terms that are summed in registers before they are added to C.
constexpr std::int64_t kDepth = 1024;
// Rows of A that a task packs, at most: with kDepth they take half of a level-2 cache.
constexpr std::int64_t kRows = 128, kRowsMin = 32;
// Of a thread, where there are several.
constexpr std::int64_t kTasksWanted = 4;
// Packed columns of B: some stay in a level-2 cache, all in a level-3 cache.
constexpr std::int64_t kColumnElements = 3 << 19;
// Panels of B that are packed by one task: what lies side by side in memory is read at once.
constexpr std::int64_t kPanelsPerTask = 8;

std::int64_t ceil_to(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
std::int64_t parts_of(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

bf16::Source source_a(const Gemm& g) { return {g.a, g.a_type, g.a_stride, !g.transpose_a}; }
bf16::Source source_b(const Gemm& g) { return {g.b, g.b_type, g.b_stride, g.transpose_b}; }

std::uint16_t* grown(HugeBytes& data, std::int64_t& has, std::int64_t elements) {
  if (has < elements) {
    data.reset();
    has = elements;
    data.reset(allocate_huge(static_cast<std::size_t>(elements) * sizeof(std::uint16_t)));
    TROUPE_CHECK(data, "no memory for {} elements of packed operands", elements);
  }
  return reinterpret_cast<std::uint16_t*>(data.get());
}

}  // namespace

// A product's cut. Bits depend on that of the depth alone, which the shape gives; the others may
// follow the number of threads.
struct Bf16Gemms::Cut {
  Cut(const Gemm& g, int threads)
      : tasks(threads == 1 ? 1 : threads * kTasksWanted),
        depth(ceil_to(parts_of(g.k, parts_of(g.k, kDepth)), 2)),
        rows(std::clamp(ceil_to(parts_of(g.m, tasks), 16), kRowsMin, kRows)),
        columns(std::min(ceil_to(g.n, bf16::kPanelOfB),
                         std::max<std::int64_t>(kColumnElements / depth / bf16::kPanelOfB, 1) *
                             bf16::kPanelOfB)),
        row_blocks(parts_of(g.m, rows)) {}
  std::int64_t tasks;    // wanted
  std::int64_t depth;    // of a pass
  std::int64_t rows;     // of a block of A
  std::int64_t columns;  // packed at once
  std::int64_t row_blocks;
};

bool Bf16Gemms::supported() { return cpu_isa_level() == kCpuAvx512Bf16; }

std::size_t Bf16Gemms::packed_bytes_max(int slots) {
  return static_cast<std::size_t>(kColumnElements + slots * kRows * kDepth) * sizeof(std::uint16_t);
}

std::uint16_t* Bf16Gemms::row_block(int slot, std::int64_t elements) {
  Rows& rows = rows_[static_cast<std::size_t>(slot)];
  return grown(rows.data, rows.elements, elements);
}

void Bf16Gemms::run(Arena& arena, const Gemm& g) {
  const Cut cut(g, arena.threads());
  const bf16::Source a = source_a(g), b = source_b(g);
  for (std::int64_t n0 = 0; n0 < g.n; n0 += cut.columns) {
    const std::int64_t columns = std::min(cut.columns, g.n - n0);
    const std::int64_t panels = parts_of(columns, bf16::kPanelOfB);
    // A product of few rows is shared by its columns, too; each task packs the rows again.
    const std::int64_t groups =
        std::min(panels, parts_of(cut.tasks, std::min(cut.tasks, cut.row_blocks)));
    for (std::int64_t k0 = 0; k0 < g.k; k0 += cut.depth) {
      const std::int64_t depth = std::min(cut.depth, g.k - k0);
      const std::int64_t pairs = bf16::pairs_of(depth);
      const std::int64_t panel_elements = bf16::kPanelOfB * 2 * pairs;
      std::uint16_t* packed_b = grown(columns_, columns_elements_, panels * panel_elements);
      arena.parallel_for(parts_of(panels, kPanelsPerTask), [&](std::int64_t task, int) {
        const std::int64_t at = task * kPanelsPerTask * bf16::kPanelOfB;
        bf16::pack(b, n0 + at, std::min(kPanelsPerTask * bf16::kPanelOfB, columns - at), k0, depth,
                   bf16::kPanelOfB, packed_b + task * kPanelsPerTask * panel_elements);
      });
      arena.parallel_for(cut.row_blocks * groups, [&](std::int64_t task, int slot) {
        const std::int64_t m0 = task % cut.row_blocks * cut.rows;
        const std::int64_t rows = std::min(cut.rows, g.m - m0);
        std::uint16_t* packed_a =
            row_block(slot, bf16::packed_elements(rows, depth, bf16::kPanelOfA));
        bf16::pack(a, m0, rows, k0, depth, bf16::kPanelOfA, packed_a);
        const std::int64_t group = task / cut.row_blocks;
        for (std::int64_t panel = group * panels / groups; panel < (group + 1) * panels / groups;
             ++panel) {
          const std::int64_t column = panel * bf16::kPanelOfB;
          for (std::int64_t row = 0; row < rows; row += bf16::kPanelOfA)
            bf16::multiply_panels(packed_a + row * 2 * pairs, packed_b + panel * panel_elements,
                                  pairs, g.c + (m0 + row) * g.c_stride + n0 + column, g.c_stride,
                                  std::min(bf16::kPanelOfA, rows - row),
                                  std::min(bf16::kPanelOfB, columns - column),
                                  g.accumulate || k0 > 0);
        }
      });
    }
  }
}

}  // namespace troupe::train
