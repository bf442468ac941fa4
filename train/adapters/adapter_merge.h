#pragma once
// A low-rank adapter added to the matrix beside which it was trained.

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::train {

struct LowRankUpdate {
  std::int64_t rank = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  double scale = 1.0;
  std::span<const float> a;          // (rank, in)
  std::span<const float> b;          // (out, rank)
  std::span<const float> magnitude;  // (out), or empty: no DoRA
  bool transposed = false;           // the weight is stored [in, out]
};

// W += scale·B·A; with DoRA W = (m / n)·(W + scale·B·A), n the norms of that sum's rows (an output
// each). Products are sums in fp32 over the rank in order, as PEFT's merge_and_unload computes
// them.
void merge_adapter(std::span<float> weight, const LowRankUpdate& update);

// n: the norm of each row of W + scale·B·A, without changing W. What DoRA's magnitudes begin as.
std::vector<float> adapted_row_norms(std::span<const float> weight, const LowRankUpdate& update);

}  // namespace troupe::train
