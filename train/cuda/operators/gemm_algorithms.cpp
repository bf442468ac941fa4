#include "train/cuda/operators/gemm_algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <tuple>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// The fields of a key, in the order in which they are compared and written.
using Fields = std::array<std::int64_t, 14>;

Fields fields_of(const TroupeCudaGemm& g) {
  return {g.m,
          g.n,
          g.k,
          g.a_stride,
          g.b_stride,
          g.c_stride,
          g.a_type,
          g.b_type,
          g.c_type,
          g.transpose_a,
          g.transpose_b,
          g.accumulate * 4 + g.arithmetic,
          g.alignment_bytes,
          g.epilogue};
}

TroupeCudaGemm gemm_of(const Fields& f) {
  const auto small = [&](std::size_t i) { return static_cast<std::int32_t>(f[i]); };
  return {.m = f[0],
          .n = f[1],
          .k = f[2],
          .a_stride = f[3],
          .b_stride = f[4],
          .c_stride = f[5],
          .a_type = small(6),
          .b_type = small(7),
          .c_type = small(8),
          .transpose_a = small(9),
          .transpose_b = small(10),
          .accumulate = small(11) / 4,
          .arithmetic = small(11) % 4,
          .alignment_bytes = small(12),
          .epilogue = small(13)};
}

std::string_view type_name(int type) {
  switch (type) {
    case TROUPE_CUDA_BF16:
      return "bf16";
    case TROUPE_CUDA_E4M3:
      return "e4m3";
    case TROUPE_CUDA_E5M2:
      return "e5m2";
    default:
      return "f32";
  }
}

std::string_view arithmetic_name(int arithmetic) {
  switch (arithmetic) {
    case TROUPE_CUDA_COMPUTE_BF16:
      return "bf16";
    case TROUPE_CUDA_COMPUTE_TF32:
      return "tf32";
    case TROUPE_CUDA_COMPUTE_FP8:
      return "fp8";
    default:
      return "fp32";
  }
}

