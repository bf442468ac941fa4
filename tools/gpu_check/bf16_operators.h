#pragma once
// The device's operators on bf16 activations, for callers with fp32 ones: what a check of them
// needs. Activations are converted on the device before and after; values that bf16 holds stay as
// they are. Attention goes to the table's own kernels.

#include <cstdint>
#include <functional>

#include "tools/gpu_check/bench.h"
#include "train/tensor/operators.h"
#include "train/tensor/quantized.h"

namespace troupe::tools::gpu {

// The types of the arguments that rows of the list of operators name.
using train::AttentionShape;
using train::ConstElements;
using train::Dropout;
using train::DType;
using train::Elements;
using train::Gemm;
using train::QuantizedMatrix;
using train::RopeDirection;

class Bf16Operators final : public train::Operators {
 public:
  // `gpu` must outlive the object, which takes memory of it.
  explicit Bf16Operators(Gpu& gpu) : gpu_(gpu) {}

  bool fast_bf16() const override { return true; }
  // It converts what it is given.
  bool stores_bf16() const override { return false; }
  Status failure() const override;
  // a, b and c of a product are in bf16.
#define TROUPE_OPERATOR(name, ...) void name(TROUPE_PARAMETERS(__VA_ARGS__)) override;
#include "train/tensor/operators.def"

 private:
  TroupeCudaStream* stream() const { return gpu_.stream->get(); }
  const TroupeCudaTable& table() const { return gpu_.table(); }
  // Unless something failed before.
  void run(const std::function<void(train::Operators&)>& call);
  // An operator of the list with copies of its activations.
  template <typename... Parameters, typename... Arguments>
  void call(void (train::Operators::*function)(Parameters...), const Arguments&... arguments);
  void launch(const char* name, const std::function<int()>& call);
  std::byte* take(std::int64_t bytes);
  // A copy in bf16.
  Elements in(ConstElements from, std::int64_t count);
  Elements room(std::int64_t count) { return {take(count * 2), DType::kBF16}; }
  // Back to fp32.
  void out(ConstElements from, Elements to, std::int64_t count);
  // Back, but for what lies between rows of `width`.
  void out_rows(ConstElements from, Elements to, std::int64_t stride, std::int64_t rows,
                std::int64_t width);

  Gpu& gpu_;
  Status failure_;
};

}  // namespace troupe::tools::gpu
