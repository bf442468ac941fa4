#include "train/adapters/pissa.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "train/adapters/adapter_merge.h"
#include "train/cpu/singular.h"
#include "train/model/initialize.h"

namespace troupe::train {
namespace {

constexpr std::string_view kExact = "pissa";
constexpr std::string_view kRandomised = "pissa_niter_";

// As torch.svd_lowrank(W, rank, iterations), with random vectors that follow from the module's
// name.
SingularParts decompose_randomised(const MatrixView& view, const PissaMatrix& matrix,
                                   std::int64_t iterations) {
  const std::int64_t shorter = std::min(matrix.in, matrix.out);
  const ParameterInfo random{.name = fmt::format("{}.pissa", matrix.module),
                             .shape = {matrix.rank, shorter},
                             .elements = matrix.rank * shorter};
  std::vector<float> normal(static_cast<std::size_t>(random.elements));
  initialize_parameter(random, 1.0, 0, 0, normal);
  return low_rank_singular_parts(view, matrix.rank, iterations, normal);
}

}  // namespace

std::optional<PissaStart> PissaStart::of(const json::Value& init_lora_weights) {
  if (!init_lora_weights.is_string()) return {};
  const std::string_view text = init_lora_weights.get_string();
  if (text == kExact) return PissaStart{};
  if (!text.starts_with(kRandomised)) return {};
  PissaStart start;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + kRandomised.size(), end, start.iterations);
  if (read.ec != std::errc() || read.ptr != end || start.iterations < 0 ||
      start.iterations > kPowerIterationsMax)
    return {};
  return start;
}

json::Value PissaStart::init_lora_weights() const {
  return iterations < 0 ? json::Value(kExact)
                        : json::Value(fmt::format("{}{}", kRandomised, iterations));
}

Status check_pissa_rank(const PissaMatrix& matrix) {
  const std::int64_t most = std::min(matrix.in, matrix.out);
  if (matrix.rank <= most) return {};
  return error(Code::kInvalidArgument,
               "rank {} is above {}, the most that a PiSSA decomposition of {} ({} to {} "
               "features) has: lower lora_rank, or name other modules in lora_target",
               matrix.rank, most, matrix.module, matrix.in, matrix.out);
}

Result<PrincipalFactors> principal_factors(std::span<const float> weight, const PissaMatrix& matrix,
                                           PissaStart start) {
  const std::int64_t in = matrix.in, out = matrix.out, rank = matrix.rank;
  TROUPE_RETURN_IF_ERROR(check_pissa_rank(matrix));
  if (!std::ranges::all_of(weight, [](float value) { return std::isfinite(value); }))
    return error(Code::kDataLoss,
                 "{} has values that are not finite: there is no PiSSA decomposition of it",
                 matrix.module);
  // A weight stored [out, in] lies row by row, a transposed one column by column.
  const MatrixView view{
      .values = weight, .rows = out, .columns = in, .by_columns = matrix.transposed};
  const SingularParts parts = start.iterations < 0
                                  ? singular_parts(view, rank)
                                  : decompose_randomised(view, matrix, start.iterations);
  PrincipalFactors factors{.a = std::vector<float>(static_cast<std::size_t>(rank * in)),
                           .b = std::vector<float>(static_cast<std::size_t>(out * rank))};
  for (std::int64_t k = 0; k < rank; ++k) {
    const double root = std::sqrt(parts.values[static_cast<std::size_t>(k)] / matrix.scale);
    for (std::int64_t i = 0; i < in; ++i) {
      const auto at = static_cast<std::size_t>(k * in + i);
      factors.a[at] = static_cast<float>(root * parts.right[at]);
    }
    for (std::int64_t o = 0; o < out; ++o)
      factors.b[static_cast<std::size_t>(o * rank + k)] =
          static_cast<float>(root * parts.left[static_cast<std::size_t>(k * out + o)]);
  }
  return factors;
}

void subtract_factors(std::span<float> weight, const PissaMatrix& matrix,
                      const PrincipalFactors& factors) {
  merge_adapter(weight, {.rank = matrix.rank,
                         .in = matrix.in,
                         .out = matrix.out,
                         .scale = -matrix.scale,
                         .a = factors.a,
                         .b = factors.b,
                         .magnitude = {},
                         .transposed = matrix.transposed});
}

}  // namespace troupe::train
