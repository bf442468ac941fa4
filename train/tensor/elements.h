#pragma once
// Where elements lie that are fp32 or, on devices that store them so, bf16.

#include <cstddef>
#include <cstdint>

#include "runtime/base/check.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

// A pointer to fp32 or bf16 elements that says which: what operators take for activations. Bits of
// bf16 have the type std::uint16_t in C++.
struct Elements {
  Elements() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  Elements(std::nullptr_t) {}
  Elements(float* fp32) : data(fp32) {}
  Elements(std::uint16_t* bf16) : data(bf16), type(DType::kBF16) {}
  // NOLINTEND(google-explicit-constructor)
  // kF32 or kBF16.
  Elements(void* at, DType of) : data(at), type(of) {}

  explicit operator bool() const { return data != nullptr; }
  Elements operator+(std::int64_t count) const {
    return {static_cast<std::byte*>(data) + count * element_bytes(), type};
  }
  Elements& operator+=(std::int64_t count) { return *this = *this + count; }
  std::int64_t element_bytes() const { return type == DType::kBF16 ? 2 : 4; }
  // For those who compute with fp32 elements alone: the process ends if they are not.
  float* fp32() const {
    TROUPE_CHECK(type == DType::kF32, "{} elements where fp32 ones are computed with",
                 dtype_name(type));
    return static_cast<float*>(data);
  }

  void* data = nullptr;
  DType type = DType::kF32;
};

// The same for elements that are read.
struct ConstElements {
  ConstElements() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  ConstElements(std::nullptr_t) {}
  ConstElements(const float* fp32) : data(fp32) {}
  ConstElements(const std::uint16_t* bf16) : data(bf16), type(DType::kBF16) {}
  ConstElements(const Elements& elements) : data(elements.data), type(elements.type) {}
  // NOLINTEND(google-explicit-constructor)
  ConstElements(const void* at, DType of) : data(at), type(of) {}

  explicit operator bool() const { return data != nullptr; }
  ConstElements operator+(std::int64_t count) const {
    return {static_cast<const std::byte*>(data) + count * element_bytes(), type};
  }
  std::int64_t element_bytes() const { return type == DType::kBF16 ? 2 : 4; }
  const float* fp32() const {
    TROUPE_CHECK(type == DType::kF32, "{} elements where fp32 ones are computed with",
                 dtype_name(type));
    return static_cast<const float*>(data);
  }

  const void* data = nullptr;
  DType type = DType::kF32;
};

}  // namespace troupe::train
