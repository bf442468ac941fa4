#pragma once
// PiSSA (Meng et al., 2024): an adapter that begins as the principal part of a matrix, whose base
// is what that leaves.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

inline constexpr std::int64_t kPowerIterationsMax = 1000;

// By which decomposition.
struct PissaStart {
  // −1: the exact one; else a randomised one with so many power iterations (Halko et al., 2011).
  std::int64_t iterations = -1;

  // PEFT's init_lora_weights: "pissa", "pissa_niter_16"; nothing for any other value, or for more
  // iterations than kPowerIterationsMax.
  static std::optional<PissaStart> of(const json::Value& init_lora_weights);
  json::Value init_lora_weights() const;
  friend bool operator==(const PissaStart&, const PissaStart&) = default;
};

struct PissaMatrix {
  std::string_view module;  // numbers the random vectors, and stands in errors
  std::int64_t rank = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  double scale = 1.0;
  bool transposed = false;  // the weight is stored [in, out]
};

struct PrincipalFactors {
  std::vector<float> a;  // (rank, in)
  std::vector<float> b;  // (out, rank)
};

// kInvalidArgument for a rank above that of a matrix of this shape.
Status check_pissa_rank(const PissaMatrix& matrix);

// Of W ≈ U·S·Vᵀ the largest parts: A = √(S/scale)·Vᵀ, B = U·√(S/scale). The same bits on every
// machine: one thread, block sizes that do not depend on the processor's caches, of each row of A
// the largest element positive. Fails as check_pissa_rank(), and for values that are not finite
// (kDataLoss).
Result<PrincipalFactors> principal_factors(std::span<const float> weight, const PissaMatrix& matrix,
                                           PissaStart start);

// W −= scale·B·A.
void subtract_factors(std::span<float> weight, const PissaMatrix& matrix,
                      const PrincipalFactors& factors);

}  // namespace troupe::train
