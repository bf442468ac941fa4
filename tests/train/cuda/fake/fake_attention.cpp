// The fake's cuDNN: attention of bf16 tensors, computed by train/cpu in fp32 and rounded.

#include <algorithm>
#include <vector>

#include "runtime/base/check.h"
#include "tests/train/cuda/fake/fake_launch.h"
#include "train/tensor/convert.h"

struct TroupeCudaAttentionPlan {
  TroupeCudaContext* context = nullptr;
  TroupeCudaFusedAttention shape{};
  std::int64_t workspace_bytes = 0;
  std::int64_t number = 0;
};

namespace troupe::tests::fake {
namespace {

using train::Operators;

constexpr std::uint16_t kMasked = 0xf14a;
constexpr std::int64_t kHeadDimMax = 128;

int available() {
  if (const int code = state().enter("fused_attention_available")) return code;
  if (state().options().cudnn_version > 0) return TROUPE_CUDA_OK;
  return state().fail(TROUPE_CUDA_UNAVAILABLE, "libcudnn.so.9 is not there");
}

std::int64_t workspace_of(const TroupeCudaFusedAttention& s) {
  const std::int64_t given = state().options().cudnn_workspace_bytes;
  if (given >= 0) return given;
  const std::int64_t sums = s.batch * s.query_heads * s.query_length;
  return s.backward ? sums * 4 + (s.ordered ? sums * s.key_length * 2 : sums * s.head_dim * 4)
                    : 256;
}

int plan_create(TroupeCudaContext* context, const TroupeCudaFusedAttention* shape,
                TroupeCudaAttentionPlan** plan, std::int64_t* workspace_bytes) {
  *plan = nullptr;
  if (const int code = state().enter("attention_plan_create", context->device)) return code;
  const TroupeCudaFusedAttention& s = *shape;
  if (state().options().cudnn_version == 0)
    return state().fail(TROUPE_CUDA_UNAVAILABLE, "libcudnn.so.9 is not there");
  if (s.head_dim % 8 != 0 || s.head_dim > kHeadDimMax)
    return state().fail(TROUPE_CUDA_UNSUPPORTED, "no engine for heads of this size");
  for (const std::int64_t stride :
       {s.query_stride, s.key_stride, s.key_batch_stride, s.out_stride, s.mask_stride})
    if (stride % 8 != 0) return state().fail(TROUPE_CUDA_INVALID, "a stride is no multiple of 8");
  if (s.backward && s.query_length != s.key_length)
    return state().fail(TROUPE_CUDA_INVALID, "keys that have no queries");
  *workspace_bytes = workspace_of(s);
  *plan = new TroupeCudaAttentionPlan{context, s, *workspace_bytes, state().add_plan()};
  state().count_object("attention plan", 1);
  return TROUPE_CUDA_OK;
}

int plan_destroy(TroupeCudaAttentionPlan* plan) {
  const int code = state().enter("attention_plan_destroy");
  state().count_object("attention plan", -1);
  state().remove_plan(plan->number);
  delete plan;
  return code;
}

// Elements of a piece's tensors as they lie in memory.
struct Sizes {
  explicit Sizes(const TroupeCudaFusedAttention& s)
      : tokens(s.batch * s.query_length),
        queries(extent(tokens, s.query_stride, s.query_heads * s.head_dim)),
        keys((s.batch - 1) * s.key_batch_stride +
             extent(s.key_length, s.key_stride, s.key_heads * s.head_dim)),
        outputs(extent(tokens, s.out_stride, s.query_heads * s.head_dim)),
        statistics(tokens * s.query_heads),
        mask(s.mask_stride > 0 ? extent(tokens, s.mask_stride, s.key_length) : 0) {}
  std::int64_t tokens, queries, keys, outputs, statistics, mask;
};

Launch prepare(TroupeCudaStream* stream, const char* function, TroupeCudaAttentionPlan* plan,
               bool backward, const void* q, const void* k, const void* v, const void* mask,
               const void* out, const float* log_sum_exp, void* workspace,
               std::int64_t workspace_bytes) {
  const TroupeCudaFusedAttention& s = plan->shape;
  const Sizes sizes(s);
  const auto aligned = [](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  };
  Launch launch(stream, function);
  launch
      .requires_that(plan->context == stream->context && (s.backward != 0) == backward,
                     "a plan of something else")
      .requires_that(workspace_bytes >= plan->workspace_bytes, "less workspace than was asked for")
      .requires_that((mask != nullptr) == (s.mask_stride > 0), "a mask too many, or none")
      .requires_that(aligned(q) && aligned(k) && aligned(v) && aligned(out),
                     "an address is no multiple of 16")
      .needs(q, sizes.queries, TROUPE_CUDA_BF16, "q")
      .needs(k, sizes.keys, TROUPE_CUDA_BF16, "k")
      .needs(v, sizes.keys, TROUPE_CUDA_BF16, "v")
      .needs(mask, sizes.mask, TROUPE_CUDA_BF16, "mask", true)
      .needs(out, sizes.outputs, TROUPE_CUDA_BF16, "out")
      .floats(log_sum_exp, sizes.statistics, "log_sum_exp")
      .scratch(workspace, workspace_bytes)
      .by_plan(plan->number);
  return launch;
}

// What train/cpu takes instead of masks and windows.
std::vector<std::int32_t> first_keys(const TroupeCudaFusedAttention& s, const void* mask) {
  std::vector<std::int32_t> first;
  for (std::int64_t row = 0; row < s.batch * s.query_length; ++row) {
    const std::int64_t last = s.key_length - s.query_length + row % s.query_length;
    std::int64_t key = s.window > 0 ? std::max<std::int64_t>(0, last - s.window + 1) : 0;
    if (mask) {
      const auto* m = static_cast<const std::uint16_t*>(mask) + row * s.mask_stride;
      key = std::find(m, m + s.key_length, 0) - m;
      TROUPE_CHECK(key <= last, "a query that sees no key");
      TROUPE_CHECK(std::all_of(m, m + key, [](std::uint16_t x) { return x == kMasked; }));
      TROUPE_CHECK(std::all_of(m + key, m + last + 1, [](std::uint16_t x) { return x == 0; }));
    }
    first.push_back(static_cast<std::int32_t>(key));
  }
  return first;
}

train::AttentionShape shape_of(const TroupeCudaFusedAttention& s,
                               const std::vector<std::int32_t>& first) {
  return {.batch = s.batch,
          .query_length = s.query_length,
          .key_length = s.key_length,
          .query_heads = s.query_heads,
          .key_heads = s.key_heads,
          .head_dim = s.head_dim,
          .query_stride = s.query_stride,
          .key_stride = s.key_stride,
          .key_batch_stride = s.key_batch_stride,
          .scale = s.scale,
          .first_key = first.data()};
}

// Heads alone: between a row's and the next one's lie other tensors.
void store(const float* from, std::int64_t from_stride, void* to, std::int64_t to_stride,
           std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row)
    train::bf16_from_float(from + row * from_stride,
                           static_cast<std::uint16_t*>(to) + row * to_stride, width);
}

std::vector<float> dense(const float* from, std::int64_t stride, std::int64_t rows,
                         std::int64_t width) {
  std::vector<float> to;
  for (std::int64_t row = 0; row < rows; ++row)
    to.insert(to.end(), from + row * stride, from + row * stride + width);
  return to;
}

int plan_forward(TroupeCudaStream* stream, TroupeCudaAttentionPlan* plan, const void* q,
                 const void* k, const void* v, const void* mask, void* out, float* log_sum_exp,
                 void* workspace, std::int64_t workspace_bytes) {
  const TroupeCudaFusedAttention s = plan->shape;
  return prepare(stream, "attention_plan_forward", plan, false, q, k, v, mask, out, log_sum_exp,
                 workspace, workspace_bytes)
      .run([=](Operators& cpu) {
        const Sizes sizes(s);
        const In queries(TROUPE_CUDA_BF16, q, sizes.queries), keys(TROUPE_CUDA_BF16, k, sizes.keys),
            values(TROUPE_CUDA_BF16, v, sizes.keys);
        const std::int64_t width = s.query_heads * s.head_dim;
        std::vector<float> result(static_cast<std::size_t>(sizes.tokens * width));
        const std::vector<std::int32_t> first = first_keys(s, mask);
        cpu.attention_forward(shape_of(s, first), queries, keys, values, result.data(),
                              log_sum_exp);
        store(result.data(), width, out, s.out_stride, sizes.tokens, width);
      });
}

int plan_backward(TroupeCudaStream* stream, TroupeCudaAttentionPlan* plan, const void* q,
                  const void* k, const void* v, const void* mask, const void* out,
                  const float* log_sum_exp, const void* dout, void* dq, void* dk, void* dv,
                  void* workspace, std::int64_t workspace_bytes) {
  const TroupeCudaFusedAttention s = plan->shape;
  const Sizes sizes(s);
  return prepare(stream, "attention_plan_backward", plan, true, q, k, v, mask, out, log_sum_exp,
                 workspace, workspace_bytes)
      .needs(dout, sizes.outputs, TROUPE_CUDA_BF16, "dout")
      .needs(dq, sizes.queries, TROUPE_CUDA_BF16, "dq")
      .needs(dk, sizes.keys, TROUPE_CUDA_BF16, "dk")
      .needs(dv, sizes.keys, TROUPE_CUDA_BF16, "dv")
      .run([=](Operators& cpu) {
        const In queries(TROUPE_CUDA_BF16, q, sizes.queries), keys(TROUPE_CUDA_BF16, k, sizes.keys),
            values(TROUPE_CUDA_BF16, v, sizes.keys), outputs(TROUPE_CUDA_BF16, out, sizes.outputs),
            gradients(TROUPE_CUDA_BF16, dout, sizes.outputs);
        const std::int64_t width = s.query_heads * s.head_dim, key_width = s.key_heads * s.head_dim;
        const std::vector<float> result = dense(outputs, s.out_stride, sizes.tokens, width),
                                 gradient = dense(gradients, s.out_stride, sizes.tokens, width);
        std::vector<float> query_gradient(static_cast<std::size_t>(sizes.queries)),
            key_gradient(static_cast<std::size_t>(sizes.keys)), value_gradient(key_gradient);
        const std::vector<std::int32_t> first = first_keys(s, mask);
        cpu.attention_backward(shape_of(s, first), queries, keys, values, result.data(),
                               log_sum_exp, gradient.data(), query_gradient.data(),
                               key_gradient.data(), value_gradient.data());
        store(query_gradient.data(), s.query_stride, dq, s.query_stride, sizes.tokens, width);
        for (const auto& [from, to] :
             {std::pair(&key_gradient, dk), std::pair(&value_gradient, dv)})
          for (std::int64_t b = 0; b < s.batch; ++b)
            store(from->data() + b * s.key_batch_stride, s.key_stride,
                  static_cast<std::uint16_t*>(to) + b * s.key_batch_stride, s.key_stride,
                  s.key_length, key_width);
      });
}

int mask(TroupeCudaStream* stream, const TroupeCudaAttention* given, void* to,
         std::int64_t mask_rows, std::int64_t stride) {
  const std::int64_t queries = given->query_length, rows = given->batch * mask_rows;
  const std::int32_t* first_key = given->first_key;
  return Launch(stream, "attention_mask")
      .requires_that(stride % 8 == 0 && stride >= given->key_length && mask_rows >= queries,
                     "a mask that does not hold the queries and keys")
      .needs(first_key, given->batch * queries, TROUPE_CUDA_I32, "first_key")
      .needs(to, rows * stride, TROUPE_CUDA_BF16, "mask")
      .run([=](Operators&) {
        auto* elements = static_cast<std::uint16_t*>(to);
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t key = 0; key < stride; ++key) {
            const std::int64_t query = std::min(row % mask_rows, queries - 1);
            const bool seen = key >= first_key[row / mask_rows * queries + query];
            elements[row * stride + key] = seen ? std::uint16_t{0} : kMasked;
          }
      });
}

}  // namespace

void fill_attention(TroupeCudaTable& table) {
  table.fused_attention_available = available;
  table.attention_plan_create = plan_create;
  table.attention_plan_destroy = plan_destroy;
  table.attention_plan_forward = plan_forward;
  table.attention_plan_backward = plan_backward;
  table.attention_mask = mask;
}

}  // namespace troupe::tests::fake
