#pragma once
// fp32 matrix products by oneDNN, one thread a call.
//
// oneDNN never starts threads of its own: every primitive is made and run under a limit of one
// OpenMP thread. A product is cut into tiles by its shape alone, so its bits depend on the shape
// and the processor's instruction set, not on the number of threads.

#include <cstdint>
#include <memory>

#include "train/cpu/arena.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// The cut of a product into tiles; the last of each dimension may be smaller.
struct GemmTiling {
  std::int64_t rows = 0;     // of C
  std::int64_t columns = 0;  // of C
  std::int64_t depth = 0;    // of the sum: pieces are added in order
};
GemmTiling gemm_tiling(std::int64_t m, std::int64_t n, std::int64_t k);

// Owns the compiled primitives by shape (a bounded number) and a workspace for each slot.
class GemmEngine {
 public:
  explicit GemmEngine(int slots);
  ~GemmEngine();

  // The product, tile by tile on the arena.
  void run(Arena& arena, const Gemm& gemm);
  // The product in this call by the slot's thread: for use inside a tile.
  void run_single(const Gemm& gemm, int slot);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::train
