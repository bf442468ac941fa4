#include "train/cuda/kernels/attention_mask.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace troupe::train::tests {
namespace {

TEST_CASE("a mask leaves a query the keys from its first one on") {
  // Two rows of a batch, two queries each, the mask with a third one.
  const std::vector<std::int32_t> given = {0, 1, 2, 11};
  const std::vector<std::int32_t> first_key = {0, 1, 1, 2, 11, 11};
  const std::int64_t stride = 16, rows = 6;
  std::vector<cuda::Bf16> mask(rows * stride, cuda::Bf16{0x7fc0});
  const cuda::AttentionMask body{given.data(), mask.data(), 2, 3, stride};
  for (std::int64_t i = 0; i < rows * stride / cuda::kMaskPack; ++i) body(i);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t key = 0; key < stride; ++key) {
      const float value = cuda::widen(mask[static_cast<std::size_t>(row * stride + key)]);
      CAPTURE(row);
      CAPTURE(key);
      if (key >= first_key[static_cast<std::size_t>(row)])
        CHECK(value == 0.0f);
      else
        CHECK(value < -9e29f);
    }
  // Its exponential beside any score is nothing, and the difference of two such scores is a number.
  const float low = cuda::widen(cuda::Bf16{cuda::kMaskedBits});
  CHECK(std::exp(low + 1e6f) == 0.0f);
  CHECK(std::isfinite(low * 2.0f));
}

}  // namespace
}  // namespace troupe::train::tests
