#include "train/checkpoint/quantized_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "runtime/base/json.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr std::string_view kState = ".quant_state.bitsandbytes__";
constexpr std::string_view kScales = ".SCB", kFormat = ".weight_format", kWeight = ".weight";
constexpr std::int64_t kStateBytesMax = 1 << 16;
// A side of a matrix, so that products of two fit.
constexpr std::int64_t kSideMax = 1 << 24;
// What other versions computed a code's value as.
constexpr float kCodeTolerance = 1e-6f;

Status refused(std::string_view name, std::string_view what) {
  return error(Code::kUnsupported,
               "{}: {}: models that bitsandbytes keeps in 4 or 8 bits are read; use one that is "
               "kept so, or not quantised",
               name, what);
}

Status broken(std::string_view name, std::string_view what) {
  return error(Code::kDataLoss, "{}: {}", name, what);
}

// The bytes of a whole tensor, which must have so many.
Status read_all(const TensorReader& tensors, const std::string& name, std::span<std::byte> out) {
  const TensorInfo* info = tensors.find(name);
  if (!info) return broken(name, "is missing");
  const auto bytes = static_cast<std::size_t>(info->elements) * dtype_size(info->dtype);
  if (bytes != out.size())
    return broken(name, fmt::format("has {} bytes in the place of {}", bytes, out.size()));
  return tensors.read_bytes(name, 0, out);
}

Result<std::vector<float>> read_floats(const TensorReader& tensors, const std::string& name,
                                       std::size_t count) {
  const TensorInfo* info = tensors.find(name);
  if (!info || info->dtype != DType::kF32) return broken(name, "is missing, or not in fp32");
  std::vector<float> values(count);
  TROUPE_RETURN_IF_ERROR(read_all(tensors, name, std::as_writable_bytes(std::span(values))));
  return values;
}

