// Attention by cuDNN's graphs, described with cudnn-frontend.

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "train/cuda/library/objects.h"

#if TROUPE_CUDA_HAS_CUDNN
// Graphs are not written to files: a third of the compiler's time.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "train/cuda/library/cudnn_functions.h"

struct TroupeCudaAttentionPlan {
  TroupeCudaContext* context = nullptr;
  TroupeCudaFusedAttention shape{};
  std::int64_t workspace_bytes = 0;
  cudnn_frontend::graph::Graph graph;
};

namespace troupe::train::cuda {

// A handle has one stream at a time.
struct AttentionLibrary {
  const CudnnFunctions* functions = nullptr;
  cudnnHandle_t handle = nullptr;
  std::mutex mutex;
};

void AttentionLibraryDeleter::operator()(AttentionLibrary* library) const {
  if (library->handle) library->functions->destroy(library->handle);
  delete library;
}

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using fe::graph::Tensor_attributes;

// What a graph's tensors are called when it runs.
enum Operand : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kMask,
  kOut,
  kLogSumExp,
  kOutGradient,
  kQGradient,
  kKGradient,
  kVGradient
};

std::string text_of(const TroupeCudaFusedAttention& s) {
  return fmt::format("attention{} of {} x {} queries and {} keys, {} of {} heads of {}{}{}",
                     s.backward ? "'s gradients" : "", s.batch, s.query_length, s.key_length,
                     s.query_heads, s.key_heads, s.head_dim,
                     s.window ? fmt::format(", window {}", s.window) : "",
                     s.mask_stride ? ", masked" : "");
}

// cuDNN tells a refusal by listing every engine's, in many lines.
std::string one_line(std::string text) {
  constexpr std::size_t kLengthMax = 300;
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > kLengthMax) text = text.substr(0, kLengthMax) + " …";
  return text;
}

// OK, or `otherwise` with the library's words, unless the device itself has failed.
int check_frontend(fe::error_t result, TroupeCudaCode otherwise,
                   const TroupeCudaFusedAttention& shape, const char* during) {
  if (result.is_good()) return TROUPE_CUDA_OK;
  const std::string what = fmt::format("cuDNN, {}, {}", text_of(shape), during);
  const cudaError_t error = device_error();
  if (error != cudaSuccess && code_of(error) == TROUPE_CUDA_DEVICE_LOST) return check(error, what);
  return fail(otherwise, fmt::format("{}: {}", what, one_line(result.get_message())));
}

// The context's handle, made when it is first needed.
int library_of(TroupeCudaContext* context, AttentionLibrary** library) {
  const std::lock_guard lock(context->mutex);
  if (!context->attention) {
    const CudnnFunctions* functions = nullptr;
    TROUPE_CUDA_RETURN_IF_FAILED(cudnn(&functions));
    auto made = std::unique_ptr<AttentionLibrary, AttentionLibraryDeleter>(new AttentionLibrary());
    made->functions = functions;
    const cudnnStatus_t status = functions->create(&made->handle);
    if (status != CUDNN_STATUS_SUCCESS)
      return fail(TROUPE_CUDA_UNAVAILABLE,
                  fmt::format("cudnnCreate on device {}: {}", context->device,
                              functions->error_string(status)));
    context->attention = std::move(made);
  }
  *library = context->attention.get();
  return TROUPE_CUDA_OK;
}

// The graph of a shape. cuDNN counts (batch, heads, length, head_dim).
class Description {
 public:
  Description(fe::graph::Graph& graph, const TroupeCudaFusedAttention& shape)
      : graph_(graph), s_(shape) {}

