// Kernels without a word between threads: activations, sums, rotations, conversions.

#include "train/cuda/kernels/elementwise.h"

#include "train/cuda/library/launch.cuh"

namespace troupe::train::cuda {
namespace {

// Packs as far as they go, the rest one by one: make(Tag<Op's N>, first element).
template <class Packed, class Single>
int flat(TroupeCudaStream* stream, const char* what, bool fits, std::int64_t count, Packed&& packed,
         Single&& single) {
  const std::int64_t packs = fits ? count / kPack : 0;
  for_each(stream, packed(), packs);
  for_each(stream, single(packs * kPack), count - packs * kPack);
  return launched(what, 1, count);
}

int convert(TroupeCudaStream* stream, const void* from, std::int32_t from_type, void* to,
            std::int32_t to_type, std::int64_t count) {
  constexpr const char* kWhat = "convert";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  if (count == 0) return TROUPE_CUDA_OK;
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "count", count));
  return with_type(kWhat, from_type, [&]<class From>(Tag<From>) {
    return with_type(kWhat, to_type, [&]<class To>(Tag<To>) {
      const auto* source = static_cast<const From*>(from);
      auto* target = static_cast<To*>(to);
      return flat(
          stream, kWhat, packs_fit(0, from, to), count,
          [&] {
            return Convert<From, To, kPack>{source, target};
          },
          [&](std::int64_t at) {
            return Convert<From, To, 1>{source + at, target + at};
          });
    });
  });
}

int round_to_bf16(TroupeCudaStream* stream, const float* x, float* out, std::int64_t count) {
  constexpr const char* kWhat = "round_to_bf16";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "count", count));
  return flat(
      stream, kWhat, packs_fit(0, x, out), count,
      [&] {
        return RoundToBf16<kPack>{x, out};
      },
      [&](std::int64_t at) {
        return RoundToBf16<1>{x + at, out + at};
      });
}

int add(TroupeCudaStream* stream, std::int32_t type, const void* a, const void* b, void* out,
        std::int64_t count) {
  constexpr const char* kWhat = "add";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "count", count));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
    auto* to = static_cast<T*>(out);
    return flat(
        stream, kWhat, packs_fit(0, a, b, out), count,
        [&] {
          return Add<T, kPack>{x, y, to};
        },
        [&](std::int64_t at) {
          return Add<T, 1>{x + at, y + at, to + at};
        });
  });
}

int gelu_forward(TroupeCudaStream* stream, std::int32_t type, const void* x, void* act,
                 std::int64_t count) {
  constexpr const char* kWhat = "gelu_forward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "count", count));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<T*>(act);
    return flat(
        stream, kWhat, packs_fit(0, x, act), count,
        [&] {
          return Gelu<T, kPack>{from, to};
        },
        [&](std::int64_t at) {
          return Gelu<T, 1>{from + at, to + at};
        });
  });
}

int gelu_backward(TroupeCudaStream* stream, std::int32_t type, void* x, const void* dact, void* act,
                  std::int64_t count) {
  constexpr const char* kWhat = "gelu_backward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "count", count));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    auto* to = static_cast<T*>(x);
    const auto* from = static_cast<const T*>(dact);
    auto* again = static_cast<T*>(act);
    return flat(
        stream, kWhat, packs_fit(0, x, dact, act), count,
        [&] {
          return GeluBackward<T, kPack>{to, from, again};
        },
        [&](std::int64_t at) {
          return GeluBackward<T, 1>{to + at, from + at, again ? again + at : nullptr};
        });
  });
}

// make(pack size, as a type) → op; rows of `width`, of which `packed` elements are one pack.
template <class F>
int by_rows(TroupeCudaStream* stream, const char* what, bool fits, std::int64_t rows,
            std::int64_t width, F&& make) {
  if (fits)
    for_each(stream, make.template operator()<kPack>(), rows * (width / kPack));
  else
    for_each(stream, make.template operator()<1>(), rows * width);
  return launched(what, rows, width);
}

int need_rows(const char* what, std::int64_t rows, std::int64_t width) {
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(what, "rows", rows));
  return need_positive(what, "width", width);
}

int dropout(TroupeCudaStream* stream, std::int32_t type, const TroupeCudaDropout* drop,
            const void* x, const void* residual, void* out, std::int64_t rows, std::int64_t width) {
  constexpr const char* kWhat = "dropout";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  TROUPE_CUDA_RETURN_IF_FAILED(need_dropout(kWhat, *drop));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return by_rows(stream, kWhat, packs_fit(width, x, residual, out), rows, width, [&]<int N>() {
      return DropOut<T, N>{dropout_of(*drop), static_cast<const T*>(x),
                           static_cast<const T*>(residual), static_cast<T*>(out), width};
    });
  });
}

