#pragma once
// The operator table: everything a model asks of a device. train/cpu implements it, train/cuda does
// over device pointers. The operators themselves, with their shapes, are listed in operators.def.
//
// Tensors are row-major, in memory of the implementation's device; a `stride` is the distance of
// two rows in elements. Activations (Elements) are fp32, or bf16 where stores_bf16() says so: all
// of one call have one type; what is computed of them is computed in fp32 and rounded once, to
// nearest, when it is stored. Everything else (floats) is fp32. Calls take effect in program order.
// One thread calls at a time; the implementation parallelises inside. Results do not depend on how
// many threads it uses: every reduction has a fixed order. Sizes must be positive unless said
// otherwise. Outputs must not overlap inputs except where "in place" is said.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "runtime/base/status.h"
#include "train/tensor/dropout.h"
#include "train/tensor/dtype.h"
#include "train/tensor/elements.h"
#include "train/tensor/operator_list.h"
#include "train/tensor/quantized.h"

namespace troupe::train {

// What a product is computed in.
enum class Arithmetic {
  kFp32,
  // Operands are bf16 (an fp32 one is rounded first: to nearest, ties to even), products and sums
  // are fp32.
  kBf16,
  // The same with fp16: what is too large becomes infinite. On CPUs alone.
  kFp16,
};

// What a device may round an operand to that was asked to multiply in 8 bits (CudaOptions::fp8).
// Other devices, and products in fp32, take operands as they are.
enum class Narrow {
  kNot,
  kValue,     // E4M3: an activation, a weight
  kGradient,  // E5M2: what is passed back
};

// What becomes of a product's sums before they are stored, where a device does that in the product
// itself: see Operators::fuses.
enum class Epilogue {
  kNone,
  kBias,          // c = sum + bias
  kBiasGelu,      // gelu_input = sum + bias, c = GELU of that, before it was rounded
  kGeluGradient,  // c = sum · GELU′(gelu_input)
};

// C = op(A)·op(B), or C += op(A)·op(B) with `accumulate`.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  // a: (m, k), or (k, m) with transpose_a. b: (k, n), or (n, k) with transpose_b. c: (m, n).
  // Types are kF32, or kBF16 in a product that is not computed in fp32; that of c as activations'
  // are.
  const void* a = nullptr;
  DType a_type = DType::kF32;
  std::int64_t a_stride = 0;
  bool transpose_a = false;
  const void* b = nullptr;
  DType b_type = DType::kF32;
  std::int64_t b_stride = 0;
  bool transpose_b = false;
  // B as it lies in memory where it is quantised, in place of `b` and b_stride: multiplied by what
  // its values are in the arithmetic's type.
  QuantizedMatrix b_quantized = {};
  Elements c;
  std::int64_t c_stride = 0;
  bool accumulate = false;
  Arithmetic arithmetic = Arithmetic::kFp32;
  Narrow narrow_a = Narrow::kNot, narrow_b = Narrow::kNot;
  // Other than kNone: of a product that fuses() takes, and that is not accumulated.
  Epilogue epilogue = Epilogue::kNone;
  const void* bias = nullptr;  // (n), of c's type
  // (m, n), of c's type and by its stride: kBiasGelu writes it, kGeluGradient reads it.
  Elements gelu_input = {};
};

// Shapes of causal attention with grouped queries. Query row t of a batch row sees the keys
// first_key[t] … key_length − query_length + t; without first_key it sees them from 0.
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t query_length = 0;  // ≤ key_length
  std::int64_t key_length = 0;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;  // divides query_heads; query head h uses key head h / (ratio)
  std::int64_t head_dim = 0;
  std::int64_t query_stride = 0;  // of q, and of its gradient
  std::int64_t key_stride = 0;    // of k and v, and of their gradients
  // From one batch row's first key to the next one's; key_length·key_stride when they are dense.
  std::int64_t key_batch_stride = 0;
  float scale = 1.0f;
  // (batch, query_length), or null. Rows of one segment (or window) share or raise it: it must not
  // fall within a batch row.
  const std::int32_t* first_key = nullptr;
  // Not 0: first_key is that of a window of so many keys and of nothing else, so that a device may
  // leave it unread. 0 says nothing of it.
  std::int64_t window = 0;
  // kBf16: the device may round what enters a product to bf16, where that is faster. The softmax
  // and all sums are fp32 in either case.
  Arithmetic arithmetic = Arithmetic::kFp32;
  // Of the weights after the softmax; rows are queries, columns keys by their place in the query's
  // sample. Its site is head 0's, the others' follow on.
  Dropout dropout = {};
};

enum class RopeDirection { kForward, kBackward };

// One for each operator of the list, by its name there.
enum class OperatorName {
#define TROUPE_OPERATOR(name, ...) name,
#include "train/tensor/operators.def"
};
std::string_view operator_name(OperatorName name);

class Operators {
 public:
  virtual ~Operators() = default;

  // Whether the device computes products in bf16 faster than in fp32. Where it does not, they are
  // computed with operands that hold rounded values: the same meaning, no gain.
  virtual bool fast_bf16() const = 0;
  // Whether activations may be bf16. Where not, they end the process.
  virtual bool stores_bf16() const = 0;
  // The first failure that calls so far met, on a device that may fail: nothing was computed since,
  // and results are worth nothing. Does not wait for work that is under way. Ok where operators
  // cannot fail.
  virtual Status failure() const { return {}; }
  // What is called from here to end_block() is one block of a pass; nothing but calls of this table
  // concerns the device in between. A device may keep the block's work until its end, and do it by
  // a shorter way where the same comes again: results are the same. `block` tells one from others
  // that come back. Blocks do not nest. See OperatorBlock.
  virtual void begin_block(int block) { static_cast<void>(block); }
  virtual void end_block() {}

  // Whether the product of a gemm() goes on with its epilogue. Where not, whoever asks computes the
  // product without it and calls what follows by itself. The same answer for the same product.
  virtual bool fuses(const Gemm& gemm) {
    static_cast<void>(gemm);
    return false;
  }
  // Whether the device has the operator. Where not, a call of it is a failure(): whoever needs what
  // not every device has asks before the first step, see needs_operators().
  virtual bool supports(OperatorName name) const {
    static_cast<void>(name);
    return true;
  }

  // The operators: operators.def says what each does and the shapes of its arguments.
#define TROUPE_OPERATOR(name, ...) virtual void name(TROUPE_PARAMETERS(__VA_ARGS__)) = 0;
#include "train/tensor/operators.def"
};

// Ok, or the first of them that the device does not support. `what` needs them: "DoRA".
Status needs_operators(const Operators& operators, std::initializer_list<OperatorName> names,
                       std::string_view what);

// A block of operators' calls, for as long as the object lives.
class OperatorBlock {
 public:
  OperatorBlock(Operators& operators, int block) : operators_(operators) {
    operators_.begin_block(block);
  }
  ~OperatorBlock() { operators_.end_block(); }
  OperatorBlock(const OperatorBlock&) = delete;
  OperatorBlock& operator=(const OperatorBlock&) = delete;

 private:
  Operators& operators_;
};

}  // namespace troupe::train
