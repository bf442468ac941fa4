#include "train/adapters/pissa.h"

#define EIGEN_NO_DEBUG  // no check of each element that is read: it is a tenth of the code
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "train/adapters/adapter_merge.h"
#include "train/model/initialize.h"

namespace troupe::train {
namespace {

constexpr std::string_view kExact = "pissa";
constexpr std::string_view kRandomised = "pissa_niter_";

using Matrix = Eigen::MatrixXd;

// Eigen cuts products into blocks by the caches that it finds, and so the order of sums.
void fix_block_sizes() {
  static const bool fixed = [] {
    Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 4 << 20);
    return true;
  }();
  static_cast<void>(fixed);
}

struct Decomposition {
  Matrix u;           // (out, rank)
  Eigen::VectorXd s;  // descending
  Matrix v;           // (in, rank)
};

Decomposition decompose(const Matrix& matrix, std::int64_t rank) {
  const Eigen::BDCSVD<Matrix> svd(matrix, Eigen::ComputeThinU | Eigen::ComputeThinV);
  return {svd.matrixU().leftCols(rank), svd.singularValues().head(rank),
          svd.matrixV().leftCols(rank)};
}

Matrix orthonormal(const Matrix& columns) {
  const Eigen::HouseholderQR<Matrix> qr(columns);
  return qr.householderQ() * Matrix::Identity(columns.rows(), columns.cols());
}

// As torch.svd_lowrank(W, rank, iterations), with random vectors that follow from the module's
// name.
Decomposition decompose_randomised(const Matrix& matrix, const PissaMatrix& what,
                                   std::int64_t iterations) {
  if (matrix.rows() < matrix.cols()) {
    Decomposition of_transposed = decompose_randomised(matrix.transpose(), what, iterations);
    std::swap(of_transposed.u, of_transposed.v);
    return of_transposed;
  }
  ParameterInfo random{.name = fmt::format("{}.pissa", what.module),
                       .shape = {what.rank, matrix.cols()},
                       .elements = what.rank * matrix.cols()};
  std::vector<float> normal(static_cast<std::size_t>(random.elements));
  initialize_parameter(random, 1.0, 0, 0, normal);
  const Matrix vectors =
      Eigen::Map<const Eigen::MatrixXf>(normal.data(), matrix.cols(), what.rank).cast<double>();
  Matrix basis = orthonormal(matrix * vectors);
  for (std::int64_t i = 0; i < iterations; ++i) {
    basis = orthonormal(matrix.transpose() * basis);
    basis = orthonormal(matrix * basis);
  }
  Decomposition small = decompose(basis.transpose() * matrix, what.rank);
  small.u = basis * small.u;
  return small;
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
  fix_block_sizes();
  // Columns first: a weight stored [out, in] is the transposed matrix.
  Matrix w = matrix.transposed
                 ? Matrix(Eigen::Map<const Eigen::MatrixXf>(weight.data(), out, in).cast<double>())
                 : Matrix(Eigen::Map<const Eigen::MatrixXf>(weight.data(), in, out)
                              .transpose()
                              .cast<double>());
  const Decomposition parts =
      start.iterations < 0 ? decompose(w, rank) : decompose_randomised(w, matrix, start.iterations);
  PrincipalFactors factors{.a = std::vector<float>(static_cast<std::size_t>(rank * in)),
                           .b = std::vector<float>(static_cast<std::size_t>(out * rank))};
  for (std::int64_t k = 0; k < rank; ++k) {
    Eigen::Index largest = 0;
    parts.v.col(k).cwiseAbs().maxCoeff(&largest);
    const double sign = parts.v(largest, k) < 0 ? -1.0 : 1.0;
    const double root = sign * std::sqrt(parts.s(k) / matrix.scale);
    for (std::int64_t i = 0; i < in; ++i)
      factors.a[static_cast<std::size_t>(k * in + i)] = static_cast<float>(root * parts.v(i, k));
    for (std::int64_t o = 0; o < out; ++o)
      factors.b[static_cast<std::size_t>(o * rank + k)] = static_cast<float>(root * parts.u(o, k));
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
