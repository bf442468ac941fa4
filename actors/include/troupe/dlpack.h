#pragma once
// Tensors for PyTorch, NumPy, JAX and others, without a copy: DLPack
// (https://dmlc.github.io/dlpack/latest/c_api.html, version 1.0).
//
//   dlpack::ManagedTensor* tensor = to_dlpack(object);      // of an Object<Tensor<float>>
//   PyCapsule_New(tensor, "dltensor", …)                    // whoever takes it calls its deleter
//
// The structs here are those of dlpack.h, whose pointers they may be cast to; they have names of
// their own, so that a program may include both.

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/object.h"
#include "troupe/tensor.h"

namespace troupe {

namespace dlpack {

struct Device {           // DLDevice
  std::int32_t type = 1;  // kDLCPU
  std::int32_t id = 0;
};
struct DataType {  // DLDataType
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;
};
inline constexpr std::uint8_t kInt = 0, kUInt = 1, kFloat = 2;  // DLDataTypeCode
struct TensorData {                                             // DLTensor
  void* data = nullptr;
  Device device;
  std::int32_t ndim = 0;
  DataType dtype;
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;
  std::uint64_t byte_offset = 0;
};
struct ManagedTensor {  // DLManagedTensor
  TensorData dl_tensor;
  void* manager_ctx = nullptr;
  void (*deleter)(ManagedTensor* self) = nullptr;
};
struct Version {  // DLPackVersion
  std::uint32_t major = 1;
  std::uint32_t minor = 0;
};
inline constexpr std::uint64_t kReadOnly = 1;  // DLPACK_FLAG_BITMASK_READ_ONLY
struct ManagedTensorVersioned {                // DLManagedTensorVersioned
  Version version;
  void* manager_ctx = nullptr;
  void (*deleter)(ManagedTensorVersioned* self) = nullptr;
  std::uint64_t flags = 0;
  TensorData dl_tensor;
};

template <typename T>
inline constexpr DataType kDataType{
    .code = std::is_floating_point_v<T> ? kFloat : (std::is_signed_v<T> ? kInt : kUInt),
    .bits = sizeof(T) * 8};

}  // namespace dlpack

namespace detail {

// `view` as a DLPack tensor of either kind, which keeps `owner`.
template <typename Managed, typename T, typename Owner>
Managed* make_dlpack(const TensorView<const T>& view, Owner owner) {
  struct Kept {
    Managed managed;
    TensorShape shape, strides;
    Owner owner;
  };
  auto kept = std::make_unique<Kept>(Kept{{}, view.shape(), view.strides(), std::move(owner)});
  kept->managed.dl_tensor = {.data = const_cast<std::remove_const_t<T>*>(view.data()),
                             .device = {},
                             .ndim = static_cast<std::int32_t>(view.rank()),
                             .dtype = dlpack::kDataType<std::remove_const_t<T>>,
                             .shape = kept->shape.data(),
                             .strides = kept->strides.data()};
  kept->managed.manager_ctx = kept.get();
  kept->managed.deleter = [](Managed* self) { delete static_cast<Kept*>(self->manager_ctx); };
  return &kept.release()->managed;
}

}  // namespace detail

// The object's memory as a tensor, until its deleter is called (from any thread). Nobody may write
// it: it is mapped for reading alone, which only the versioned kind can say; what came by the other
// one is to be copied before it is changed.
template <typename T>
dlpack::ManagedTensor* to_dlpack(const Object<Tensor<T>>& object) {
  return detail::make_dlpack<dlpack::ManagedTensor, T>(*object, object);
}
template <typename T>
dlpack::ManagedTensorVersioned* to_dlpack_versioned(const Object<Tensor<T>>& object) {
  auto* const made = detail::make_dlpack<dlpack::ManagedTensorVersioned, T>(*object, object);
  made->flags = dlpack::kReadOnly;
  return made;
}

}  // namespace troupe
