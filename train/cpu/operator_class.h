#pragma once
// The operators on CPUs as a class: private to train/cpu. An operator is defined where its loops
// are, or, if these are declared in kernels.h, in cpu_operators.cpp.

#include <algorithm>
#include <cstdint>

#include "train/cpu/arena.h"
#include "train/cpu/cpu_options.h"
#include "train/cpu/division.h"
#include "train/cpu/gemm.h"
#include "train/cpu/strip_sums.h"
#include "train/cpu/workspace.h"
#include "train/tensor/operators.h"

namespace troupe::train {

class CpuOperators final : public Operators {
 public:
  CpuOperators(Arena& arena, const CpuOptions& options)
      : arena_(arena), gemms_(arena.threads(), options), workspaces_(arena.threads()) {}

  bool fast_bf16() const override { return gemms_.native_bf16(); }
  bool stores_bf16() const override { return false; }

#define TROUPE_OPERATOR(name, ...) void name(TROUPE_PARAMETERS(__VA_ARGS__)) override;
#include "train/tensor/operators.def"

 private:
  // Tiles of element-wise work: large enough to hide the cost of handing one out.
  static constexpr std::int64_t kElementsPerTile = 1 << 15;

  // fn(begin, count) over ranges of about `per_tile` units.
  template <typename F>
  void for_ranges(std::int64_t count, std::int64_t per_tile, F&& fn) {
    arena_.parallel_for(ceil_div(count, per_tile), [&](std::int64_t tile, int) {
      fn(tile * per_tile, std::min(per_tile, count - tile * per_tile));
    });
  }
  template <typename F>
  void for_elements(std::int64_t count, F&& fn) {
    for_ranges(count, kElementsPerTile, fn);
  }
  template <typename F>
  void for_rows(std::int64_t rows, std::int64_t width, F&& fn) {
    for_ranges(rows, std::max<std::int64_t>(1, kElementsPerTile / width), fn);
  }
  template <typename F>
  void for_columns(std::int64_t width, F&& fn) {
    for_ranges(width, kernels::kColumnStrip, fn);
  }

  Arena& arena_;
  GemmEngine gemms_;
  SlotWorkspaces workspaces_;
};

}  // namespace troupe::train
