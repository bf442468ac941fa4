#pragma once
// Who computes attention on a GPU: the vendor's library where it does, Troupe's own kernel where it
// does not.
//
// The choice depends on the shape, the types and the library alone, never on time or on what free
// memory there is: a step that is computed again has the same bits. Where the own kernel serves
// though the vendor's was wanted, a notice says why, once for each kind of reason.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "train/cuda/device/cuda_library.h"
#include "train/tensor/operators.h"

namespace troupe::train {

struct AttentionOptions {
  // False: Troupe's own kernel for everything.
  bool fused = true;
  // The vendor's gradients are summed in a fixed order: the same bits every time, for a workspace
  // of batch × heads × length² bf16 numbers on some GPUs.
  bool ordered = true;
  // Rows, and groups of heads, are computed one after the other where a workspace would else be
  // larger than this.
  std::int64_t piece_bytes = std::int64_t{1} << 30;
  // What a single group of heads of a single row may take; beyond it the own kernel serves.
  std::int64_t workspace_max_bytes = std::int64_t{4} << 30;
  // Plans that are kept; the one that was not used for longest goes.
  int plans_max = 128;
  std::function<void(const std::string&)> notice = [](const std::string&) {};
};

// What is computed, besides the vendor-independent shape.
struct AttentionCall {
  TroupeCudaAttention shape{};
  // kBf16: products may round their operands to bf16. The vendor's library computes nothing else.
  Arithmetic arithmetic = Arithmetic::kFp32;
  // AttentionShape::window.
  std::int64_t window = 0;
  // Of the weights. The vendor's library has masks of its own: it serves no dropout.
  TroupeCudaDropout dropout{};
};

enum class AttentionPass { kForward, kBackward };

// What the vendor's library needs for a shape at most: a bound that needs no device. What wants
// more when it is planned is not used.
std::int64_t fused_attention_workspace_bound(const TroupeCudaFusedAttention& shape);

// Activations of fp32 whose arithmetic is kBf16 are rounded into scratch memory, computed by the
// vendor's library, and widened again. A single row, which may have any length, is computed with
// zeros behind it up to one of few lengths, in scratch memory too: every length would else be a
// plan. What stands behind a row changes nothing of it. Used by one thread; of one stream's work.
class DeviceAttention {
 public:
  DeviceAttention(std::shared_ptr<const CudaLibrary> library, AttentionOptions options);
  // What was enqueued is done.
  ~DeviceAttention();
  DeviceAttention(const DeviceAttention&) = delete;
  DeviceAttention& operator=(const DeviceAttention&) = delete;

  // Scratch that the pass takes, whoever computes it, where `available` bytes are there: what it
  // likes best, smaller pieces where that is more, or what the own kernel takes, be it more.
  // Touches no device.
  std::int64_t scratch_bytes(const AttentionCall& call, AttentionPass pass,
                             std::int64_t available = std::numeric_limits<std::int64_t>::max());

  // Makes the plan that the pass will ask for with so much scratch memory, where the vendor's
  // library is to serve and the tensors begin at multiples of 16 bytes. A code of the table.
  int plan(TroupeCudaContext* context, TroupeCudaStream* stream, const AttentionCall& call,
           AttentionPass pass, std::int64_t scratch_bytes);

  // Enqueue. Tensors as Operators::attention_forward and _backward have them, of call.shape.type.
  // `scratch`: scratch_bytes() of what is available, aligned to 256 bytes. A code of the table.
  int forward(TroupeCudaContext* context, TroupeCudaStream* stream, const AttentionCall& call,
              const void* q, const void* k, const void* v, void* out, float* log_sum_exp,
              std::span<std::byte> scratch);
  int backward(TroupeCudaContext* context, TroupeCudaStream* stream, const AttentionCall& call,
               const void* q, const void* k, const void* v, const void* out,
               const float* log_sum_exp, const void* dout, void* dq, void* dk, void* dv,
               std::span<std::byte> scratch);

  // Passes by the vendor's library and by the own kernel, so far.
  struct Passes {
    std::int64_t fused = 0, own = 0;
  };
  Passes passes() const { return passes_; }
  // Plans that were destroyed so far: work that was kept to be done again may use them.
  std::int64_t plans_dropped() const { return plans_dropped_; }

 private:
  struct Fused;
  struct Tensors;
  // Why the own kernel serves: a notice for each, once.
  enum class Reason { kUnavailable, kShape, kAddresses, kWorkspace, kRefused, kDropout };
  struct Less {
    bool operator()(const TroupeCudaFusedAttention& a, const TroupeCudaFusedAttention& b) const;
  };
  struct Plan {
    TroupeCudaAttentionPlan* plan = nullptr;  // null: the library refuses this shape
    std::int64_t workspace_bytes = 0;
    std::int64_t last_used = 0;
  };

  const TroupeCudaTable& table() const { return library_->table(); }
  bool available();
  void tell(Reason reason, const AttentionCall& call, const std::string& why);
  // Null where the own kernel is to serve.
  std::optional<Fused> choose(const AttentionCall& call, AttentionPass pass,
                              std::int64_t available);
  std::int64_t own_scratch_bytes(const AttentionCall& call, AttentionPass pass) const;
  // *plan is null where the own kernel is to serve.
  int plan_for(TroupeCudaContext* context, TroupeCudaStream* stream, const AttentionCall& call,
               const Fused& fused, TroupeCudaAttentionPlan** plan);
  int drop_oldest(TroupeCudaStream* stream);
  // *done is false where the own kernel is to serve; nothing was enqueued then.
  int run_fused(TroupeCudaContext* context, TroupeCudaStream* stream, const AttentionCall& call,
                AttentionPass pass, const Tensors& tensors, std::span<std::byte> scratch,
                bool* done);

  std::shared_ptr<const CudaLibrary> library_;
  AttentionOptions options_;
  std::optional<bool> available_;
  std::string why_unavailable_;
  std::set<Reason> told_;
  std::map<TroupeCudaFusedAttention, Plan, Less> plans_;
  std::int64_t uses_ = 0, plans_dropped_ = 0;
  Passes passes_;
};

}  // namespace troupe::train