int add_bias(TroupeCudaStream* stream, std::int32_t type, void* y, std::int64_t stride,
             const float* bias, std::int64_t rows, std::int64_t width) {
  constexpr const char* kWhat = "add_bias";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return by_rows(stream, kWhat, packs_fit(width, y, bias) && packs_fit(stride), rows, width,
                   [&]<int N>() {
                     return AddBias<T, N>{static_cast<T*>(y), stride, bias, width};
                   });
  });
}

int scale_columns(TroupeCudaStream* stream, std::int32_t type, void* y, std::int64_t stride,
                  const float* factors, std::int64_t rows, std::int64_t width) {
  constexpr const char* kWhat = "scale_columns";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return by_rows(stream, kWhat, packs_fit(width, y, factors) && packs_fit(stride), rows, width,
                   [&]<int N>() {
                     return ScaleColumns<T, N>{static_cast<T*>(y), stride, factors, width};
                   });
  });
}

int rms_norm_apply(TroupeCudaStream* stream, std::int32_t type, const void* x, const float* weight,
                   const float* rstd, void* y, std::int64_t rows, std::int64_t width) {
  constexpr const char* kWhat = "rms_norm_apply";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return by_rows(stream, kWhat, packs_fit(width, x, weight, y), rows, width, [&]<int N>() {
      return RmsApply<T, N>{static_cast<const T*>(x), weight, rstd, static_cast<T*>(y), width};
    });
  });
}

int layer_norm_apply(TroupeCudaStream* stream, std::int32_t type, const void* x,
                     const float* weight, const float* bias, const float* mean, const float* rstd,
                     void* y, std::int64_t rows, std::int64_t width) {
  constexpr const char* kWhat = "layer_norm_apply";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return by_rows(stream, kWhat, packs_fit(width, x, weight, bias, y), rows, width, [&]<int N>() {
      return LayerApply<T, N>{static_cast<const T*>(x), weight, bias, mean, rstd,
                              static_cast<T*>(y),       width};
    });
  });
}

int rope(TroupeCudaStream* stream, std::int32_t type, void* x, std::int64_t stride,
         const std::int32_t* positions, const float* cosine, const float* sine, std::int64_t rows,
         std::int64_t heads, std::int64_t head_dim, std::int32_t backward) {
  constexpr const char* kWhat = "rope";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, heads));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "head_dim", head_dim));
  if (head_dim % 2 != 0)
    return fail(TROUPE_CUDA_INVALID,
                "rope: heads of " + std::to_string(head_dim) + " have no halves");
  const std::int64_t half = head_dim / 2;
  const float sign = backward ? -1.0f : 1.0f;
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return by_rows(stream, kWhat, packs_fit(half, x, cosine, sine) && packs_fit(stride), rows,
                   heads * half, [&]<int N>() {
                     return Rope<T, N>{
                         static_cast<T*>(x), stride, positions, cosine, sine, heads, half, sign};
                   });
  });
}

int swiglu_forward(TroupeCudaStream* stream, std::int32_t type, const void* gate_up, void* act,
                   std::int64_t rows, std::int64_t width) {
  constexpr const char* kWhat = "swiglu_forward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return by_rows(stream, kWhat, packs_fit(width, gate_up, act), rows, width, [&]<int N>() {
      return Swiglu<T, N>{static_cast<const T*>(gate_up), static_cast<T*>(act), width};
    });
  });
}

int swiglu_backward(TroupeCudaStream* stream, std::int32_t type, void* gate_up, const void* dact,
                    void* act, std::int64_t rows, std::int64_t width) {
  constexpr const char* kWhat = "swiglu_backward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return by_rows(stream, kWhat, packs_fit(width, gate_up, dact, act), rows, width, [&]<int N>() {
      return SwigluBackward<T, N>{static_cast<T*>(gate_up), static_cast<const T*>(dact),
                                  static_cast<T*>(act), width};
    });
  });
}

int embedding_forward(TroupeCudaStream* stream, const std::int32_t* ids, const void* table,
                      std::int32_t table_type, void* out, std::int32_t type, std::int64_t rows,
                      std::int64_t width) {
  constexpr const char* kWhat = "embedding_forward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, table_type, [&]<class From>(Tag<From>) {
    return with_type(kWhat, type, [&]<class T>(Tag<T>) {
      return by_rows(stream, kWhat, packs_fit(width, table, out), rows, width, [&]<int N>() {
        return EmbeddingForward<From, T, N>{ids, static_cast<const From*>(table),
                                            static_cast<T*>(out), width};
      });
    });
  });
}

}  // namespace

void fill_elementwise(TroupeCudaTable& table) {
  table.convert = convert;
  table.round_to_bf16 = round_to_bf16;
  table.add = add;
  table.add_bias = add_bias;
  table.dropout = dropout;
  table.scale_columns = scale_columns;
  table.rms_norm_apply = rms_norm_apply;
  table.layer_norm_apply = layer_norm_apply;
  table.rope = rope;
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  table.gelu_forward = gelu_forward;
  table.gelu_backward = gelu_backward;
  table.embedding_forward = embedding_forward;
}

}  // namespace troupe::train::cuda