Result<StoredMatrix> read_state(const TensorReader& tensors, const TensorInfo& state,
                                std::string_view name, std::string_view type) {
  const auto code = weight_code_from_name(type);
  if (!code || *code == WeightCode::kInt8)
    return refused(name, fmt::format("codes of type {} are not read", type));
  if (state.dtype != DType::kU8 || state.elements > kStateBytesMax)
    return broken(state.name, "is no text in bytes");
  std::string text(static_cast<std::size_t>(state.elements), '\0');
  TROUPE_RETURN_IF_ERROR(tensors.read_bytes(
      state.name, 0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  const json::Value value = TROUPE_TRY(json::parse(text, state.name));
  StoredMatrix matrix;
  matrix.quantization = {.code = *code, .nested = json::find(value, "nested_offset") != nullptr};
  const json::Value* shape = json::find(value, "shape");
  if (!shape || !shape->is_array() || shape->get_array().size() != 2)
    return broken(state.name, "has no shape of two numbers");
  for (std::size_t i = 0; i < 2; ++i) {
    const json::Value& side = shape->get_array()[i];
    const auto number = side.is_int64() ? side.get_int64() : 0;
    if (number < 1 || number > kSideMax) return broken(state.name, "has a shape beyond all models");
    (i == 0 ? matrix.rows : matrix.width) = number;
  }
  const auto dtype = dtype_from_torch_name(json::find_string(value, "dtype").value_or(""));
  if (!dtype) return broken(state.name, "names no type of values");
  matrix.values = *dtype;
  const auto block = json::find_integer(value, "blocksize").value_or(0);
  const auto nested_block = json::find_integer(value, "nested_blocksize").value_or(kNestedBlock);
  if (block != kQuantizedBlock || nested_block != kNestedBlock)
    return refused(name, fmt::format("blocks of {} and {} are not read: those of 64 and 256 are",
                                     block, nested_block));
  if (matrix.quantization.nested)
    matrix.offset = static_cast<float>(json::find_number(value, "nested_offset").value_or(NAN));
  if (!std::isfinite(matrix.offset)) return broken(state.name, "has no number nested_offset");
  return matrix;
}

// Whether the codes that `used` has stand for what they stand for here.
Status check_codes(const TensorReader& tensors, const std::string& name,
                   std::span<const float> ours, std::span<const std::byte> used) {
  const std::vector<float> theirs = TROUPE_TRY(read_floats(tensors, name, ours.size()));
  std::vector<bool> differs(ours.size());
  bool any = false;
  for (std::size_t i = 0; i < ours.size(); ++i)
    any |= differs[i] = !(std::abs(theirs[i] - ours[i]) <= kCodeTolerance);
  if (!any) return {};
  const auto is_other = [&](std::byte code) { return differs[static_cast<std::size_t>(code)]; };
  if (!used.empty() && std::ranges::none_of(used, is_other)) return {};
  return refused(name, "its codes stand for other values than bitsandbytes'");
}

}  // namespace

Result<QuantizedWeights> QuantizedWeights::find(const TensorReader& tensors) {
  QuantizedWeights found;
  std::set<std::string, std::less<>> hidden;
  for (const TensorInfo& info : tensors.weights()) {
    const std::string_view name = info.name;
    if (const auto at = name.find(kState); at != std::string_view::npos) {
      const std::string weight(name.substr(0, at));
      found.matrices_.emplace(
          weight, TROUPE_TRY(read_state(tensors, info, weight, name.substr(at + kState.size()))));
      hidden.emplace(name);
      for (const char* part : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"})
        hidden.insert(weight + part);
    } else if (name.ends_with(kScales)) {
      const std::string module(name.substr(0, name.size() - kScales.size()));
      const std::string weight = module + std::string(kWeight);
      const TensorInfo* codes = tensors.find(weight);
      if (!codes || codes->dtype != DType::kI8 || codes->shape.size() != 2 ||
          std::ranges::any_of(codes->shape, [](auto side) { return side < 1 || side > kSideMax; }))
        return broken(weight, "is no matrix of signed bytes, though there are scales for it");
      found.matrices_.emplace(weight, StoredMatrix{.quantization = {.code = WeightCode::kInt8},
                                                   .rows = codes->shape[0],
                                                   .width = codes->shape[1],
                                                   .values = DType::kF32});
      hidden.emplace(name);
      hidden.insert(module + std::string(kFormat));
    }
  }
  for (const TensorInfo& info : tensors.weights()) {
    if (hidden.contains(info.name)) continue;
    found.weights_.push_back(info);
    if (const StoredMatrix* matrix = found.matrix(info.name)) {
      TensorInfo& shown = found.weights_.back();
      shown.dtype = matrix->values;
      shown.shape = {matrix->rows, matrix->width};
      shown.elements = matrix->rows * matrix->width;
    }
  }
  return found;
}

const StoredMatrix* QuantizedWeights::matrix(std::string_view name) const {
  const auto it = matrices_.find(name);
  return it == matrices_.end() ? nullptr : &it->second;
}

Result<std::vector<std::byte>> QuantizedWeights::read(const TensorReader& tensors,
                                                      std::string_view of) const {
  const std::string name(of);
  const StoredMatrix& matrix = matrices_.at(name);
  const QuantizedParts parts(matrix.quantization, matrix.rows, matrix.width);
  const std::int64_t elements = matrix.rows * matrix.width;
  // Before there is memory for it: a shape may be made up.
  const TensorInfo* info = tensors.find(name);
  if (!info ||
      static_cast<std::size_t>(info->elements) * dtype_size(info->dtype) != parts.code_bytes)
    return broken(name, fmt::format("does not have the codes of {} elements", elements));
  std::vector<std::byte> bytes(parts.bytes);
  const std::span<std::byte> out(bytes);
  TROUPE_RETURN_IF_ERROR(tensors.read_bytes(name, 0, out.first(parts.code_bytes)));
  const auto blocks = static_cast<std::size_t>(parts.blocks);
  if (matrix.quantization.code == WeightCode::kInt8) {
    const std::string module = name.substr(0, name.size() - kWeight.size());
    const std::string format_name = module + std::string(kFormat);
    std::byte format{0};
    if (tensors.find(format_name))
      TROUPE_RETURN_IF_ERROR(read_all(tensors, format_name, std::span(&format, 1)));
    if (format != std::byte{0})
      return refused(name, "its codes are in an order for one kind of GPU, not by rows");
    const auto scales = TROUPE_TRY(read_floats(tensors, module + std::string(kScales), blocks));
    std::memcpy(out.data() + parts.absmax, scales.data(), blocks * sizeof(float));
    return bytes;
  }
  TROUPE_RETURN_IF_ERROR(
      check_codes(tensors, name + ".quant_map", code_values(matrix.quantization.code), {}));
  if (!matrix.quantization.nested) {
    const auto absmax = TROUPE_TRY(read_floats(tensors, name + ".absmax", blocks));
    std::memcpy(out.data() + parts.absmax, absmax.data(), blocks * sizeof(float));
    return bytes;
  }
  const auto codes = out.subspan(parts.absmax, blocks);
  TROUPE_RETURN_IF_ERROR(read_all(tensors, name + ".absmax", codes));
  TROUPE_RETURN_IF_ERROR(
      check_codes(tensors, name + ".nested_quant_map", nested_code_values(), codes));
  const auto nested = TROUPE_TRY(
      read_floats(tensors, name + ".nested_absmax", static_cast<std::size_t>(parts.nested_blocks)));
  std::memcpy(out.data() + parts.nested_absmax, nested.data(), nested.size() * sizeof(float));
  std::memcpy(out.data() + parts.offset, &matrix.offset, sizeof matrix.offset);
  return bytes;
}

Status QuantizedWeights::values(const StoredMatrix& matrix, std::span<const std::byte> bytes,
                                std::int64_t begin, std::span<float> out) {
  const QuantizedMatrix in_memory{matrix.quantization, bytes.data(), matrix.rows, matrix.width};
  // Codes are read from an even element on.
  std::vector<float> even(out.size() + static_cast<std::size_t>(begin % 2));
  dequantize(in_memory, begin - begin % 2, std::span(even));
  const std::span<const float> wanted =
      std::span(even).subspan(static_cast<std::size_t>(begin % 2));
  if (matrix.values == DType::kF32) {
    std::ranges::copy(wanted, out.begin());
    return {};
  }
  std::vector<std::byte> rounded(out.size() * dtype_size(matrix.values));
  TROUPE_RETURN_IF_ERROR(convert_from_float(wanted, matrix.values, rounded));
  return convert_to_float(rounded, matrix.values, out);
}

}  // namespace troupe::train
