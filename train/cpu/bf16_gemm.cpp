#include "train/cpu/bf16_gemm.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/cpu/bf16_kernels.h"
#include "train/cpu/division.h"
#include "train/cpu/isa.h"

namespace troupe::train {
namespace {

// Terms that are summed in registers before they are added to C.
constexpr std::int64_t kDepth = 1024;
// Rows of A that a task works on, and their elements: an eighth of a level-2 cache, where the next
// task's rows arrive at the same time.
constexpr std::int64_t kRowsMin = 32, kRowsMax = 128;
constexpr std::int64_t kRowElements = 64 * kDepth;
// Of a thread, where there are several.
constexpr std::int64_t kTasksWanted = 4;
// Packed columns of B: some stay in a level-2 cache, all in a level-3 cache.
constexpr std::int64_t kColumnElements = 3 << 19;
// Panels of B that are packed by one task: what lies side by side in memory is read at once.
constexpr std::int64_t kPanelsPerTask = 8;

// A product as it is worked on: A's rows are read where they lie if they can be, B's columns are
// packed.
struct Roles {
  bf16::Source a, b;
  std::int64_t m, n;
  bool transposed;  // C is computed transposed: the product's own A and B are exchanged
};

// A matrix of many rows that can be read where they lie (the classifier's) is not packed again for
// every few tokens: it is A.
constexpr std::int64_t kTimesAsManyRows = 4;

Roles roles_of(const Gemm& g) {
  const bf16::Source a{g.a, g.a_type, g.a_stride, !g.transpose_a};
  const bf16::Source b{g.b, g.b_type, g.b_stride, g.transpose_b};
  const bool in_place = b.deep && b.type == DType::kBF16 && g.k % 2 == 0;
  if (in_place && g.n >= kTimesAsManyRows * g.m) return {b, a, g.n, g.m, true};
  return {a, b, g.m, g.n, false};
}

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
  Cut(std::int64_t m, std::int64_t n, std::int64_t k, int threads)
      : tasks(threads == 1 ? 1 : threads * kTasksWanted),
        depth(ceil_to(ceil_div(k, ceil_div(k, kDepth)), 2)),
        rows(std::clamp(ceil_to(ceil_div(m, tasks), 16), kRowsMin,
                        std::min(kRowsMax, kRowElements / depth / 16 * 16))),
        columns(std::min(ceil_to(n, bf16::kPanelOfB),
                         std::max<std::int64_t>(kColumnElements / depth / bf16::kPanelOfB, 1) *
                             bf16::kPanelOfB)),
        row_blocks(ceil_div(m, rows)) {}
  std::int64_t tasks;    // wanted
  std::int64_t depth;    // of a pass
  std::int64_t rows;     // of a block of A
  std::int64_t columns;  // packed at once
  std::int64_t row_blocks;
};

bool Bf16Gemms::supported() { return cpu_isa_level() == kCpuAvx512Bf16; }

std::size_t Bf16Gemms::packed_bytes_max(int slots) {
  return static_cast<std::size_t>(kColumnElements + slots * kRowElements) * sizeof(std::uint16_t);
}

std::uint16_t* Bf16Gemms::row_block(int slot, std::int64_t elements) {
  Rows& rows = rows_[static_cast<std::size_t>(slot)];
  return grown(rows.data, rows.elements, elements);
}

void Bf16Gemms::run(Arena& arena, const Gemm& g) {
  const Roles of = roles_of(g);
  const Cut cut(of.m, of.n, g.k, arena.threads());
  auto* const c = static_cast<float*>(g.c.data);
  for (std::int64_t n0 = 0; n0 < of.n; n0 += cut.columns) {
    const std::int64_t columns = std::min(cut.columns, of.n - n0);
    const std::int64_t panels = ceil_div(columns, bf16::kPanelOfB);
    // A product of few rows is shared by its columns, too; each task packs the rows again.
    const std::int64_t groups =
        std::min(panels, ceil_div(cut.tasks, std::min(cut.tasks, cut.row_blocks)));
    for (std::int64_t k0 = 0; k0 < g.k; k0 += cut.depth) {
      const std::int64_t depth = std::min(cut.depth, g.k - k0);
      const std::int64_t pairs = bf16::pairs_of(depth);
      const std::int64_t panel_elements = bf16::kPanelOfB * 2 * pairs;
      std::uint16_t* packed_b = grown(columns_, columns_elements_, panels * panel_elements);
      arena.parallel_for(ceil_div(panels, kPanelsPerTask), [&](std::int64_t task, int) {
        const std::int64_t at = task * kPanelsPerTask * bf16::kPanelOfB;
        bf16::pack_columns(of.b, n0 + at, std::min(kPanelsPerTask * bf16::kPanelOfB, columns - at),
                           k0, depth, packed_b + task * kPanelsPerTask * panel_elements);
      });
      arena.parallel_for(cut.row_blocks * groups, [&](std::int64_t task, int slot) {
        const std::int64_t block = task % cut.row_blocks, m0 = block * cut.rows;
        const std::int64_t rows = std::min(cut.rows, of.m - m0);
        const bf16::Rows a =
            bf16::rows_of(of.a, m0, rows, k0, depth,
                          row_block(slot, bf16::packed_elements(rows, depth, bf16::kPanelOfA)));
        const std::int64_t group = task / cut.row_blocks;
        const std::int64_t follow = std::min(cut.rows, of.m - m0 - rows);
        LinesAhead ahead;
        if (follow > 0) ahead = bf16::lines_of(of.a, m0 + rows, follow, k0, depth);
        const std::int64_t fetches = ceil_div(rows, bf16::kPanelOfA) * ceil_div(panels, groups) *
                                     ceil_div(pairs, bf16::kPairsPerFetch);
        const std::int64_t lines = ceil_div(ahead.lines(), fetches);
        for (std::int64_t panel = group * panels / groups; panel < (group + 1) * panels / groups;
             ++panel) {
          const std::int64_t column = panel * bf16::kPanelOfB;
          for (std::int64_t row = 0; row < rows; row += bf16::kPanelOfA) {
            const std::int64_t at_row = m0 + row, at_column = n0 + column;
            bf16::multiply(a.from(row, pairs), packed_b + panel * panel_elements, pairs,
                           {.c = c + (of.transposed ? at_column * g.c_stride + at_row
                                                    : at_row * g.c_stride + at_column),
                            .stride = g.c_stride,
                            .rows = std::min(bf16::kPanelOfA, rows - row),
                            .columns = std::min(bf16::kPanelOfB, columns - column),
                            .accumulate = g.accumulate || k0 > 0,
                            .transposed = of.transposed},
                           ahead, lines);
          }
        }
      });
    }
  }
}

}  // namespace troupe::train
