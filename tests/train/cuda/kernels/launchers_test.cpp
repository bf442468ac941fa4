// The library's own launchers and kernels, function by function of the table, against train/cpu:
// which kernel an address and a width choose, grids, strides, scratch, shared memory.

#include <limits>

#include "tests/train/cuda/kernels/device_call.h"
#include "train/tensor/dropout.h"

namespace troupe::train::tests {
namespace {

using Table = TroupeCudaTable;
using Stream = TroupeCudaStream*;
constexpr float kEps = 1e-5f;
// Of what has no exponential and no sum across threads.
constexpr Tolerance kSameBits{0, 0};

struct Shape {
  std::int64_t rows, width;
};
// One element, packs that fit and do not, one row, more rows and columns than a block or a part
// has.
constexpr Shape kShapes[] = {{1, 1}, {1, 64}, {3, 37}, {70, 264}, {2, 1100}, {130, 16}, {5, 2056}};

// part(a call, rows, width, elements that tensors begin behind 256 bytes).
template <class F>
void for_shapes(CallDevice& device, const std::string& name, F&& part) {
  for (const std::int32_t type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
    for (const Shape& s : kShapes) {
      DeviceCall call(device, name, type);
      CAPTURE(s.rows);
      CAPTURE(s.width);
      part(call, s.rows, s.width, std::int64_t{0});
    }
  // Widths that fit, at addresses that do not.
  DeviceCall call(device, name, TROUPE_CUDA_BF16);
  part(call, std::int64_t{3}, std::int64_t{64}, std::int64_t{1});
}

// Where the activation goes that a gradient's kernel makes again.
enum class Again { kNowhere, kElsewhere, kOverItsGradient };
constexpr Again kAgain[] = {Again::kNowhere, Again::kElsewhere, Again::kOverItsGradient};
void* again_at(Again again, void* gradient, void* elsewhere) {
  return again == Again::kNowhere ? nullptr : again == Again::kElsewhere ? elsewhere : gradient;
}

std::vector<std::int32_t> counted(std::int64_t count, std::int32_t step, std::int32_t modulus) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<std::int32_t>(i) * step % modulus);
  return out;
}

TEST_CASE("launchers: sums, activations and conversions of flat ranges") {
  CallDevice device;
  for_shapes(
      device, "add", [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
        const std::int64_t n = rows * width;
        void *a = d.activations(n, 1, off), *b = d.activations(n, 1, off), *out = d.activations(n);
        d.check([=, &d](const Table& t, Stream s) { return t.add(s, d.type, a, b, out, n); },
                kSameBits);
      });
  for_shapes(
      device, "gelu", [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
        const std::int64_t n = rows * width;
        void *x = d.activations(n, 3, off), *act = d.activations(n);
        d.check([=, &d](const Table& t, Stream s) { return t.gelu_forward(s, d.type, x, act, n); });
      });
  for (const Again again : kAgain)
    for_shapes(device, "gelu_backward",
               [again](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
                 const std::int64_t n = rows * width;
                 void *x = d.activations(n, 3, off), *dact = d.activations(n),
                      *act = d.activations(n);
                 d.check([=, &d](const Table& t, Stream s) {
                   return t.gelu_backward(s, d.type, x, dact, again_at(again, dact, act), n);
                 });
               });
  for (const std::int32_t to : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
    for_shapes(device, "convert",
               [to](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
                 const std::int64_t n = rows * width;
                 void* from = d.activations(n, 1, off);
                 void* out = to == TROUPE_CUDA_BF16 ? d.bf16(n) : d.floats(n);
                 d.check([=, &d](const Table& t,
                                 Stream s) { return t.convert(s, from, d.type, out, to, n); },
                         kSameBits);
               });
  for (const std::int64_t n : {1, 8, 1003, 5000}) {
    DeviceCall d(device, "round_to_bf16", TROUPE_CUDA_F32);
    float *x = d.floats(n), *out = d.floats(n);
    d.check([=](const Table& t, Stream s) { return t.round_to_bf16(s, x, out, n); }, kSameBits);
  }
}

TEST_CASE("launchers: rows, with what belongs to a row or a column") {
  CallDevice device;
  for_shapes(device, "add_bias",
             [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
               // Strides that packs fit, and that they do not.
               const std::int64_t stride = width + (rows % 2 == 0 ? 8 : 3);
               void* y = d.activations((rows - 1) * stride + width, 1, off);
               float* bias = d.floats(width);
               d.check(
                   [=, &d](const Table& t, Stream s) {
                     return t.add_bias(s, d.type, y, stride, bias, rows, width);
                   },
                   kSameBits);
             });
  for_shapes(device, "scale_columns",
             [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
               const std::int64_t stride = width + (rows % 2 == 0 ? 8 : 3);
               void* y = d.activations((rows - 1) * stride + width, 1, off);
               float* factors = d.floats(width);
               d.check(
                   [=, &d](const Table& t, Stream s) {
                     return t.scale_columns(s, d.type, y, stride, factors, rows, width);
                   },
                   kSameBits);
             });
  for (const bool residual : {false, true})
    for_shapes(device, "dropout",
               [residual](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
                 const std::int64_t n = rows * width;
                 void *x = d.activations(n, 1, off), *sum = d.activations(n);
                 TroupeCudaDropout drop{};
                 drop.threshold = 20000, drop.scale = 1.4f, drop.seed = 42, drop.epoch = 3;
                 drop.site = dropout_site(DropoutPlace::kMlpOutput, 17);
                 drop.samples = d.integers(counted(rows, 7, 1000));
                 drop.tokens = d.integers(counted(rows, 3, 100));
                 d.check(
                     [=, &d](const Table& t, Stream s) {
                       return t.dropout(s, d.type, &drop, x, residual ? sum : nullptr, sum, rows,
                                        width);
                     },
                     kSameBits);
               });
  for_shapes(device, "rms_norm_apply",
             [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
               void *x = d.activations(rows * width, 1, off), *y = d.activations(rows * width);
               float *weight = d.floats(width), *rstd = d.floats(rows);
               d.check(
                   [=, &d](const Table& t, Stream s) {
                     return t.rms_norm_apply(s, d.type, x, weight, rstd, y, rows, width);
                   },
                   kSameBits);
             });
  for_shapes(device, "layer_norm_apply",
             [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
               void *x = d.activations(rows * width, 1, off), *y = d.activations(rows * width);
               float *weight = d.floats(width), *bias = d.floats(width);
               float *mean = d.floats(rows), *rstd = d.floats(rows);
               d.check(
                   [=, &d](const Table& t, Stream s) {
                     return t.layer_norm_apply(s, d.type, x, weight, bias, mean, rstd, y, rows,
                                               width);
                   },
                   kSameBits);
             });
  for_shapes(
      device, "swiglu", [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
        void *both = d.activations(2 * rows * width, 3, off), *act = d.activations(rows * width);
        d.check([=, &d](const Table& t, Stream s) {
          return t.swiglu_forward(s, d.type, both, act, rows, width);
        });
      });
  for (const Again again : kAgain)
    for_shapes(device, "swiglu_backward",
               [again](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
                 void* both = d.activations(2 * rows * width, 3, off);
                 void *dact = d.activations(rows * width), *act = d.activations(rows * width);
                 d.check([=, &d](const Table& t, Stream s) {
                   return t.swiglu_backward(s, d.type, both, dact, again_at(again, dact, act), rows,
                                            width);
                 });
               });
}

struct Heads {
  std::int64_t rows, heads, head_dim;
  std::int64_t more;  // from row to row than the heads take
};
constexpr Heads kHeads[] = {{1, 1, 2, 0},  {5, 3, 16, 8}, {7, 2, 64, 0},
                            {3, 5, 10, 1}, {2, 3, 80, 5}, {20, 9, 32, 16}};

TEST_CASE("launchers: heads side by side in rows") {
  CallDevice device;
  for (const std::int32_t type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
    for (const auto& [rows, heads, head_dim, more] : kHeads) {
      CAPTURE(head_dim);
      const std::int64_t width = heads * head_dim, stride = width + more;
      const std::int64_t other = stride + 8;
      const auto extent = [&](std::int64_t s) { return (rows - 1) * s + width; };
      for (const std::int32_t backward : {0, 1}) {
        DeviceCall d(device, "rope", type);
        void* x = d.activations(extent(stride));
        const std::int32_t* positions = d.integers(counted(rows, 3, 11));
        float *cosine = d.floats(11 * head_dim / 2), *sine = d.floats(11 * head_dim / 2);
        d.check(
            [=](const Table& t, Stream s) {
              return t.rope(s, type, x, stride, positions, cosine, sine, rows, heads, head_dim,
                            backward);
            },
            kSameBits);
      }
      for (const bool in_place : {false, true}) {
        DeviceCall d(device, "head_norm_forward", type);
        void* x = d.activations(extent(stride));
        void* y = in_place ? x : d.activations(extent(other));
        float *weight = d.floats(head_dim), *rstd = d.floats(rows * heads);
        d.check([=](const Table& t, Stream s) {
          return t.head_norm_forward(s, type, x, stride, weight, y, in_place ? stride : other, rstd,
                                     rows, heads, head_dim, kEps);
        });
      }
      DeviceCall d(device, "head_norm_backward", type);
      void *dy = d.activations(extent(stride)), *x = d.activations(extent(other));
      float *weight = d.floats(head_dim), *rstd = d.floats(rows * heads);
      float* dweight = d.floats(head_dim);
      void* scratch = d.scratch(d.table().row_sum_scratch_bytes(rows * heads, head_dim));
      d.check([=](const Table& t, Stream s) {
        return t.head_norm_backward(s, type, dy, stride, x, other, weight, rstd, dweight, rows,
                                    heads, head_dim, scratch);
      });
    }
}

TEST_CASE("launchers: norms, and what is summed down columns") {
  CallDevice device;
  for_shapes(device, "rms_norm_forward",
             [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
               void *x = d.activations(rows * width, 1, off), *y = d.activations(rows * width);
               float *weight = d.floats(width), *rstd = d.floats(rows);
               d.check([=, &d](const Table& t, Stream s) {
                 return t.rms_norm_forward(s, d.type, x, weight, y, rstd, rows, width, kEps);
               });
             });
  for (const bool in_place : {false, true})
    for_shapes(device, "residual_rms_norm_forward",
               [in_place](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
                 const std::int64_t n = rows * width;
                 void *x = d.activations(n, 1, off), *delta = d.activations(n);
                 void *sum = in_place ? x : d.activations(n), *y = d.activations(n);
                 float *weight = d.floats(width), *rstd = d.floats(rows);
                 d.check([=, &d](const Table& t, Stream s) {
                   return t.residual_rms_norm_forward(s, d.type, x, delta, weight, sum, y, rstd,
                                                      rows, width, kEps);
                 });
               });
  for_shapes(device, "rms_norm_backward",
             [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
               const std::int64_t n = rows * width;
               void *dy = d.activations(n, 1, off), *x = d.activations(n), *dx = d.activations(n);
               float *weight = d.floats(width), *rstd = d.floats(rows);
               float* dweight = d.floats(width);
               void* scratch = d.scratch(d.table().row_sum_scratch_bytes(rows, width));
               d.check([=, &d](const Table& t, Stream s) {
                 return t.rms_norm_backward(s, d.type, dy, x, weight, rstd, dx, dweight, rows,
                                            width, scratch);
               });
             });
  for_shapes(device, "layer_norm_forward",
             [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
               void *x = d.activations(rows * width, 1, off), *y = d.activations(rows * width);
               float *weight = d.floats(width), *bias = d.floats(width);
               float *mean = d.floats(rows), *rstd = d.floats(rows);
               d.check(
                   [=, &d](const Table& t, Stream s) {
                     return t.layer_norm_forward(s, d.type, x, weight, bias, y, mean, rstd, rows,
                                                 width, kEps);
                   },
                   // A row's mean is a sum of numbers of either sign.
                   {.f32 = 1e-4});
             });
  for_shapes(device, "layer_norm_backward",
             [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
               const std::int64_t n = rows * width;
               void *dy = d.activations(n, 1, off), *x = d.activations(n), *dx = d.activations(n);
               float *weight = d.floats(width), *mean = d.floats(rows), *rstd = d.floats(rows);
               float *dweight = d.floats(width), *dbias = d.floats(width);
               void* scratch = d.scratch(2 * d.table().row_sum_scratch_bytes(rows, width));
               d.check([=, &d](const Table& t, Stream s) {
                 return t.layer_norm_backward(s, d.type, dy, x, weight, mean, rstd, dx, dweight,
                                              dbias, rows, width, scratch);
               });
             });
  for_shapes(device, "bias_backward",
             [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
               const std::int64_t stride = width + (rows % 2 == 0 ? 8 : 3);
               void* dy = d.activations((rows - 1) * stride + width, 1, off);
               float* dbias = d.floats(width);
               void* scratch = d.scratch(d.table().row_sum_scratch_bytes(rows, width));
               d.check([=, &d](const Table& t, Stream s) {
                 return t.bias_backward(s, d.type, dy, stride, dbias, rows, width, scratch);
               });
             });
}

TEST_CASE("launchers: rows of a table, and their gradients, in the order of rows") {
  CallDevice device;
  for (const std::int32_t table_type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
    for_shapes(
        device, "embedding_forward",
        [table_type](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
          const std::int32_t* ids = d.integers(counted(rows, 5, 9));
          void* from = table_type == TROUPE_CUDA_BF16 ? d.bf16(9 * width) : d.floats(9 * width);
          void* out = d.activations(rows * width, 1, off);
          d.check(
              [=, &d](const Table& t, Stream s) {
                return t.embedding_forward(s, ids, from, table_type, out, d.type, rows, width);
              },
              kSameBits);
        });
  const auto backward = [](DeviceCall& d, std::int64_t rows, std::int64_t width, std::int64_t off) {
    const std::int32_t* ids = d.integers(counted(rows, 5, 9));
    void* dout = d.activations(rows * width, 1, off);
    float* dweight = d.floats(9 * width);
    void* scratch = d.scratch(d.table().embedding_scratch_bytes(rows));
    // Rows of an id are added in their order on both sides.
    d.check(
        [=, &d](const Table& t, Stream s) {
          return t.embedding_backward(s, d.type, ids, dout, dweight, rows, width, scratch);
        },
        kSameBits);
  };
  for_shapes(device, "embedding_backward", backward);
  // More rows than a tile of the sort, and than two.
  for (const std::int64_t rows : {2049, 5000}) {
    DeviceCall d(device, "embedding_backward of many rows", TROUPE_CUDA_F32);
    backward(d, rows, 3, 0);
  }
}

TEST_CASE("launchers: cross entropy, its gradient nowhere, in place, elsewhere and in bf16") {
  CallDevice device;
  struct Target {
    std::int32_t type;
    bool elsewhere;
  };
  for (const auto& [type, elsewhere] :
       {Target{-1, false}, Target{TROUPE_CUDA_F32, false}, Target{TROUPE_CUDA_F32, true},
        Target{TROUPE_CUDA_BF16, true}})
    for (const auto& [rows, classes] :
         {Shape{1, 1}, Shape{3, 7}, Shape{2, 64}, Shape{4, 1003}, Shape{2, 5000}, Shape{1, 4099}}) {
      CAPTURE(rows);
      CAPTURE(classes);
      DeviceCall d(device, "cross_entropy", type);
      const std::int64_t n = rows * classes;
      float* gradient_floats = type == TROUPE_CUDA_F32 && elsewhere ? d.floats(n) : nullptr;
      void* gradient = type == TROUPE_CUDA_BF16 ? d.bf16(n) : gradient_floats;
      // What is in the logits is nobody's business, but where they become the gradient.
      float* logits =
          type == TROUPE_CUDA_F32 && !elsewhere ? d.floats(n, 8) : d.destroyed_floats(n, 8);
      const std::int32_t* labels = d.integers(counted(rows, 7, static_cast<std::int32_t>(classes)));
      float* losses = d.floats(rows);
      d.check([=](const Table& t, Stream s) {
        return t.cross_entropy(s, logits, labels, losses, 0.25f, gradient, type, rows, classes);
      });
    }
}

TEST_CASE("launchers: attention of every tile, with segments, past keys and dropout") {
  CallDevice device;
  struct Case {
    std::int64_t batch, queries, keys, query_heads, key_heads, head_dim, segment;
    bool drops;
  };
  for (const std::int32_t type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
    for (const Case& c :
         {Case{2, 5, 5, 2, 1, 8, 0, false}, Case{1, 66, 66, 1, 1, 64, 0, true},
          Case{1, 67, 67, 2, 1, 40, 20, true}, Case{1, 33, 33, 2, 1, 100, 0, false},
          Case{1, 66, 66, 1, 1, 128, 50, false}, Case{1, 35, 35, 2, 1, 132, 10, true},
          Case{1, 36, 36, 1, 1, 256, 0, false}, Case{2, 3, 69, 2, 1, 64, 0, false},
          Case{1, 1, 9, 3, 1, 7, 0, true}}) {
      CAPTURE(c.head_dim);
      CAPTURE(c.queries);
      DeviceCall d(device, "attention", type);
      const std::int64_t query_width = c.query_heads * c.head_dim;
      const std::int64_t key_width = c.key_heads * c.head_dim;
      const std::int64_t tokens = c.batch * c.queries;
      TroupeCudaAttention shape{};
      shape.batch = c.batch, shape.query_length = c.queries, shape.key_length = c.keys;
      shape.query_heads = c.query_heads, shape.key_heads = c.key_heads;
      shape.head_dim = c.head_dim;
      shape.query_stride = query_width + 5, shape.key_stride = key_width + 3;
      shape.key_batch_stride = shape.key_stride * (c.keys + 2);
      shape.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
      shape.type = type;
      std::vector<std::int32_t> first, samples, places;
      for (std::int64_t i = 0; i < tokens; ++i) {
        const std::int64_t at = c.keys - c.queries + i % c.queries;
        const std::int64_t begin = c.segment > 0 ? at / c.segment * c.segment : 0;
        first.push_back(static_cast<std::int32_t>(begin));
        samples.push_back(static_cast<std::int32_t>(i / c.queries * 100 + begin));
        places.push_back(static_cast<std::int32_t>(at - begin));
      }
      if (c.segment > 0) shape.first_key = d.integers(first);
      TroupeCudaDropout drop{};
      if (c.drops) {
        drop.threshold = 20000, drop.scale = 1.4f, drop.seed = 42, drop.epoch = 3;
        drop.site = dropout_site(DropoutPlace::kAttention, 7);
        drop.samples = d.integers(samples), drop.tokens = d.integers(places);
      }
      const std::int64_t queries = (tokens - 1) * shape.query_stride + query_width;
      const std::int64_t keys =
          (c.batch - 1) * shape.key_batch_stride + (c.keys - 1) * shape.key_stride + key_width;
      void *q = d.activations(queries, 2), *k = d.activations(keys, 2), *v = d.activations(keys);
      void* out = d.activations(tokens * query_width);
      float* log_sum_exp = d.floats(tokens * c.query_heads);
      const bool backward = c.queries == c.keys;
      void *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr, *scratch = nullptr;
      if (backward) {
        dout = d.activations(tokens * query_width);
        dq = d.activations(queries), dk = d.activations(keys), dv = d.activations(keys);
        scratch = d.scratch(d.table().attention_scratch_bytes(&shape));
      }
      const Tolerance tolerance{.f32 = 1e-5, .bf16 = 1.6e-2};
      d.check(
          [=](const Table& t, Stream s) {
            const int code =
                c.drops ? t.attention_dropout_forward(s, &shape, &drop, q, k, v, out, log_sum_exp)
                        : t.attention_forward(s, &shape, q, k, v, out, log_sum_exp);
            if (code != TROUPE_CUDA_OK || !backward) return code;
            return c.drops ? t.attention_dropout_backward(s, &shape, &drop, q, k, v, out,
                                                          log_sum_exp, dout, dq, dk, dv, scratch)
                           : t.attention_backward(s, &shape, q, k, v, out, log_sum_exp, dout, dq,
                                                  dk, dv, scratch);
          },
          tolerance);
      if (c.segment > 0) {
        DeviceCall m(device, "attention_mask", TROUPE_CUDA_BF16);
        TroupeCudaAttention masked = shape;
        masked.first_key = m.integers(first);
        const std::int64_t rows = c.queries + 3, stride = (c.keys + 15) / 8 * 8;
        void* mask = m.bf16(c.batch * rows * stride);
        m.check([=](const Table& t,
                    Stream s) { return t.attention_mask(s, &masked, mask, rows, stride); },
                kSameBits);
      }
    }
}

TEST_CASE("launchers: the optimizer's ranges, tiles and trees are the CPU's bit by bit") {
  CallDevice device;
  for (const std::int32_t type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
    for (const bool random : {false, true})
      for (const std::int64_t count : {1, 1003, 4096})
        for (const std::int64_t off : {0, 1}) {
          if (random && type == TROUPE_CUDA_F32) continue;
          DeviceCall d(device, "adamw", type);
          TroupeCudaAdamW step{};
          step.beta1_rest = 0.1f, step.beta2 = 0.95f, step.beta2_rest = 0.05f;
          step.step_size = 1e-3f, step.root_correction = 0.3f, step.epsilon = 1e-8f;
          step.keep = 0.99f, step.state_type = type, step.round_randomly = random;
          step.seed = 17, step.first_element = 1001 + off;
          void* p = d.activations(count, 1, off);
          float* g = d.floats(count);
          void *m = d.activations(count), *v = d.squares(count);
          float* scale = d.floats(1);
          d.check(
              [=](const Table& t, Stream s) { return t.adamw(s, &step, p, g, m, v, count, scale); },
              kSameBits);
        }
  for (const std::int64_t tile : {301, 1000, 1024})
    for (const std::int64_t count : {1, 1003, 3000}) {
      DeviceCall d(device, "tile_sums_of_squares", TROUPE_CUDA_F32);
      float* x = d.floats(count);
      double* sums = d.doubles((count + tile - 1) / tile);
      d.check(
          [=](const Table& t, Stream s) { return t.tile_sums_of_squares(s, x, count, tile, sums); },
          {.f32 = 1e-12});
    }
  for (const std::int32_t type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
    for (const std::int32_t out_type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
      for (const std::int32_t count : {1, 3, 8, 9, 64})
        for (const std::int64_t elements : {5, 1003}) {
          CAPTURE(count);
          DeviceCall d(device, "tree_sum", type);
          std::vector<const void*> parts;
          for (std::int32_t i = 0; i < count; ++i) parts.push_back(d.activations(elements));
          // Over the first part, where types allow.
          void* out = type == out_type               ? const_cast<void*>(parts[0])
                      : out_type == TROUPE_CUDA_BF16 ? d.bf16(elements)
                                                     : d.floats(elements);
          d.check(
              [=](const Table& t, Stream s) {
                return t.tree_sum(s, parts.data(), count, type, out, out_type, elements);
              },
              kSameBits);
        }
}

TEST_CASE("launchers: matrices of 8 bits, as they are and transposed") {
  CallDevice device;
  struct Case {
    std::int64_t rows, columns, more;
  };
  for (const std::int32_t type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
    for (const std::int32_t format : {TROUPE_CUDA_E4M3, TROUPE_CUDA_E5M2})
      for (const std::int64_t transpose : {0, 1})
        for (const auto& [rows, columns, more] :
             {Case{1, 1, 0}, Case{3, 40, 0}, Case{70, 65, 3}, Case{130, 200, 8}, Case{64, 64, 0}}) {
          CAPTURE(rows);
          DeviceCall d(device, "quantize", type);
          TroupeCudaQuantize q{};
          q.rows = rows, q.columns = columns, q.stride = columns + more;
          q.type = type, q.format = format, q.transpose = transpose;
          const std::int64_t out_rows = transpose ? columns : rows;
          q.out_stride = ((transpose ? rows : columns) + 15) / 16 * 16 + (rows == 3 ? 16 : 0);
          void* x = d.activations((rows - 1) * q.stride + columns);
          void* out = d.bytes(out_rows * q.out_stride);
          float* scales = d.floats(2);
          void* scratch = d.scratch(d.table().quantize_scratch_bytes());
          d.check(
              [=](const Table& t, Stream s) { return t.quantize(s, &q, x, out, scales, scratch); },
              kSameBits);
        }
}

TEST_CASE("launchers refuse what kernels cannot, by name") {
  CallDevice device;
  DeviceCall d(device, "attention of heads too large", TROUPE_CUDA_F32);
  TroupeCudaAttention shape{};
  shape.batch = shape.query_length = shape.key_length = shape.query_heads = shape.key_heads = 1;
  shape.head_dim = shape.query_stride = shape.key_stride = shape.key_batch_stride = 257;
  shape.type = TROUPE_CUDA_F32;
  float *q = d.floats(257), *k = d.floats(257), *v = d.floats(257), *out = d.floats(257);
  d.check_refused([=](const Table& t,
                      Stream s) { return t.attention_forward(s, &shape, q, k, v, out, nullptr); },
                  "attention_forward: heads of 257 elements, at most 256 are served");
}

}  // namespace
}  // namespace troupe::train::tests
