#pragma once
// How a model reaches its parameters and gradients: the place where sharding strategies stand.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "train/model/model_layout.h"
#include "train/tensor/dtype.h"
#include "train/tensor/operators.h"

namespace troupe::train {

enum class Phase { kForward, kBackward };

// The trained or the frozen parameters of a unit, in memory of the operators' device.
struct UnitBuffer {
  // All of them, UnitInfo::elements of `dtype` (kF32 or kBF16) at their element offsets.
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  // (UnitInfo::vector_elements) fp32: the 1-D parameters, by vector_offset. Null where dtype is
  // kF32: then they are read in place.
  const float* vectors = nullptr;
};

// A unit's parameters.
struct UnitParameters {
  UnitBuffer trained, frozen = {};
  bool fp16 = false;  // products are computed in fp16, whatever parameters are kept in

  const UnitBuffer& buffer_of(const ParameterRef& ref) const {
    return ref.frozen ? frozen : trained;
  }
  DType dtype(const ParameterRef& ref) const { return buffer_of(ref).dtype; }
  // A matrix's first element, of type dtype(ref).
  const void* matrix(const ParameterRef& ref) const {
    const UnitBuffer& buffer = buffer_of(ref);
    return buffer.data +
           static_cast<std::size_t>(ref.offset) * (buffer.dtype == DType::kBF16 ? 2 : 4);
  }
  // A layer's matrix that is kept quantised, [outputs, inputs]; else nothing.
  QuantizedMatrix quantized(const ParameterRef& ref, std::int64_t outputs,
                            std::int64_t inputs) const {
    if (!ref.quantization) return {};
    return {ref.quantization, static_cast<const std::byte*>(matrix(ref)), outputs, inputs};
  }
  // A 1-D parameter's first element.
  const float* vector(const ParameterRef& ref) const {
    const UnitBuffer& buffer = buffer_of(ref);
    return buffer.vectors ? buffer.vectors + ref.vector_offset
                          : reinterpret_cast<const float*>(buffer.data) + ref.offset;
  }
  // The same in `type`, where the unit holds it so: kF32, or kBF16 of a unit of that type, whose
  // values are those of vector().
  const void* vector_as(const ParameterRef& ref, DType type) const {
    TROUPE_CHECK(type == DType::kF32 || type == dtype(ref), "a unit of {} has no {}",
                 dtype_name(dtype(ref)), dtype_name(type));
    return type == DType::kF32 ? static_cast<const void*>(vector(ref)) : matrix(ref);
  }
  // What products with a matrix, and its gradient, are computed in.
  Arithmetic arithmetic(const ParameterRef& ref) const {
    if (fp16) return Arithmetic::kFp16;
    return dtype(ref) == DType::kBF16 ? Arithmetic::kBf16 : Arithmetic::kFp32;
  }
};

// Where the gradient of a unit's trained parameters is put.
struct UnitGradient {
  // (UnitInfo::elements of the trained layout) fp32.
  std::span<float> values;
  // Nothing has been added yet: the values are anything, and the model's pass writes all of them,
  // padding included, what it has no gradient for with zeros. Else it adds to them.
  bool fresh = false;

  // Null for a frozen parameter, which has no gradient.
  float* at(const ParameterRef& ref) const {
    return ref.frozen ? nullptr : values.data() + ref.offset;
  }
};

// The model acquires a unit, uses it and releases it, in forward order and then in backward order;
// with tied embeddings it acquires unit 0 for the embedding and again for the logits. The backward
// pass ends at the first unit that has trained parameters. A strategy may gather a unit in acquire
// and drop it in release. Parameters stay valid until the unit's release, gradients until
// gradient_done. One thread calls. A failure (an aborted collective) ends the micro-batch: the
// model returns it at once, after releasing what it holds.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  virtual Result<UnitParameters> acquire(int unit, Phase phase) = 0;
  virtual void release(int unit, Phase phase) = 0;
  // Where this micro-batch's gradient of the unit is put, which has trained parameters; may be
  // asked for more than once, with the same answer for the whole backward pass.
  virtual Result<UnitGradient> gradient(int unit) = 0;
  // The unit's gradient for this micro-batch is complete: it may be reduced. Once per unit and
  // backward pass, in order of completion.
  virtual Status gradient_done(int unit) = 0;
};

// All units' parameters of one layout in a flat span of ParameterLayout::total_elements().
class ResidentSpace {
 public:
  // In fp32, and products with them too.
  ResidentSpace(const ParameterLayout& layout, std::span<const float> parameters);
  // In bf16, and products with them too.
  ResidentSpace(const ParameterLayout& layout, std::span<const std::uint16_t> parameters);

  UnitBuffer buffer(int unit);

 private:
  const ParameterLayout& layout_;
  // One of the two is empty.
  std::span<const float> fp32_;
  std::span<const std::uint16_t> bf16_;
  // By unit, with bf16 only: a unit may be held while another one is acquired.
  std::vector<std::vector<float>> vectors_;
};

// Everything resident: parameters and gradients of all units, which the caller owns and may change
// between passes. Passes add to the gradients. Without gradients (empty span) it serves forward
// passes only.
class ResidentUnits final : public UnitAccess {
 public:
  // Everything is trained.
  ResidentUnits(const ParameterLayout& layout, std::span<const float> parameters,
                std::span<float> gradients);
  ResidentUnits(const ParameterLayout& layout, std::span<const std::uint16_t> parameters,
                std::span<float> gradients);
  // gradients: of the trained layout.
  ResidentUnits(const ModelLayout& layout, ResidentSpace trained, ResidentSpace frozen,
                std::span<float> gradients);

  Result<UnitParameters> acquire(int unit, Phase phase) override;
  void release(int, Phase) override {}
  Result<UnitGradient> gradient(int unit) override;
  Status gradient_done(int) override { return {}; }

 private:
  const ParameterLayout& layout_;  // of what is trained
  ResidentSpace trained_;
  std::optional<ResidentSpace> frozen_;
  std::span<float> gradients_;
};

}  // namespace troupe::train
