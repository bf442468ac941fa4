#include "train/adapters/adapter_merge.h"

#include <cmath>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

void check_sizes(std::size_t weight, const LowRankUpdate& u) {
  TROUPE_CHECK(u.rank > 0 && u.in > 0 && u.out > 0, "{} {} {}", u.rank, u.in, u.out);
  TROUPE_CHECK(weight == static_cast<std::size_t>(u.in * u.out), "{} of {}·{}", weight, u.out,
               u.in);
  TROUPE_CHECK(u.a.size() == static_cast<std::size_t>(u.rank * u.in) &&
                   u.b.size() == static_cast<std::size_t>(u.out * u.rank) &&
                   (u.magnitude.empty() || u.magnitude.size() == static_cast<std::size_t>(u.out)),
               "{} {} {}", u.a.size(), u.b.size(), u.magnitude.size());
}

// An output's row of W, wherever it lies.
struct WeightRow {
  std::size_t first = 0;
  std::size_t stride = 1;
};
WeightRow row_of(const LowRankUpdate& u, std::int64_t output) {
  const auto o = static_cast<std::size_t>(output);
  if (u.transposed) return {o, static_cast<std::size_t>(u.out)};
  return {o * static_cast<std::size_t>(u.in), 1};
}

// `sum` becomes the row of W + scale·B·A.
void adapted_row(std::span<const float> weight, const LowRankUpdate& u, std::int64_t output,
                 std::vector<float>& sum) {
  const auto in = static_cast<std::size_t>(u.in), rank = static_cast<std::size_t>(u.rank);
  const auto scale = static_cast<float>(u.scale);
  const float* b = u.b.data() + static_cast<std::size_t>(output) * rank;
  sum.assign(in, 0.0f);
  for (std::size_t k = 0; k < rank; ++k) {
    const float factor = b[k];
    const float* a = u.a.data() + k * in;
    for (std::size_t i = 0; i < in; ++i) sum[i] += factor * a[i];
  }
  const WeightRow row = row_of(u, output);
  for (std::size_t i = 0; i < in; ++i) sum[i] = weight[row.first + i * row.stride] + scale * sum[i];
}

float norm_of(const std::vector<float>& row) {
  double squares = 0;
  for (const float value : row) squares += static_cast<double>(value) * value;
  return static_cast<float>(std::sqrt(squares));
}

}  // namespace

void merge_adapter(std::span<float> weight, const LowRankUpdate& update) {
  check_sizes(weight.size(), update);
  std::vector<float> sum;
  for (std::int64_t output = 0; output < update.out; ++output) {
    adapted_row(weight, update, output, sum);
    if (!update.magnitude.empty()) {
      const float factor = update.magnitude[static_cast<std::size_t>(output)] / norm_of(sum);
      for (float& value : sum) value *= factor;
    }
    const WeightRow row = row_of(update, output);
    for (std::size_t i = 0; i < sum.size(); ++i) weight[row.first + i * row.stride] = sum[i];
  }
}

std::vector<float> adapted_row_norms(std::span<const float> weight, const LowRankUpdate& update) {
  check_sizes(weight.size(), update);
  std::vector<float> norms, sum;
  norms.reserve(static_cast<std::size_t>(update.out));
  for (std::int64_t output = 0; output < update.out; ++output) {
    adapted_row(weight, update, output, sum);
    norms.push_back(norm_of(sum));
  }
  return norms;
}

}  // namespace troupe::train
