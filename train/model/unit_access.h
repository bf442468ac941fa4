#pragma once
// How a model reaches its parameters and gradients: the place where sharding strategies stand.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "train/model/parameter_layout.h"
#include "train/tensor/dtype.h"
#include "train/tensor/operators.h"

namespace troupe::train {

enum class Phase { kForward, kBackward };

// Where a parameter lies in its unit's buffers, whichever type they have.
struct ParameterRef {
  std::int64_t offset = 0;          // ParameterInfo::offset_elements
  std::int64_t vector_offset = -1;  // ParameterInfo::vector_offset
};

// Of the parameter of this name, which must be there.
ParameterRef parameter_ref(const ParameterLayout& layout, std::string_view name);

// A unit's parameters in memory of the operators' device.
struct UnitParameters {
  // The whole unit, UnitInfo::elements of `dtype` (kF32 or kBF16) at their element offsets.
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  // (UnitInfo::vector_elements) fp32: the 1-D parameters, by vector_offset. Null where dtype is
  // kF32: then they are read in place.
  const float* vectors = nullptr;

  // A matrix's first element, of type `dtype`.
  const void* matrix(const ParameterRef& ref) const {
    return data + static_cast<std::size_t>(ref.offset) * (dtype == DType::kBF16 ? 2 : 4);
  }
  // A 1-D parameter's first element.
  const float* vector(const ParameterRef& ref) const {
    return vectors ? vectors + ref.vector_offset
                   : reinterpret_cast<const float*>(data) + ref.offset;
  }
  // The same in `type`, where the unit holds it so: kF32, or kBF16 of a unit of that type, whose
  // values are those of vector().
  const void* vector_as(const ParameterRef& ref, DType type) const {
    TROUPE_CHECK(type == DType::kF32 || type == dtype, "a unit of {} has no {}", dtype_name(dtype),
                 dtype_name(type));
    return type == DType::kF32 ? static_cast<const void*>(vector(ref)) : matrix(ref);
  }
  // What products with the unit's matrices, and their weight gradients, are computed in.
  Arithmetic arithmetic() const {
    return dtype == DType::kBF16 ? Arithmetic::kBf16 : Arithmetic::kFp32;
  }
};

// Where a unit's gradient is put.
struct UnitGradient {
  // (UnitInfo::elements) fp32.
  std::span<float> values;
  // Nothing has been added yet: the values are anything, and the model's pass writes all of them,
  // padding included, what it has no gradient for with zeros. Else it adds to them.
  bool fresh = false;

  float* at(const ParameterRef& ref) const { return values.data() + ref.offset; }
};

// The model acquires a unit, uses it and releases it, in forward order and then in backward order;
// with tied embeddings it acquires unit 0 for the embedding and again for the logits. A strategy
// may gather a unit in acquire and drop it in release. Parameters stay valid until the unit's
// release, gradients until gradient_done. One thread calls. A failure (an aborted collective) ends
// the micro-batch: the model returns it at once, after releasing what it holds.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  virtual Result<UnitParameters> acquire(int unit, Phase phase) = 0;
  virtual void release(int unit, Phase phase) = 0;
  // Where this micro-batch's gradient of the unit is put; may be asked for more than once, with the
  // same answer for the whole backward pass.
  virtual Result<UnitGradient> gradient(int unit) = 0;
  // The unit's gradient for this micro-batch is complete: it may be reduced. Once per unit and
  // backward pass, in order of completion.
  virtual Status gradient_done(int unit) = 0;
};

// Everything resident: parameters and gradients of all units in two flat spans of
// ParameterLayout::total_elements(), which the caller owns and may change between passes. Passes
// add to the gradients. Without gradients (empty span) it serves forward passes only.
class ResidentUnits final : public UnitAccess {
 public:
  // Parameters in fp32, and products too.
  ResidentUnits(const ParameterLayout& layout, std::span<const float> parameters,
                std::span<float> gradients);
  // Parameters in bf16, and products too.
  ResidentUnits(const ParameterLayout& layout, std::span<const std::uint16_t> parameters,
                std::span<float> gradients);

  Result<UnitParameters> acquire(int unit, Phase phase) override;
  void release(int, Phase) override {}
  Result<UnitGradient> gradient(int unit) override;
  Status gradient_done(int) override { return {}; }

 private:
  const ParameterLayout& layout_;
  // One of the two is empty.
  std::span<const float> fp32_;
  std::span<const std::uint16_t> bf16_;
  // By unit, with bf16 only: a unit may be held while another one is acquired.
  std::vector<std::vector<float>> vectors_;
  std::span<float> gradients_;
};

}  // namespace troupe::train
