#include "train/cuda/operators/device_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "train/cuda/device/stream.h"
#include "train/cuda/device/waiting.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kPartAlignBytes = 256;
constexpr std::int64_t kBf16Bytes = 2;
// What the vendor's kernels load at once, in elements of bf16.
constexpr std::int64_t kVector = 8;
// Fewer queries than keys are a prompt's next part, or the next token: a plan for every length
// would cost more than it saves.
constexpr std::int64_t kPartialQueriesMin = 64;
// Alignment, small tables, rounding of lengths to a kernel's tiles.
constexpr std::int64_t kWorkspaceSlackBytes = 1 << 20;
constexpr std::int64_t kTile = 128;

std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

// Elements of (batch, length) rows as they lie in memory.
std::int64_t extent(std::int64_t batch, std::int64_t batch_stride, std::int64_t length,
                    std::int64_t stride, std::int64_t width) {
  return (batch - 1) * batch_stride + (length - 1) * stride + width;
}

std::int64_t query_width(const TroupeCudaAttention& s) { return s.query_heads * s.head_dim; }
std::int64_t key_width(const TroupeCudaAttention& s) { return s.key_heads * s.head_dim; }

// Queries, keys and values fill the rows of one matrix, in this order.
bool packed(const TroupeCudaAttention& s) {
  return s.query_length == s.key_length && s.query_stride == s.key_stride &&
         s.key_batch_stride == s.key_length * s.key_stride &&
         s.query_stride == query_width(s) + 2 * key_width(s);
}
bool dense(const TroupeCudaAttention& s) {
  return s.query_stride == query_width(s) && s.key_stride == key_width(s) &&
         s.key_batch_stride == s.key_length * s.key_stride;
}

// One of eight lengths between a power of two and the next, at least 64 apart.
std::int64_t planned_length(std::int64_t length) {
  std::int64_t step = 64;
  while (step * 16 <= length) step *= 2;
  return round_up(length, step);
}

bool aligned(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }

// An address of elements, `elements` further.
template <class Void>
Void* shifted(Void* at, std::int64_t elements, std::int64_t element_bytes) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  return at ? static_cast<Byte*>(at) + elements * element_bytes : nullptr;
}

template <typename F>
void for_divisors_down(std::int64_t of, F&& use) {
  for (std::int64_t d = of; d >= 1; --d)
    if (of % d == 0 && use(d)) return;
}

}  // namespace

std::int64_t fused_attention_workspace_bound(const TroupeCudaFusedAttention& s) {
  std::int64_t bytes = kWorkspaceSlackBytes;
  if (!s.backward) return bytes;
  const std::int64_t sums = s.batch * s.query_heads * round_up(s.query_length, kTile);
  bytes += sums * 4;
  // Terms of dq: of every pair of tokens in bf16, or sums of fp32 that are added to in any order,
  // on some GPUs in two parts.
  bytes +=
      s.ordered ? sums * round_up(s.key_length, kTile) * kBf16Bytes : 2 * sums * s.head_dim * 4;
  // dk and dv of every query head, before those of a group are added.
  if (s.query_heads != s.key_heads)
    bytes += 2 * s.batch * s.query_heads * round_up(s.key_length, kTile) * s.head_dim * kBf16Bytes;
  return bytes;
}

// How the vendor's library computes a call: from the call alone.
struct DeviceAttention::Fused {
  TroupeCudaFusedAttention piece{};
  std::int64_t batch_pieces = 1, head_pieces = 1;
  bool converts = false;
  bool pads = false;  // one row, shorter than the piece's
  // Within the scratch memory.
  std::int64_t q = 0, k = 0, v = 0, out = 0, dout = 0, dq = 0, dk = 0, dv = 0;
  std::int64_t sums = 0, mask = 0, workspace = 0;
  std::int64_t workspace_bytes = 0, bytes = 0;

