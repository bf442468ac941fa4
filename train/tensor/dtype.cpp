#include "train/tensor/dtype.h"

#include <array>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array kDTypes = {
    DTypeRow{DType::kBool, "BOOL", 1},      DTypeRow{DType::kU8, "U8", 1},
    DTypeRow{DType::kI8, "I8", 1},          DTypeRow{DType::kI16, "I16", 2},
    DTypeRow{DType::kU16, "U16", 2},        DTypeRow{DType::kF16, "F16", 2},
    DTypeRow{DType::kBF16, "BF16", 2},      DTypeRow{DType::kI32, "I32", 4},
    DTypeRow{DType::kU32, "U32", 4},        DTypeRow{DType::kF32, "F32", 4},
    DTypeRow{DType::kF64, "F64", 8},        DTypeRow{DType::kI64, "I64", 8},
    DTypeRow{DType::kU64, "U64", 8},        DTypeRow{DType::kF8E4M3, "F8_E4M3", 1},
    DTypeRow{DType::kF8E5M2, "F8_E5M2", 1},
};

const DTypeRow& row_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  TROUPE_CHECK(index < kDTypes.size() && kDTypes[index].dtype == dtype, "dtype {}", index);
  return kDTypes[index];
}

}  // namespace

std::size_t dtype_size(DType dtype) { return row_of(dtype).size; }

std::string_view dtype_name(DType dtype) { return row_of(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::optional<DType> dtype_from_torch_name(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "float32" || name == "float") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16" || name == "half") return DType::kF16;
  if (name == "float64" || name == "double") return DType::kF64;
  return std::nullopt;
}

std::string_view torch_name(DType dtype) {
  for (const std::string_view name : {"float32", "bfloat16", "float16", "float64"})
    if (dtype_from_torch_name(name) == dtype) return name;
  return "";
}

}  // namespace troupe::train