  void describe() {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const Tensor q = input(queries("q", kQ, s_.query_stride)), k = input(keys("k", kK)),
                 v = input(keys("v", kV));
    if (!s_.backward) {
      auto attributes = common(fe::graph::SDPA_attributes()).set_generate_stats(true);
      const auto [out, sums] = graph_.sdpa(q, k, v, attributes);
      output(out, queries("out", kOut, s_.out_stride));
      output(sums, statistics());
      return;
    }
    auto attributes =
        common(fe::graph::SDPA_backward_attributes()).set_deterministic_algorithm(s_.ordered != 0);
    const auto [dq, dk, dv] = graph_.sdpa_backward(
        q, k, v, input(queries("out", kOut, s_.out_stride)),
        input(queries("dout", kOutGradient, s_.out_stride)), input(statistics()), attributes);
    output(dq, queries("dq", kQGradient, s_.query_stride));
    output(dk, keys("dk", kKGradient));
    output(dv, keys("dv", kVGradient));
  }

 private:
  // Of one row's heads side by side, rows `stride` apart.
  static Tensor_attributes heads(const char* name, Operand operand, std::int64_t batch,
                                 std::int64_t count, std::int64_t length, std::int64_t head_dim,
                                 std::int64_t batch_stride, std::int64_t stride) {
    return Tensor_attributes()
        .set_name(name)
        .set_uid(operand)
        .set_data_type(fe::DataType_t::BFLOAT16)
        .set_dim({batch, count, length, head_dim})
        .set_stride({batch_stride, head_dim, stride, 1});
  }
  Tensor_attributes queries(const char* name, Operand operand, std::int64_t stride) const {
    return heads(name, operand, s_.batch, s_.query_heads, s_.query_length, s_.head_dim,
                 s_.query_length * stride, stride);
  }
  Tensor_attributes keys(const char* name, Operand operand) const {
    return heads(name, operand, s_.batch, s_.key_heads, s_.key_length, s_.head_dim,
                 s_.key_batch_stride, s_.key_stride);
  }
  Tensor_attributes statistics() const {
    return Tensor_attributes()
        .set_name("log_sum_exp")
        .set_uid(kLogSumExp)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({s_.batch, s_.query_heads, s_.query_length, 1})
        .set_stride({s_.query_heads * s_.query_length, s_.query_length, 1, 1});
  }

  Tensor input(const Tensor_attributes& attributes) { return graph_.tensor(attributes); }
  static void output(const Tensor& tensor, const Tensor_attributes& as) {
    tensor->set_output(true)
        .set_name(as.get_name())
        .set_uid(as.get_uid())
        .set_data_type(as.get_data_type())
        .set_dim(as.get_dim())
        .set_stride(as.get_stride());
  }