  // Whole groups: query heads and the key heads that they use.
  void cut_heads(const TroupeCudaAttention& s, std::int64_t key_heads) {
    head_pieces = s.key_heads / key_heads;
    piece.key_heads = key_heads;
    piece.query_heads = s.query_heads / head_pieces;
  }
  std::int64_t mask_bytes() const {
    return piece.batch * piece.query_length * piece.mask_stride * kBf16Bytes;
  }
  std::int64_t piece_bytes() const {
    return round_up(fused_attention_workspace_bound(piece), kPartAlignBytes) +
           round_up(mask_bytes(), kPartAlignBytes);
  }
  void cut(const TroupeCudaAttention& s, std::int64_t bytes_max) {
    const auto fits = [&] { return piece_bytes() <= bytes_max; };
    for_divisors_down(s.batch, [&](std::int64_t batch) {
      piece.batch = batch, batch_pieces = s.batch / batch;
      return fits();
    });
    // One row's heads lie together in the table of log_sum_exp, several rows' groups do not.
    if (!fits())
      for_divisors_down(s.key_heads, [&](std::int64_t key_heads) {
        cut_heads(s, key_heads);
        return fits();
      });
  }
  std::int64_t take(std::int64_t taken) {
    return std::exchange(bytes, round_up(bytes + taken, kPartAlignBytes));
  }
  // The parts of the scratch memory that do not depend on the pieces.
  void lay_out(const TroupeCudaAttention& s, AttentionPass pass) {
    const std::int64_t length = piece.query_length;
    const std::int64_t outputs = s.batch * length * query_width(s) * kBf16Bytes;
    const auto operands = [&](std::int64_t& first, std::int64_t& second, std::int64_t& third) {
      if (packed(s)) {
        first = take(s.batch * length * s.query_stride * kBf16Bytes);
        second = first + query_width(s) * kBf16Bytes;
        third = second + key_width(s) * kBf16Bytes;
        return;
      }
      const std::int64_t keys =
          extent(s.batch, s.key_batch_stride, s.key_length, s.key_stride, key_width(s));
      first = take(kBf16Bytes * extent(s.batch, s.query_length * s.query_stride, s.query_length,
                                       s.query_stride, query_width(s)));
      second = take(keys * kBf16Bytes), third = take(keys * kBf16Bytes);
    };
    if (converts || pads) {
      operands(q, k, v);
      out = take(outputs);
      if (pass == AttentionPass::kBackward) {
        dout = take(outputs);
        operands(dq, dk, dv);
      }
    }
    if (pass == AttentionPass::kForward || pads) sums = take(s.batch * s.query_heads * length * 4);
  }
  void lay_out_piece() {
    mask = take(mask_bytes());
    workspace_bytes = fused_attention_workspace_bound(piece);
    workspace = take(workspace_bytes);
  }
};

struct DeviceAttention::Tensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  // Forward writes out and log_sum_exp, which may be null; backward reads them.
  void* out = nullptr;
  float* log_sum_exp = nullptr;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

bool DeviceAttention::Less::operator()(const TroupeCudaFusedAttention& a,
                                       const TroupeCudaFusedAttention& b) const {
  const auto fields = [](const TroupeCudaFusedAttention& s) {
    return std::tie(s.batch, s.query_length, s.key_length, s.query_heads, s.key_heads, s.head_dim,
                    s.query_stride, s.key_stride, s.key_batch_stride, s.out_stride, s.window,
                    s.mask_stride, s.scale, s.backward, s.ordered);
  };
  return fields(a) < fields(b);
}

DeviceAttention::DeviceAttention(std::shared_ptr<const CudaLibrary> library,
                                 AttentionOptions options)
    : library_(std::move(library)), options_(std::move(options)) {}

DeviceAttention::~DeviceAttention() {
  for (const auto& [shape, plan] : plans_)
    if (plan.plan) table().attention_plan_destroy(plan.plan);
}

bool DeviceAttention::available() {
  if (!available_) {
    available_ = table().fused_attention_available() == TROUPE_CUDA_OK;
    if (!*available_) why_unavailable_ = table().error_text();
  }
  return *available_;
}

