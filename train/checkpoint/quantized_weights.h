#pragma once
// Weights that a model's files hold as bitsandbytes saves them, beside what is stored as it is.
//
// In 4 bits, of a matrix NAME ("….weight"):
//   NAME                    the codes, as many bytes as elements of whatever type
//   NAME.absmax             by block; nested: their 8-bit codes, with NAME.nested_absmax
//   NAME.quant_map, NAME.nested_quant_map          what the codes stand for
//   NAME.quant_state.bitsandbytes__nf4 (or fp4)    shape, type and the magnitudes' mean, as JSON
// In 8 bits, of a module: weight (I8), SCB (a row's absmax), weight_format (0: by rows).

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/tensor/dtype.h"
#include "train/tensor/quantized.h"

namespace troupe::train {

// A matrix that files hold so.
struct StoredMatrix {
  Quantization quantization;
  std::int64_t rows = 0, width = 0;
  DType values = DType::kF32;  // in 4 bits: the type that it was of, and becomes again
  float offset = 0;            // the mean of nested magnitudes
};

// Immutable; may be read from any thread.
class QuantizedWeights {
 public:
  // Those among `tensors`. A form that is not read, or that does not fit together, is refused with
  // the tensor's name.
  static Result<QuantizedWeights> find(const TensorReader& tensors);

  // The weights of `tensors` as their model has them: shapes and types are those of the values, and
  // what describes codes is left out.
  const std::vector<TensorInfo>& weights() const { return weights_; }
  // Null for what is stored as it is.
  const StoredMatrix* matrix(std::string_view name) const;

  // A matrix's bytes, as QuantizedParts has them.
  Result<std::vector<std::byte>> read(const TensorReader& tensors, std::string_view name) const;
  // The values of elements [begin, begin + out.size()), rounded to the type that they were of.
  // `bytes`: what read() gave.
  static Status values(const StoredMatrix& matrix, std::span<const std::byte> bytes,
                       std::int64_t begin, std::span<float> out);

 private:
  std::map<std::string, StoredMatrix, std::less<>> matrices_;
  std::vector<TensorInfo> weights_;
};

}  // namespace troupe::train