std::string_view epilogue_name(int epilogue) {
  switch (epilogue) {
    case TROUPE_CUDA_EPILOGUE_BIAS:
      return " +bias";
    case TROUPE_CUDA_EPILOGUE_BIAS_GELU:
      return " +bias, gelu";
    case TROUPE_CUDA_EPILOGUE_GELU_GRADIENT:
      return " gelu's gradient";
    default:
      return "";
  }
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

template <typename T>
bool parse_number(std::string_view text, int base, T& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

bool same(const TroupeCudaAlgorithm& a, const TroupeCudaAlgorithm& b) {
  return std::equal(std::begin(a.opaque), std::end(a.opaque), std::begin(b.opaque)) &&
         a.workspace_bytes == b.workspace_bytes;
}

}  // namespace

std::string describe_gemm(const TroupeCudaGemm& g) {
  return fmt::format("{} m={} n={} k={} a{}={}/{} b{}={}/{} c{}={}/{} align={}{}",
                     arithmetic_name(g.arithmetic), g.m, g.n, g.k, g.transpose_a ? "T" : "",
                     type_name(g.a_type), g.a_stride, g.transpose_b ? "T" : "", type_name(g.b_type),
                     g.b_stride, g.accumulate ? "+" : "", type_name(g.c_type), g.c_stride,
                     g.alignment_bytes, epilogue_name(g.epilogue));
}

bool GemmAlgorithms::Less::operator()(const TroupeCudaGemm& a, const TroupeCudaGemm& b) const {
  return fields_of(a) < fields_of(b);
}

GemmAlgorithms::GemmAlgorithms(std::shared_ptr<CudaDevice> device, std::int64_t workspace_bytes)
    : device_(std::move(device)), workspace_bytes_(workspace_bytes) {}

Result<std::vector<TroupeCudaAlgorithm>> GemmAlgorithms::candidates(const TroupeCudaGemm& gemm,
                                                                    int count_max) const {
  std::vector<TroupeCudaAlgorithm> algorithms(static_cast<std::size_t>(count_max));
  std::int32_t count = 0;
  TROUPE_RETURN_IF_ERROR(device_->status(
      device_->table().gemm_algorithms(device_->context(), &gemm, workspace_bytes_, count_max,
                                       algorithms.data(), &count),
      fmt::format("asking for algorithms for the product {}", describe_gemm(gemm))));
  TROUPE_CHECK(count >= 0 && count <= count_max, "{}", count);
  algorithms.resize(static_cast<std::size_t>(count));
  // The library was told, and its estimate is what the workspace was made by.
  std::erase_if(algorithms, [this](const TroupeCudaAlgorithm& algorithm) {
    return algorithm.workspace_bytes > workspace_bytes_;
  });
  if (algorithms.empty())
    return error(Code::kUnsupported,
                 "{}: the library has no algorithm for the product {} with {} of workspace",
                 device_->name(), describe_gemm(gemm), memory_size_text(workspace_bytes_));
  return algorithms;
}

Result<TroupeCudaAlgorithm> GemmAlgorithms::choose(const TroupeCudaGemm& gemm) {
  const auto found = chosen_.find(gemm);
  if (found != chosen_.end()) return found->second;
  const TroupeCudaAlgorithm first = TROUPE_TRY(candidates(gemm, 1)).front();
  chosen_.emplace(gemm, first);
  return first;
}

Result<std::optional<TroupeCudaAlgorithm>> GemmAlgorithms::choose_if_any(
    const TroupeCudaGemm& gemm) {
  if (!without_.empty() && without_.contains(gemm)) return std::optional<TroupeCudaAlgorithm>();
  const Result<TroupeCudaAlgorithm> chosen = choose(gemm);
  if (chosen.ok()) return std::optional(*chosen);
  if (chosen.status().code() != Code::kUnsupported) return chosen.status();
  without_.insert(gemm);
  return std::optional<TroupeCudaAlgorithm>();
}

Result<std::vector<GemmAlgorithms::Timing>> GemmAlgorithms::time(const TroupeCudaGemm& gemm,
                                                                 const Operands& operands,
                                                                 CudaStream& stream,
                                                                 int candidates_max,
                                                                 int repeats) const {
  CudaEvent begin = TROUPE_TRY(CudaEvent::create(device_, CudaEvent::Times::kTaken));
  CudaEvent end = TROUPE_TRY(CudaEvent::create(device_, CudaEvent::Times::kTaken));
  std::vector<Timing> timings;
  for (const TroupeCudaAlgorithm& algorithm : TROUPE_TRY(candidates(gemm, candidates_max))) {
    double least = 0;
    for (int i = 0; i <= repeats; ++i) {  // the first warms up
      TROUPE_RETURN_IF_ERROR(begin.record(stream));
      const int code =
          gemm.epilogue == TROUPE_CUDA_EPILOGUE_NONE
              ? device_->table().gemm(stream.get(), &gemm, &algorithm, operands.a, operands.b,
                                      operands.c, operands.workspace, workspace_bytes_)
              : device_->table().gemm_fused(stream.get(), &gemm, &algorithm, operands.a, operands.b,
                                            operands.bias, operands.gelu_input, operands.c,
                                            operands.workspace, workspace_bytes_);
      TROUPE_RETURN_IF_ERROR(
          device_->status(code, fmt::format("timing the product {}", describe_gemm(gemm))));
      TROUPE_RETURN_IF_ERROR(end.record(stream));
      TROUPE_RETURN_IF_ERROR(end.wait("a product that is timed"));
      const double milliseconds = TROUPE_TRY(end.milliseconds_since(begin));
      if (i == 1 || (i > 1 && milliseconds < least)) least = milliseconds;
    }
    timings.push_back({algorithm, least});
  }
  return timings;
}

Status GemmAlgorithms::tune(const TroupeCudaGemm& gemm, const Operands& operands,
                            CudaStream& stream, int candidates_max, int repeats) {
  TROUPE_CHECK(!chosen_.contains(gemm), "{}", describe_gemm(gemm));
  const std::vector<Timing> timings =
      TROUPE_TRY(time(gemm, operands, stream, candidates_max, repeats));
  // Of equal ones the first.
  const auto fastest = std::min_element(
      timings.begin(), timings.end(),
      [](const Timing& a, const Timing& b) { return a.milliseconds < b.milliseconds; });
  chosen_.emplace(gemm, fastest->algorithm);
  return {};
}

std::string GemmAlgorithms::header() const {
  return fmt::format("troupe products 2; cublasLt {}; {}.{} {}; workspace {}",
                     device_->versions().cublaslt, device_->info().compute_major,
                     device_->info().compute_minor, device_->info().name, workspace_bytes_);
}

std::string GemmAlgorithms::to_text() const {
  std::string text = header() + "\n";
  for (const auto& [gemm, algorithm] : chosen_) {
    for (const std::int64_t field : fields_of(gemm)) text += fmt::format("{} ", field);
    text += fmt::format("{}", algorithm.workspace_bytes);
    for (const std::uint64_t word : algorithm.opaque) text += fmt::format(" {:x}", word);
    text += "\n";
  }
  return text;
}

Result<GemmAlgorithms::Chosen> GemmAlgorithms::parse_lines(std::string_view lines) {
  Chosen chosen;
  int number = 1;
  while (!lines.empty()) {
    ++number;
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::vector<std::string_view> words = split(lines.substr(0, end), ' ');
    lines.remove_prefix(std::min(end + 1, lines.size()));
    Fields fields{};
    TroupeCudaAlgorithm algorithm{};
    bool good = words.size() == fields.size() + 1 + std::size(algorithm.opaque);
    for (std::size_t i = 0; good && i < fields.size(); ++i)
      good = parse_number(words[i], 10, fields[i]);
    good = good && parse_number(words[fields.size()], 10, algorithm.workspace_bytes);
    for (std::size_t i = 0; good && i < std::size(algorithm.opaque); ++i)
      good = parse_number(words[fields.size() + 1 + i], 16, algorithm.opaque[i]);
    if (!good || !chosen.emplace(gemm_of(fields), algorithm).second)
      return error(Code::kInvalidArgument,
                   "line {} of the list of products' algorithms is none, or stands twice", number);
  }
  return chosen;
}

Status GemmAlgorithms::take_text(std::string_view text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view made_with = text.substr(0, end);
  if (!made_with.starts_with("troupe products "))
    return error(Code::kInvalidArgument, "this is no list of products' algorithms");
  if (made_with != header())
    return error(Code::kFailedPrecondition,
                 "the products' algorithms were chosen with '{}' and this rank has '{}': the same "
                 "choice would not be the same arithmetic. Use the same library and devices on "
                 "all ranks and when resuming",
                 made_with, header());
  const Chosen given = TROUPE_TRY(parse_lines(text.substr(std::min(end + 1, text.size()))));
  for (const auto& [gemm, algorithm] : given) {
    const auto found = chosen_.find(gemm);
    if (found != chosen_.end() && !same(found->second, algorithm))
      return error(Code::kFailedPrecondition,
                   "another algorithm than the given one is in use already for the product {}",
                   describe_gemm(gemm));
    if (algorithm.workspace_bytes > workspace_bytes_)
      return error(Code::kInvalidArgument,
                   "the list's algorithm for the product {} needs {} of workspace of {}",
                   describe_gemm(gemm), memory_size_text(algorithm.workspace_bytes),
                   memory_size_text(workspace_bytes_));
  }
  chosen_.insert(given.begin(), given.end());
  return {};
}

}  // namespace troupe::train