void DeviceAttention::tell(Reason reason, const AttentionCall& call, const std::string& why) {
  if (!told_.insert(reason).second) return;
  const TroupeCudaAttention& s = call.shape;
  options_.notice(
      fmt::format("attention of {} x {} tokens, {} heads on {} of {}, is computed by Troupe's own "
                  "kernel, which "
                  "is slower than cuDNN: {}",
                  s.batch, s.query_length, s.query_heads, s.key_heads, s.head_dim, why));
}

std::optional<DeviceAttention::Fused> DeviceAttention::choose(const AttentionCall& call,
                                                              AttentionPass pass,
                                                              std::int64_t available_bytes) {
  const TroupeCudaAttention& s = call.shape;
  const bool partial = s.query_length != s.key_length;
  if (!options_.fused || call.arithmetic != Arithmetic::kBf16 ||
      (partial && s.query_length < kPartialQueriesMin))
    return std::nullopt;
  const auto refuse = [&](Reason reason, const std::string& why) {
    tell(reason, call, why);
    return std::nullopt;
  };
  if (!available()) return refuse(Reason::kUnavailable, why_unavailable_);
  if (call.dropout.threshold != 0)
    return refuse(Reason::kDropout,
                  "the model drops out attention's weights by counters, and cuDNN draws masks of "
                  "its own; attention_dropout (GPT-2: attn_pdrop) of 0 in config.json is faster");
  Fused fused;
  fused.converts = s.type == TROUPE_CUDA_F32;
  // A window alone the library knows; what else raises first_key is a mask.
  const bool masked = s.first_key != nullptr && call.window == 0;
  if (s.head_dim % kVector != 0 || s.query_stride % kVector != 0 || s.key_stride % kVector != 0 ||
      s.key_batch_stride % kVector != 0)
    return refuse(Reason::kShape, fmt::format("heads of {} and rows of {} and {} elements are not "
                                              "all multiples of {}",
                                              s.head_dim, s.query_stride, s.key_stride, kVector));
  if (masked && partial)
    return refuse(Reason::kShape, "there are segments, and fewer queries than keys");
  if (fused.converts && pass == AttentionPass::kBackward && !packed(s) && !dense(s))
    return refuse(Reason::kShape, "fp32 gradients have gaps between their rows");
  const std::int64_t length =
      s.batch == 1 && packed(s) ? planned_length(s.query_length) : s.query_length;
  fused.pads = length != s.query_length;
  fused.piece = {.batch = s.batch,
                 .query_length = length,
                 .key_length = fused.pads ? length : s.key_length,
                 .query_heads = s.query_heads,
                 .key_heads = s.key_heads,
                 .head_dim = s.head_dim,
                 .query_stride = s.query_stride,
                 .key_stride = s.key_stride,
                 .key_batch_stride = fused.pads ? length * s.key_stride : s.key_batch_stride,
                 .out_stride = query_width(s),
                 .window = call.window,
                 .mask_stride = 0,
                 .scale = s.scale,
                 .backward = pass == AttentionPass::kBackward,
                 .ordered = pass == AttentionPass::kBackward && options_.ordered};
  if (masked) fused.piece.mask_stride = round_up(fused.piece.key_length, kVector);
  fused.lay_out(s, pass);
  const std::int64_t room = available_bytes - fused.bytes;
  fused.cut(s, std::min(options_.piece_bytes, room));
  const std::int64_t piece_bytes = fused.piece_bytes();
  if (piece_bytes > options_.workspace_max_bytes || piece_bytes > room)
    return refuse(Reason::kWorkspace,
                  fmt::format("a group of heads would need {} bytes of workspace, and {} may be "
                              "had{}",
                              piece_bytes, std::min(room, options_.workspace_max_bytes),
                              options_.ordered ? "; gradients in any order need less" : ""));
  fused.lay_out_piece();
  return fused;
}

std::int64_t DeviceAttention::own_scratch_bytes(const AttentionCall& call,
                                                AttentionPass pass) const {
  return pass == AttentionPass::kBackward ? table().attention_scratch_bytes(&call.shape) : 0;
}

std::int64_t DeviceAttention::scratch_bytes(const AttentionCall& call, AttentionPass pass,
                                            std::int64_t available) {
  const std::optional<Fused> fused = choose(call, pass, available);
  return std::max(own_scratch_bytes(call, pass), fused ? fused->bytes : 0);
}