  // Both kinds of attributes are set alike.
  template <class Attributes>
  Attributes common(Attributes attributes) {
    attributes.set_name("attention").set_attn_scale(s_.scale);
    attributes.set_diagonal_alignment(s_.query_length == s_.key_length
                                          ? fe::DiagonalAlignment_t::TOP_LEFT
                                          : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    attributes.set_diagonal_band_right_bound(0);
    if (s_.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(s_.window));
    if (s_.mask_stride > 0)
      attributes.set_bias(
          input(Tensor_attributes()
                    .set_name("mask")
                    .set_uid(kMask)
                    .set_data_type(fe::DataType_t::BFLOAT16)
                    .set_dim({s_.batch, 1, s_.query_length, s_.key_length})
                    .set_stride({s_.query_length * s_.mask_stride, s_.query_length * s_.mask_stride,
                                 s_.mask_stride, 1})));
    return attributes;
  }

  fe::graph::Graph& graph_;
  const TroupeCudaFusedAttention& s_;
};

int check_shape(const TroupeCudaFusedAttention& s) {
  const auto invalid = [&](const char* why) {
    return fail(TROUPE_CUDA_INVALID, text_of(s) + ": " + why);
  };
  if (s.batch <= 0 || s.query_length <= 0 || s.query_heads <= 0 || s.key_heads <= 0 ||
      s.head_dim <= 0)
    return invalid("sizes must be positive");
  if (s.query_length > s.key_length) return invalid("more queries than keys");
  if (s.query_heads % s.key_heads != 0) return invalid("key heads do not divide query heads");
  if (s.backward && s.query_length != s.key_length)
    return invalid("gradients take as many queries as keys");
  if (s.window < 0 || s.mask_stride < 0 || (s.mask_stride > 0 && s.mask_stride < s.key_length))
    return invalid("a mask or window of an impossible size");
  return TROUPE_CUDA_OK;
}

int build(TroupeCudaAttentionPlan& plan, AttentionLibrary& library) {
  const auto unsupported = [&](fe::error_t result, const char* during) {
    return check_frontend(result, TROUPE_CUDA_UNSUPPORTED, plan.shape, during);
  };
  Description(plan.graph, plan.shape).describe();
  TROUPE_CUDA_RETURN_IF_FAILED(unsupported(plan.graph.validate(), "checking"));
  const std::lock_guard lock(library.mutex);
  TROUPE_CUDA_RETURN_IF_FAILED(
      unsupported(plan.graph.build_operation_graph(library.handle), "describing"));
  TROUPE_CUDA_RETURN_IF_FAILED(
      unsupported(plan.graph.create_execution_plans({fe::HeurMode_t::A}), "choosing an engine"));
  TROUPE_CUDA_RETURN_IF_FAILED(unsupported(plan.graph.check_support(), "checking an engine"));
  TROUPE_CUDA_RETURN_IF_FAILED(unsupported(plan.graph.build_plans(), "building"));
  return unsupported(plan.graph.get_workspace_size(plan.workspace_bytes), "asking for workspace");
}

int attention_plan_create(TroupeCudaContext* context, const TroupeCudaFusedAttention* shape,
                          TroupeCudaAttentionPlan** plan, std::int64_t* workspace_bytes) {
  *plan = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("attention_plan_create", context));
  TROUPE_CUDA_RETURN_IF_FAILED(check_shape(*shape));
  AttentionLibrary* library = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(library_of(context, &library));
  auto made = std::make_unique<TroupeCudaAttentionPlan>();
  made->context = context;
  made->shape = *shape;
  try {
    TROUPE_CUDA_RETURN_IF_FAILED(build(*made, *library));
  } catch (const std::exception& e) {
    return fail(TROUPE_CUDA_UNSUPPORTED,
                fmt::format("cuDNN, {}: {}", text_of(*shape), one_line(e.what())));
  }
  *workspace_bytes = made->workspace_bytes;
  *plan = made.release();
  return TROUPE_CUDA_OK;
}

int attention_plan_destroy(TroupeCudaAttentionPlan* plan) {
  if (!plan) return fail(TROUPE_CUDA_INVALID, "attention_plan_destroy: the plan is null");
  const int code = enter("attention_plan_destroy", plan->context);
  delete plan;
  return code;
}

using Operands = std::unordered_map<std::int64_t, void*>;

void* writable(const void* at) { return const_cast<void*>(at); }

int execute(const char* what, TroupeCudaStream* stream, TroupeCudaAttentionPlan* plan,
            bool backward, Operands operands, const void* mask, void* workspace,
            std::int64_t workspace_bytes) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter(what, stream));
  if (!plan || plan->context != stream->context || (plan->shape.backward != 0) != backward)
    return fail(TROUPE_CUDA_INVALID, std::string(what) + ": a plan of something else");
  if (workspace_bytes < plan->workspace_bytes)
    return fail(TROUPE_CUDA_INVALID,
                fmt::format("{}: needs a workspace of {} bytes, {} are given", text_of(plan->shape),
                            plan->workspace_bytes, workspace_bytes));
  if ((plan->shape.mask_stride > 0) != (mask != nullptr))
    return fail(TROUPE_CUDA_INVALID, text_of(plan->shape) + ": a mask too many, or none");
  if (mask) operands[kMask] = writable(mask);
  AttentionLibrary* library = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(library_of(stream->context, &library));
  const std::lock_guard lock(library->mutex);
  const cudnnStatus_t status = library->functions->set_stream(library->handle, stream->stream);
  if (status != CUDNN_STATUS_SUCCESS)
    return fail(TROUPE_CUDA_FAILED,
                fmt::format("cudnnSetStream: {}", library->functions->error_string(status)));
  try {
    return check_frontend(plan->graph.execute(library->handle, operands, workspace),
                          TROUPE_CUDA_FAILED, plan->shape, "running");
  } catch (const std::exception& e) {
    return fail(TROUPE_CUDA_FAILED,
                fmt::format("cuDNN, {}: {}", text_of(plan->shape), one_line(e.what())));
  }
}

