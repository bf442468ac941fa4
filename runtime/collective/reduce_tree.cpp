#include "runtime/collective/reduce_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "runtime/base/check.h"

// One copy of the loops per instruction set, picked at load time. Elementwise operations without
// contraction give the same bits in each. (Sanitizers cannot run resolvers that early.)
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TROUPE_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TROUPE_VECTOR_CLONES
#endif

namespace troupe::collective {
namespace {

constexpr std::size_t kBlockElements = 1024;
constexpr int kDepthMax = 32;

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    // Integers wrap around, as they do on every accelerator.
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

template <typename Op, typename T>
inline __attribute__((always_inline)) void combine_loop(const T* a, const T* b, T* out,
                                                        std::size_t count) {
  // Every iteration reads its operands before it writes, so `out` may be one of them.
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) out[i] = Op::apply(a[i], b[i]);
}

// target_clones does not go on templates: the hot case is spelled out, the rest are plain.
TROUPE_VECTOR_CLONES void sum_float(const float* a, const float* b, float* out, std::size_t count) {
  combine_loop<Sum, float>(a, b, out, count);
}

template <typename Op, typename T>
void combine(const T* a, const T* b, T* out, std::size_t count) {
  if constexpr (std::is_same_v<Op, Sum> && std::is_same_v<T, float>) {
    sum_float(a, b, out, count);
  } else {
    combine_loop<Op, T>(a, b, out, count);
  }
}

float widen(Bfloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Round to nearest, ties to even; a NaN stays one.
Bfloat16 narrow(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// T(r, d) over one block. Returns where the result lies: a leaf's own input or `out`.
template <typename Op, typename T>
struct BlockTree {
  std::span<const T* const> inputs;
  std::size_t count;
  // One scratch block per level; levels are at most log2(ranks) + 1.
  T* scratch;

  const T* reduce(std::size_t r, std::size_t d, T* out, int level) const {
    if (r + d >= inputs.size()) return inputs[r];
    const T* left = reduce(r, 2 * d, out, level + 1);
    T* right_out = scratch + static_cast<std::size_t>(level) * kBlockElements;
    const T* right = reduce(r + d, 2 * d, right_out, level + 1);
    combine<Op, T>(left, right, out, count);
    return out;
  }
};

template <typename Op, typename T>
void reduce_typed(std::span<const std::byte* const> inputs, T* out, std::size_t count) {
  if (inputs.size() == 2) {
    combine<Op, T>(reinterpret_cast<const T*>(inputs[0]), reinterpret_cast<const T*>(inputs[1]),
                   out, count);
    return;
  }
  const int levels = std::bit_width(inputs.size()) + 1;
  TROUPE_CHECK(levels < kDepthMax);
  thread_local std::vector<T> scratch;
  scratch.resize(static_cast<std::size_t>(levels + 1) * kBlockElements);
  thread_local std::vector<const T*> blocks;
  blocks.resize(inputs.size());
  T* result = scratch.data() + static_cast<std::size_t>(levels) * kBlockElements;
  for (std::size_t begin = 0; begin < count; begin += kBlockElements) {
    const std::size_t length = std::min(kBlockElements, count - begin);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      blocks[i] = reinterpret_cast<const T*>(inputs[i]) + begin;
    const BlockTree<Op, T> tree{blocks, length, scratch.data()};
    // Into scratch first: `out` may be an input that a later leaf still reads.
    const T* from = tree.reduce(0, 1, result, 0);
    if (from != out + begin) std::memcpy(out + begin, from, length * sizeof(T));
  }
}

template <typename Op>
void reduce_bfloat16(std::span<const std::byte* const> inputs, Bfloat16* out, std::size_t count) {
  thread_local std::vector<float> wide;
  thread_local std::vector<const std::byte*> pointers;
  wide.resize(inputs.size() * kBlockElements);
  pointers.resize(inputs.size());
  std::array<float, kBlockElements> result;
  for (std::size_t begin = 0; begin < count; begin += kBlockElements) {
    const std::size_t length = std::min(kBlockElements, count - begin);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      float* block = wide.data() + i * kBlockElements;
      const auto* input = reinterpret_cast<const Bfloat16*>(inputs[i]) + begin;
      for (std::size_t k = 0; k < length; ++k) block[k] = widen(input[k]);
      pointers[i] = reinterpret_cast<const std::byte*>(block);
    }
    reduce_typed<Op, float>(pointers, result.data(), length);
    for (std::size_t k = 0; k < length; ++k) out[begin + k] = narrow(result[k]);
  }
}

template <typename Op>
void reduce_with(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count,
                 DataType type) {
  switch (type) {
    case DataType::kUint8:
      return reduce_typed<Op>(inputs, reinterpret_cast<std::uint8_t*>(out), count);
    case DataType::kInt32:
      return reduce_typed<Op>(inputs, reinterpret_cast<std::int32_t*>(out), count);
    case DataType::kInt64:
      return reduce_typed<Op>(inputs, reinterpret_cast<std::int64_t*>(out), count);
    case DataType::kFloat32:
      return reduce_typed<Op>(inputs, reinterpret_cast<float*>(out), count);
    case DataType::kFloat64:
      return reduce_typed<Op>(inputs, reinterpret_cast<double*>(out), count);
    case DataType::kBfloat16:
      return reduce_bfloat16<Op>(inputs, reinterpret_cast<Bfloat16*>(out), count);
  }
}

}  // namespace

void tree_reduce(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count,
                 DataType type, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_with<Sum>(inputs, out, count, type);
    case ReduceOp::kMax:
      return reduce_with<Max>(inputs, out, count, type);
    case ReduceOp::kMin:
      return reduce_with<Min>(inputs, out, count, type);
  }
}

}  // namespace troupe::collective