int DeviceAttention::drop_oldest(TroupeCudaStream* stream) {
  const auto oldest = std::min_element(
      plans_.begin(), plans_.end(),
      [](const auto& a, const auto& b) { return a.second.last_used < b.second.last_used; });
  if (oldest->second.plan) {
    // Its kernels go with it.
    if (const int code = finish(table(), stream, Deadline::after(kStreamWaitMax)))
      return code == TROUPE_CUDA_NOT_READY ? TROUPE_CUDA_FAILED : code;
    ++plans_dropped_;
    if (const int code = table().attention_plan_destroy(oldest->second.plan)) return code;
  }
  plans_.erase(oldest);
  return TROUPE_CUDA_OK;
}

int DeviceAttention::plan_for(TroupeCudaContext* context, TroupeCudaStream* stream,
                              const AttentionCall& call, const Fused& fused,
                              TroupeCudaAttentionPlan** plan) {
  *plan = nullptr;
  const auto found = plans_.find(fused.piece);
  if (found != plans_.end()) {
    found->second.last_used = ++uses_;
    *plan = found->second.plan;
    return TROUPE_CUDA_OK;
  }
  if (std::cmp_greater_equal(plans_.size(), options_.plans_max))
    if (const int code = drop_oldest(stream)) return code;
  Plan made{.last_used = ++uses_};
  const int code =
      table().attention_plan_create(context, &fused.piece, &made.plan, &made.workspace_bytes);
  if (code == TROUPE_CUDA_UNSUPPORTED || code == TROUPE_CUDA_UNAVAILABLE) {
    tell(code == TROUPE_CUDA_UNSUPPORTED ? Reason::kRefused : Reason::kUnavailable, call,
         table().error_text());
    made.plan = nullptr;
  } else if (code != TROUPE_CUDA_OK) {
    return code;
  } else if (made.workspace_bytes > fused.workspace_bytes) {
    tell(Reason::kWorkspace, call,
         fmt::format("it wants {} bytes of workspace, {} were expected", made.workspace_bytes,
                     fused.workspace_bytes));
    if (const int destroyed = table().attention_plan_destroy(made.plan)) return destroyed;
    made.plan = nullptr;
  }
  plans_.emplace(fused.piece, made);
  *plan = made.plan;
  return TROUPE_CUDA_OK;
}

int DeviceAttention::plan(TroupeCudaContext* context, TroupeCudaStream* stream,
                          const AttentionCall& call, AttentionPass pass,
                          std::int64_t scratch_bytes) {
  const std::optional<Fused> fused = choose(call, pass, scratch_bytes);
  TroupeCudaAttentionPlan* made = nullptr;
  return fused ? plan_for(context, stream, call, *fused, &made) : static_cast<int>(TROUPE_CUDA_OK);
}

