#pragma once
// Element types of tensors in files and memory, under the names that safetensors gives them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe::train {

enum class DType : int {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
  kF8E4M3,
  kF8E5M2
};

// Bytes of one element.
std::size_t dtype_size(DType dtype);
// "F32", "BF16", … as in a safetensors header.
std::string_view dtype_name(DType dtype);
// The inverse of dtype_name; nothing for a name that is not in the list.
std::optional<DType> dtype_from_name(std::string_view name);
// "float32", "bfloat16", "float16" of config.json's torch_dtype (or dtype), with or without a
// leading "torch."; nothing for others.
std::optional<DType> dtype_from_torch_name(std::string_view name);
// The inverse, for the types that weights are written in; empty for others.
std::string_view torch_name(DType dtype);

}  // namespace troupe::train