int attention_plan_forward(TroupeCudaStream* stream, TroupeCudaAttentionPlan* plan, const void* q,
                           const void* k, const void* v, const void* mask, void* out,
                           float* log_sum_exp, void* workspace, std::int64_t workspace_bytes) {
  return execute("attention_plan_forward", stream, plan, false,
                 {{kQ, writable(q)},
                  {kK, writable(k)},
                  {kV, writable(v)},
                  {kOut, out},
                  {kLogSumExp, log_sum_exp}},
                 mask, workspace, workspace_bytes);
}

int attention_plan_backward(TroupeCudaStream* stream, TroupeCudaAttentionPlan* plan, const void* q,
                            const void* k, const void* v, const void* mask, const void* out,
                            const float* log_sum_exp, const void* dout, void* dq, void* dk,
                            void* dv, void* workspace, std::int64_t workspace_bytes) {
  return execute("attention_plan_backward", stream, plan, true,
                 {{kQ, writable(q)},
                  {kK, writable(k)},
                  {kV, writable(v)},
                  {kOut, writable(out)},
                  {kLogSumExp, writable(log_sum_exp)},
                  {kOutGradient, writable(dout)},
                  {kQGradient, dq},
                  {kKGradient, dk},
                  {kVGradient, dv}},
                 mask, workspace, workspace_bytes);
}

}  // namespace

void fill_fused_attention(TroupeCudaTable& table) {
  table.fused_attention_available = [] {
    const CudnnFunctions* functions = nullptr;
    return cudnn(&functions);
  };
  table.attention_plan_create = attention_plan_create;
  table.attention_plan_destroy = attention_plan_destroy;
  table.attention_plan_forward = attention_plan_forward;
  table.attention_plan_backward = attention_plan_backward;
}

}  // namespace troupe::train::cuda

#else

namespace troupe::train::cuda {
namespace {

int without_cudnn() {
  return fail(TROUPE_CUDA_UNAVAILABLE,
              "libtroupe_cuda.so was built without cuDNN's headers: get them (`tools/setup "
              "--cuda`) and build again");
}

}  // namespace

struct AttentionLibrary {};
void AttentionLibraryDeleter::operator()(AttentionLibrary* library) const { delete library; }

void fill_fused_attention(TroupeCudaTable& table) {
  table.fused_attention_available = [] { return without_cudnn(); };
  table.attention_plan_create = [](TroupeCudaContext*, const TroupeCudaFusedAttention*,
                                   TroupeCudaAttentionPlan**,
                                   std::int64_t*) { return without_cudnn(); };
  table.attention_plan_destroy = [](TroupeCudaAttentionPlan*) { return without_cudnn(); };
  table.attention_plan_forward = [](TroupeCudaStream*, TroupeCudaAttentionPlan*, const void*,
                                    const void*, const void*, const void*, void*, float*, void*,
                                    std::int64_t) { return without_cudnn(); };
  table.attention_plan_backward = [](TroupeCudaStream*, TroupeCudaAttentionPlan*, const void*,
                                     const void*, const void*, const void*, const void*,
                                     const float*, const void*, void*, void*, void*, void*,
                                     std::int64_t) { return without_cudnn(); };
}

}  // namespace troupe::train::cuda

#endif