int DeviceAttention::run_fused(TroupeCudaContext* context, TroupeCudaStream* stream,
                               const AttentionCall& call, AttentionPass pass,
                               const Tensors& tensors, std::span<std::byte> memory, bool* done) {
  *done = false;
  const std::optional<Fused> chosen = choose(call, pass, static_cast<std::int64_t>(memory.size()));
  if (!chosen) return TROUPE_CUDA_OK;
  const Fused& f = *chosen;
  std::byte* const scratch = memory.data();
  const TroupeCudaAttention& s = call.shape;
  const bool backward = pass == AttentionPass::kBackward;
  const std::int64_t element = f.converts ? 4 : kBf16Bytes;
  const bool staged = f.converts || f.pads;
  Tensors t = tensors;
  const auto refuse_addresses = [&](const char* why) {
    tell(Reason::kAddresses, call, why);
    return TROUPE_CUDA_OK;
  };
  if ((f.converts || f.pads) && packed(s) &&
      !(t.k == shifted(t.q, query_width(s), element) &&
        t.v == shifted(t.k, key_width(s), element) &&
        (!backward || (t.dk == shifted(t.dq, query_width(s), element) &&
                       t.dv == shifted(t.dk, key_width(s), element)))))
    return refuse_addresses("queries, keys and values do not stand in this order");
  if (!staged)
    for (const void* at :
         {t.q, t.k, t.v, static_cast<const void*>(t.out), t.dout, static_cast<const void*>(t.dq),
          static_cast<const void*>(t.dk), static_cast<const void*>(t.dv)})
      if (!aligned(at))
        return refuse_addresses("a tensor does not begin at a multiple of 16 bytes");
  TroupeCudaAttentionPlan* plan = nullptr;
  if (const int code = plan_for(context, stream, call, f, &plan)) return code;
  if (!plan) return TROUPE_CUDA_OK;

  const std::int64_t outputs = s.batch * s.query_length * query_width(s);
  const std::int64_t queries = extent(s.batch, s.query_length * s.query_stride, s.query_length,
                                      s.query_stride, query_width(s));
  const std::int64_t keys =
      extent(s.batch, s.key_batch_stride, s.key_length, s.key_stride, key_width(s));
  const std::int64_t matrix = s.batch * s.query_length * s.query_stride;
  // Into the scratch memory, or out of it again.
  const auto convert = [&](const void* from, void* to, std::int64_t count, bool widen) {
    if (!f.converts) return table().copy(stream, from, to, count * kBf16Bytes);
    return table().convert(stream, from, widen ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32, to,
                           widen ? TROUPE_CUDA_F32 : TROUPE_CUDA_BF16, count);
  };
  // Zeros behind the row of a part of the scratch memory that holds `width` elements to a token.
  const auto pad = [&](std::int64_t part, std::int64_t width) {
    return table().fill(stream, scratch + part + s.query_length * width * kBf16Bytes, 0,
                        (f.piece.query_length - s.query_length) * width * kBf16Bytes);
  };
  const auto pad_inputs = [&] {
    if (const int code = pad(f.q, s.query_stride)) return code;
    if (!backward) return static_cast<int>(TROUPE_CUDA_OK);
    if (const int code = pad(f.out, query_width(s))) return code;
    if (const int code = pad(f.dout, query_width(s))) return code;
    if (const int code =
            table().fill(stream, scratch + f.sums, 0, s.query_heads * f.piece.query_length * 4))
      return code;
    return table().copy_rows(stream, t.log_sum_exp, s.query_length * 4, scratch + f.sums,
                             f.piece.query_length * 4, s.query_heads, s.query_length * 4);
  };
  // The three operands, or their gradients: as one matrix or each by itself.
  const auto convert_three = [&](const void* const(&from)[3], void* const(&to)[3], bool widen) {
    if (packed(s)) return convert(from[0], to[0], matrix, widen);
    const std::int64_t counts[3] = {queries, keys, keys};
    for (int i = 0; i < 3; ++i)
      if (const int code = convert(from[i], to[i], counts[i], widen)) return code;
    return static_cast<int>(TROUPE_CUDA_OK);
  };
  if (f.pads)
    if (const int code = pad_inputs()) return code;
  if (staged) {
    if (const int code =
            convert_three({t.q, t.k, t.v}, {scratch + f.q, scratch + f.k, scratch + f.v}, false))
      return code;
    t.q = scratch + f.q, t.k = scratch + f.k, t.v = scratch + f.v;
    if (backward) {
      if (const int code = convert(t.out, scratch + f.out, outputs, false)) return code;
      if (const int code = convert(t.dout, scratch + f.dout, outputs, false)) return code;
      t.dout = scratch + f.dout;
      t.dq = scratch + f.dq, t.dk = scratch + f.dk, t.dv = scratch + f.dv;
    }
    t.out = scratch + f.out;
  }
  if (!t.log_sum_exp || f.pads) t.log_sum_exp = reinterpret_cast<float*>(scratch + f.sums);

  void* workspace = scratch + f.workspace;
  const std::int64_t length = f.piece.query_length;
  for (std::int64_t b = 0; b < f.batch_pieces; ++b) {
    const std::int64_t row = b * f.piece.batch;
    void* mask = nullptr;
    if (f.piece.mask_stride > 0) {
      TroupeCudaAttention rows = s;
      rows.batch = f.piece.batch;
      rows.first_key = s.first_key + row * s.query_length;
      mask = scratch + f.mask;
      if (const int code = table().attention_mask(stream, &rows, mask, length, f.piece.mask_stride))
        return code;
    }
    for (std::int64_t h = 0; h < f.head_pieces; ++h) {
      const std::int64_t query_head = h * f.piece.query_heads, key_head = h * f.piece.key_heads;
      const std::int64_t query_at = row * length * s.query_stride + query_head * s.head_dim;
      const std::int64_t key_at = row * s.key_batch_stride + key_head * s.head_dim;
      const std::int64_t out_at = row * length * query_width(s) + query_head * s.head_dim;
      float* sums = t.log_sum_exp + (row * s.query_heads + query_head) * length;
      const auto at = [](auto* base, std::int64_t i) { return shifted(base, i, kBf16Bytes); };
      const int code =
          backward ? table().attention_plan_backward(
                         stream, plan, at(t.q, query_at), at(t.k, key_at), at(t.v, key_at), mask,
                         at(t.out, out_at), sums, at(t.dout, out_at), at(t.dq, query_at),
                         at(t.dk, key_at), at(t.dv, key_at), workspace, f.workspace_bytes)
                   : table().attention_plan_forward(
                         stream, plan, at(t.q, query_at), at(t.k, key_at), at(t.v, key_at), mask,
                         at(t.out, out_at), sums, workspace, f.workspace_bytes);
      if (code) return code;
    }
  }
  *done = true;
  ++passes_.fused;
  if (!staged) return TROUPE_CUDA_OK;
  if (!backward) {
    if (f.pads && tensors.log_sum_exp)
      if (const int code = table().copy_rows(stream, t.log_sum_exp, length * 4, tensors.log_sum_exp,
                                             s.query_length * 4, s.query_heads, s.query_length * 4))
        return code;
    return convert(t.out, tensors.out, outputs, true);
  }
  return convert_three({t.dq, t.dk, t.dv}, {tensors.dq, tensors.dk, tensors.dv}, true);
}

int DeviceAttention::forward(TroupeCudaContext* context, TroupeCudaStream* stream,
                             const AttentionCall& call, const void* q, const void* k, const void* v,
                             void* out, float* log_sum_exp, std::span<std::byte> scratch) {
  bool done = false;
  const Tensors tensors{.q = q, .k = k, .v = v, .out = out, .log_sum_exp = log_sum_exp};
  if (const int code =
          run_fused(context, stream, call, AttentionPass::kForward, tensors, scratch, &done))
    return code;
  if (done) return TROUPE_CUDA_OK;
  ++passes_.own;
  if (call.dropout.threshold != 0)
    return table().attention_dropout_forward(stream, &call.shape, &call.dropout, q, k, v, out,
                                             log_sum_exp);
  return table().attention_forward(stream, &call.shape, q, k, v, out, log_sum_exp);
}

int DeviceAttention::backward(TroupeCudaContext* context, TroupeCudaStream* stream,
                              const AttentionCall& call, const void* q, const void* k,
                              const void* v, const void* out, const float* log_sum_exp,
                              const void* dout, void* dq, void* dk, void* dv,
                              std::span<std::byte> scratch) {
  bool done = false;
  const Tensors tensors{.q = q,
                        .k = k,
                        .v = v,
                        .out = const_cast<void*>(out),
                        .log_sum_exp = const_cast<float*>(log_sum_exp),
                        .dout = dout,
                        .dq = dq,
                        .dk = dk,
                        .dv = dv};
  if (const int code =
          run_fused(context, stream, call, AttentionPass::kBackward, tensors, scratch, &done))
    return code;
  if (done) return TROUPE_CUDA_OK;
  ++passes_.own;
  if (call.dropout.threshold != 0)
    return table().attention_dropout_backward(stream, &call.shape, &call.dropout, q, k, v, out,
                                              log_sum_exp, dout, dq, dk, dv, scratch.data());
  return table().attention_backward(stream, &call.shape, q, k, v, out, log_sum_exp, dout, dq, dk,
                                    dv, scratch.data());
}

}  // namespace troupe::train
