#include "train/cuda/operators/cuda_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <type_traits>
#include <utility>

#include "runtime/base/check.h"
#include "train/cuda/operators/fp8_products.h"
#include "train/cuda/operators/table_calls.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kScratchAlignBytes = 256;
// Of operands: what the vendor's fastest algorithms read at once.
constexpr std::int64_t kVectorBytes = 16;
// Of the units whose products do GELU without a detour.
constexpr int kGeluComputeMajor = 9;

std::int64_t element_bytes(DType type) { return static_cast<std::int64_t>(dtype_size(type)); }

std::int32_t type_of(DType type) {
  TROUPE_CHECK(type == DType::kF32 || type == DType::kBF16, "{}", dtype_name(type));
  return type == DType::kBF16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32;
}

std::int32_t epilogue_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kBias:
      return TROUPE_CUDA_EPILOGUE_BIAS;
    case Epilogue::kBiasGelu:
      return TROUPE_CUDA_EPILOGUE_BIAS_GELU;
    case Epilogue::kGeluGradient:
      return TROUPE_CUDA_EPILOGUE_GELU_GRADIENT;
    case Epilogue::kNone:
      return TROUPE_CUDA_EPILOGUE_NONE;
  }
  return TROUPE_CUDA_EPILOGUE_NONE;
}

// Where scratch memory will be that is planned with: an address that nobody may touch.
std::byte* scratch_to_be() { return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20); }

// Elements of a matrix as it lies in memory, gaps between its rows included.
std::int64_t elements_of(std::int64_t rows, std::int64_t columns, bool transposed,
                         std::int64_t stride) {
  return transposed ? (columns - 1) * stride + rows : (rows - 1) * stride + columns;
}

// Of a call's activations, which have one type.
template <typename... Others>
std::int32_t type_of(ConstElements first, Others... others) {
  TROUPE_CHECK(((ConstElements(others).type == first.type) && ...),
               "activations of different types in one call");
  return type_of(first.type);
}

// Of a list's call: fp32 where it has no activations.
template <typename... Arguments>
std::int32_t type_of_call(const Arguments&... arguments) {
  ConstElements first;
  const auto look = [&]<typename Argument>(const Argument& argument) {
    if constexpr (Argument::kIsActivation) {
      const ConstElements elements = argument.value;
      if (!elements) return;
      TROUPE_CHECK(!first || first.type == elements.type,
                   "activations of different types in one call");
      first = elements;
    }
  };
  (look(arguments), ...);
  return type_of(first.type);
}

// An argument as the table's function takes it.
template <typename Argument>
auto passed(const Argument& argument) {
  if constexpr (Argument::kIsActivation)
    return argument.value.data;
  else if constexpr (std::is_enum_v<decltype(argument.value)>)
    return static_cast<std::int32_t>(argument.value);
  else
    return argument.value;
}

AttentionCall attention_of(const AttentionShape& s, std::int32_t type) {
  return {.shape = table_attention(s, type),
          .arithmetic = s.arithmetic,
          .window = s.window,
          .dropout = table_dropout(s.dropout)};
}

}  // namespace

// One call's scratch memory, cut from the beginning: the stream's work is in order, so the call
// before has done with it.
class CudaOperators::Cut {
 public:
  Cut(CudaOperators& operators, const char* name) : operators_(operators), name_(name) {}

  // Null while metering and when there is not enough, which is then the failure.
  std::byte* take(std::int64_t bytes) {
    const std::int64_t at = used_;
    used_ += (bytes + kScratchAlignBytes - 1) / kScratchAlignBytes * kScratchAlignBytes;
    operators_.scratch_needed_ = std::max(operators_.scratch_needed_, used_);
    if (operators_.metering()) return nullptr;
    const auto there = operators_.scratch_available();
    if (used_ > there) {
      operators_.keep(error(Code::kOutOfMemory,
                            "{}: {} needs {} of scratch memory, and {} are there",
                            operators_.stream_->device()->name(), name_, memory_size_text(used_),
                            memory_size_text(there)));
      return nullptr;
    }
    return (operators_.launches() ? operators_.scratch_.data() : scratch_to_be()) + at;
  }

 private:
  CudaOperators& operators_;
  const char* name_;
  std::int64_t used_ = 0;
};

CudaOperators::CudaOperators(std::shared_ptr<const CudaLibrary> library,
                             std::int64_t workspace_bytes, const CudaOptions& options,
                             std::unique_ptr<BlockGraphs> graphs)
    : library_(std::move(library)),
      workspace_bytes_(workspace_bytes),
      options_(options),
      graphs_(std::move(graphs)),
      attention_(graphs_ ? graphs_->record().recording_library() : library_, options.attention) {}

Result<std::unique_ptr<CudaOperators>> CudaOperators::create(CudaStream& stream,
                                                             GemmAlgorithms& algorithms,
                                                             std::span<std::byte> scratch,
                                                             const CudaOptions& options) {
  TROUPE_CHECK(reinterpret_cast<std::uintptr_t>(scratch.data()) % kScratchAlignBytes == 0);
  std::unique_ptr<BlockGraphs> graphs;
  if (options.graphs.use != GraphOptions::Use::kNever)
    graphs = std::make_unique<BlockGraphs>(stream, options.graphs);
  std::unique_ptr<CudaOperators> made(new CudaOperators(
      stream.device()->library(), algorithms.workspace_bytes(), options, std::move(graphs)));
  made->transfer_ = std::make_unique<HostTransfer>(TROUPE_TRY(HostTransfer::create(stream)));
  made->stream_ = &stream;
  made->algorithms_ = &algorithms;
  made->scratch_ = scratch;
  return made;
}

std::unique_ptr<CudaOperators> CudaOperators::meter(std::shared_ptr<const CudaLibrary> library,
                                                    std::int64_t workspace_bytes,
                                                    const CudaOptions& options) {
  return std::unique_ptr<CudaOperators>(
      new CudaOperators(std::move(library), workspace_bytes, options, nullptr));
}

CudaOperators::~CudaOperators() {
  if (metering()) return;
  // Whoever wanted to know asked synchronize(): here only memory is kept until it is not used.
  [[maybe_unused]] const Status waited = stream_->wait("the operators' last work");
  // Before the attention's plans, which they use.
  if (graphs_) graphs_->forget();
}

void CudaOperators::keep(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
}

template <typename Launch>
void CudaOperators::run(const char* name, Launch launch) {
  if (!launches() || !failure_.ok()) return;
  if (graphs_) graphs_->record().name(name);
  const int code = launch(graphs_ ? graphs_->record().stream() : stream_->get());
  if (code != TROUPE_CUDA_OK) keep(stream_->device()->status(code, name));
}

template <typename Function, typename... Arguments>
void CudaOperators::call(const char* name, Function TroupeCudaTable::*function,
                         const Arguments&... arguments) {
  // A meter may have a table of sizes alone.
  if (!metering() && !(table().*function))
    return keep(error(Code::kUnsupported, "libtroupe_cuda.so has no kernel of {}", name));
  if constexpr ((... || (Arguments::kRole == ArgumentRole::kAddsSums))) {
    std::int64_t bytes = 0;
    const auto count = [&]<typename Argument>(const Argument& argument) {
      if constexpr (Argument::kRole == ArgumentRole::kAddsSums)
        bytes += table().row_sum_scratch_bytes(argument.rows, argument.width);
    };
    (count(arguments), ...);
    Cut cut(*this, name);
    std::byte* scratch = cut.take(bytes);
    run(name, [&](TroupeCudaStream* stream) {
      return (table().*function)(stream, type_of_call(arguments...), passed(arguments)..., scratch);
    });
  } else {
    run(name, [&](TroupeCudaStream* stream) {
      return (table().*function)(stream, type_of_call(arguments...), passed(arguments)...);
    });
  }
}

#define TROUPE_OPERATOR(name, ...)                                      \
  void CudaOperators::name(TROUPE_PARAMETERS(__VA_ARGS__)) {            \
    call(#name, &TroupeCudaTable::name, TROUPE_DESCRIBED(__VA_ARGS__)); \
  }
#define TROUPE_TRANSLATED_OPERATOR(name, ...)
#include "train/tensor/operators.def"

bool CudaOperators::supports(OperatorName name) const {
  switch (name) {
#define TROUPE_OPERATOR(name, ...) \
  case OperatorName::name:         \
    return metering() || table().name != nullptr;
#define TROUPE_TRANSLATED_OPERATOR(name, ...)
#include "train/tensor/operators.def"
    default:
      return true;
  }
}

void CudaOperators::begin_planning(std::int64_t scratch_bytes) {
  TROUPE_CHECK(!metering());
  planned_scratch_bytes_ = scratch_bytes;
}

Status CudaOperators::end_planning() {
  planned_scratch_bytes_.reset();
  return std::exchange(failure_, {});
}

void CudaOperators::use_scratch(std::span<std::byte> scratch) {
  TROUPE_CHECK(reinterpret_cast<std::uintptr_t>(scratch.data()) % kScratchAlignBytes == 0);
  scratch_ = scratch;
}

void CudaOperators::begin_block(int block) {
  if (graphs_) graphs_->begin(block);
}

void CudaOperators::end_block() {
  if (!graphs_) return;
  // A pass that is left by an exception is worth nothing, and nobody waits for it.
  if (!failure_.ok() || std::uncaught_exceptions() > 0) return graphs_->drop();
  if (attention_.plans_dropped() != plans_dropped_) {
    plans_dropped_ = attention_.plans_dropped();
    graphs_->forget();
  }
  keep(graphs_->end());
}

void CudaOperators::flush_block() {
  if (!graphs_) return;
  if (failure_.ok())
    keep(graphs_->flush());
  else
    graphs_->drop();
}

Status CudaOperators::synchronize() {
  flush_block();
  if (!metering()) keep(stream_->wait("a step's work"));
  return failure_;
}

bool CudaOperators::fast_bf16() const {
  return metering() || stream_->device()->info().has_bf16 != 0;
}

void CudaOperators::upload(const void* host, void* device, std::size_t bytes) {
  if (!launches()) return;
  flush_block();
  if (!failure_.ok()) return;
  keep(transfer_->upload(host, device, static_cast<std::int64_t>(bytes)));
}

void CudaOperators::download(const void* device, void* host, std::size_t bytes) {
  if (!launches()) {
    std::memset(host, 0, bytes);
    return;
  }
  flush_block();
  if (failure_.ok()) keep(transfer_->download(device, host, static_cast<std::int64_t>(bytes)));
  if (!failure_.ok()) std::memset(host, 0xff, bytes);
}

void CudaOperators::copy_rows(ConstElements from, std::int64_t from_stride, Elements to,
                              std::int64_t to_stride, std::int64_t rows, std::int64_t width) {
  TROUPE_CHECK(from.type == to.type, "rows of {} to {}", dtype_name(from.type),
               dtype_name(to.type));
  const std::int64_t bytes = from.element_bytes();
  run("copy_rows", [&](TroupeCudaStream* stream) {
    return table().copy_rows(stream, from.data, from_stride * bytes, to.data, to_stride * bytes,
                             rows, width * bytes);
  });
}

const void* CudaOperators::bf16_operand(const void* data, DType type, std::int64_t elements,
                                        Cut& cut) {
  if (type == DType::kBF16) return data;
  std::byte* rounded = cut.take(elements * element_bytes(DType::kBF16));
  run("gemm (rounding an operand)", [&](TroupeCudaStream* stream) {
    return table().convert(stream, data, TROUPE_CUDA_F32, rounded, TROUPE_CUDA_BF16, elements);
  });
  return rounded;
}

bool CudaOperators::refuse_fp8(const Gemm& gemm, const std::string& why) {
  if (!fp8_told_ && !metering()) {
    fp8_told_ = true;
    options_.fp8_notice(
        fmt::format("fp8: the product of {} x {} x {} is computed in bf16: {} (told once)", gemm.m,
                    gemm.n, gemm.k, why));
  }
  return false;
}

bool CudaOperators::gemm_in_fp8(const Gemm& gemm) {
  std::string why_not;
  const auto product = plan_fp8_product(gemm, why_not);
  if (!product) return refuse_fp8(gemm, why_not);
  if (!without_fp8_.empty() && without_fp8_.contains(describe_gemm(product->gemm))) return false;
  Cut cut(*this, "gemm in fp8");
  std::byte* a = cut.take(product->a_bytes);
  std::byte* b = cut.take(product->b_bytes);
  auto* scales = reinterpret_cast<float*>(cut.take(4 * sizeof(float)));
  std::byte* parts = cut.take(table().quantize_scratch_bytes());
  std::byte* workspace = workspace_bytes_ > 0 ? cut.take(workspace_bytes_) : nullptr;
  // Where the library turns out to have no algorithm, bf16 needs its own.
  if (metering()) return false;
  if (!failure_.ok()) return true;
  const Result<TroupeCudaAlgorithm> algorithm = algorithms_->choose(product->gemm);
  if (algorithm.status().code() == Code::kUnsupported) {
    without_fp8_.insert(describe_gemm(product->gemm));
    return refuse_fp8(gemm, algorithm.status().message());
  }
  if (!algorithm.ok()) {
    keep(algorithm.status());
    return true;
  }
  // Scale and inverse of a, then of b.
  run("gemm in fp8 (rounding its operands)", [&](TroupeCudaStream* stream) {
    const int code = table().quantize(stream, &product->a, gemm.a, a, scales, parts);
    if (code != TROUPE_CUDA_OK) return code;
    return table().quantize(stream, &product->b, gemm.b, b, scales + 2, parts);
  });
  run("gemm in fp8", [&](TroupeCudaStream* stream) {
    return table().gemm_scaled(stream, &product->gemm, &*algorithm, a, scales + 1, b, scales + 3,
                               gemm.c.data, workspace, workspace_bytes_);
  });
  return true;
}

bool CudaOperators::wants_fp8(const Gemm& gemm) const {
  return options_.fp8 && gemm.arithmetic == Arithmetic::kBf16 && gemm.narrow_a != Narrow::kNot &&
         gemm.narrow_b != Narrow::kNot;
}

TroupeCudaGemm CudaOperators::key_of(const Gemm& gemm, const void* a, const void* b) const {
  const bool bf16 = gemm.arithmetic == Arithmetic::kBf16;
  const DType operands = bf16 ? DType::kBF16 : DType::kF32;
  // What is not there lies well.
  const auto whole_vectors = [](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % kVectorBytes == 0;
  };
  return {
      .m = gemm.m,
      .n = gemm.n,
      .k = gemm.k,
      .a_stride = gemm.a_stride,
      .b_stride = gemm.b_stride,
      .c_stride = gemm.c_stride,
      .a_type = type_of(operands),
      .b_type = type_of(operands),
      .c_type = type_of(gemm.c.type),
      .transpose_a = gemm.transpose_a,
      .transpose_b = gemm.transpose_b,
      .accumulate = gemm.accumulate,
      .arithmetic = bf16            ? TROUPE_CUDA_COMPUTE_BF16
                    : options_.tf32 ? TROUPE_CUDA_COMPUTE_TF32
                                    : TROUPE_CUDA_COMPUTE_F32,
      .alignment_bytes = static_cast<std::int32_t>(
          whole_vectors(a) && whole_vectors(b) && whole_vectors(gemm.c.data) &&
                  whole_vectors(gemm.bias) && whole_vectors(gemm.gelu_input.data)
              ? kVectorBytes
              : element_bytes(operands)),
      .epilogue = epilogue_of(gemm.epilogue),
  };
}

bool CudaOperators::fuses(const Gemm& gemm) {
  TROUPE_CHECK(gemm.epilogue != Epilogue::kNone && !gemm.accumulate);
  // A meter's pass takes the same scratch memory either way. What goes to 8 bits has no epilogue.
  if (metering() || !failure_.ok() || wants_fp8(gemm)) return false;
  // On older units bf16 products with GELU write their result twice: slower than a kernel for it.
  if (gemm.epilogue != Epilogue::kBias &&
      stream_->device()->info().compute_major < kGeluComputeMajor)
    return false;
  // An operand that is rounded lies in scratch memory.
  const auto operand = [&](const void* data, DType type) {
    return gemm.arithmetic == Arithmetic::kBf16 && type == DType::kF32 ? nullptr : data;
  };
  const TroupeCudaGemm key =
      key_of(gemm, operand(gemm.a, gemm.a_type), operand(gemm.b, gemm.b_type));
  if (key.alignment_bytes != kVectorBytes) return false;
  const auto algorithm = algorithms_->choose_if_any(key);
  if (!algorithm.ok()) keep(algorithm.status());
  return algorithm.ok() && *algorithm;
}

void CudaOperators::quantized_values(const QuantizedMatrix&, std::int64_t, float*, std::int64_t) {
  TROUPE_CHECK(false, "a quantised matrix, which adapters alone have");
}

void CudaOperators::gemm(const Gemm& gemm) {
  const bool bf16 = gemm.arithmetic == Arithmetic::kBf16;
  const bool fused = gemm.epilogue != Epilogue::kNone;
  TROUPE_CHECK(!gemm.b_quantized, "a quantised operand, which adapters alone have");
  if (!fused && wants_fp8(gemm) && gemm_in_fp8(gemm)) return;
  TROUPE_CHECK(bf16 || (gemm.a_type == DType::kF32 && gemm.b_type == DType::kF32 &&
                        gemm.c.type == DType::kF32),
               "bf16 in a product that is computed in fp32");
  Cut cut(*this, "gemm");
  const void *a = gemm.a, *b = gemm.b;
  if (bf16) {
    a = bf16_operand(a, gemm.a_type, elements_of(gemm.m, gemm.k, gemm.transpose_a, gemm.a_stride),
                     cut);
    b = bf16_operand(b, gemm.b_type, elements_of(gemm.k, gemm.n, gemm.transpose_b, gemm.b_stride),
                     cut);
  }
  std::byte* workspace = workspace_bytes_ > 0 ? cut.take(workspace_bytes_) : nullptr;
  if (metering() || !failure_.ok()) return;

  const TroupeCudaGemm key = key_of(gemm, a, b);
  const Result<TroupeCudaAlgorithm> algorithm = algorithms_->choose(key);
  if (!algorithm.ok()) return keep(algorithm.status());
  if (fused)
    return run("gemm with an epilogue", [&](TroupeCudaStream* stream) {
      return table().gemm_fused(stream, &key, &*algorithm, a, b, gemm.bias, gemm.gelu_input.data,
                                gemm.c.data, workspace, workspace_bytes_);
    });
  run("gemm", [&](TroupeCudaStream* stream) {
    return table().gemm(stream, &key, &*algorithm, a, b, gemm.c.data, workspace, workspace_bytes_);
  });
}

void CudaOperators::zero(Elements x, std::int64_t count) {
  run("zero", [&](TroupeCudaStream* stream) {
    return table().fill(stream, x.data, 0, count * x.element_bytes());
  });
}

void CudaOperators::dropout(const Dropout& dropout, ConstElements x, ConstElements residual,
                            Elements out, std::int64_t rows, std::int64_t width) {
  const TroupeCudaDropout passed = table_dropout(dropout);
  run("dropout", [&](TroupeCudaStream* stream) {
    return table().dropout(stream, type_of(x, residual ? residual : x, out), &passed, x.data,
                           residual.data, out.data, rows, width);
  });
}

void CudaOperators::plan_attention(const AttentionCall& call, AttentionPass pass,
                                   std::int64_t scratch_bytes) {
  if (!failure_.ok()) return;
  // The stream of attention's table.
  TroupeCudaStream* const stream = graphs_ ? graphs_->record().stream() : stream_->get();
  const int code = attention_.plan(stream_->device()->context(), stream, call, pass, scratch_bytes);
  if (code != TROUPE_CUDA_OK) keep(stream_->device()->status(code, "planning attention"));
}

void CudaOperators::attention_forward(const AttentionShape& shape, ConstElements q, ConstElements k,
                                      ConstElements v, Elements out, float* log_sum_exp) {
  const AttentionCall call = attention_of(shape, type_of(q, k, v, out));
  Cut cut(*this, "attention_forward");
  const std::int64_t bytes =
      attention_.scratch_bytes(call, AttentionPass::kForward, scratch_available());
  const std::span scratch(cut.take(bytes), static_cast<std::size_t>(bytes));
  if (planned_scratch_bytes_) return plan_attention(call, AttentionPass::kForward, bytes);
  run("attention_forward", [&](TroupeCudaStream* stream) {
    return attention_.forward(stream_->device()->context(), stream, call, q.data, k.data, v.data,
                              out.data, log_sum_exp, scratch);
  });
}

void CudaOperators::attention_backward(const AttentionShape& shape, ConstElements q,
                                       ConstElements k, ConstElements v, ConstElements out,
                                       const float* log_sum_exp, ConstElements dout, Elements dq,
                                       Elements dk, Elements dv) {
  const AttentionCall call = attention_of(shape, type_of(q, k, v, out, dout, dq, dk, dv));
  Cut cut(*this, "attention_backward");
  const std::int64_t bytes =
      attention_.scratch_bytes(call, AttentionPass::kBackward, scratch_available());
  const std::span scratch(cut.take(bytes), static_cast<std::size_t>(bytes));
  if (planned_scratch_bytes_) return plan_attention(call, AttentionPass::kBackward, bytes);
  run("attention_backward", [&](TroupeCudaStream* stream) {
    return attention_.backward(stream_->device()->context(), stream, call, q.data, k.data, v.data,
                               out.data, log_sum_exp, dout.data, dq.data, dk.data, dv.data,
                               scratch);
  });
}

void CudaOperators::embedding_forward(const std::int32_t* ids, const void* rows_of,
                                      DType table_type, Elements out, std::int64_t rows,
                                      std::int64_t width) {
  run("embedding_forward", [&](TroupeCudaStream* stream) {
    return table().embedding_forward(stream, ids, rows_of, type_of(table_type), out.data,
                                     type_of(out), rows, width);
  });
}

void CudaOperators::embedding_backward(const std::int32_t* ids, ConstElements dout, float* dweight,
                                       std::int64_t rows, std::int64_t width) {
  Cut cut(*this, "embedding_backward");
  std::byte* scratch = cut.take(table().embedding_scratch_bytes(rows));
  run("embedding_backward", [&](TroupeCudaStream* stream) {
    return table().embedding_backward(stream, type_of(dout), ids, dout.data, dweight, rows, width,
                                      scratch);
  });
}

void CudaOperators::cross_entropy(float* logits, const std::int32_t* labels, float* losses,
                                  float scale, bool gradient, std::int64_t rows,
                                  std::int64_t classes) {
  run("cross_entropy", [&](TroupeCudaStream* stream) {
    return table().cross_entropy(stream, logits, labels, losses, scale, nullptr,
                                 gradient ? TROUPE_CUDA_F32 : -1, rows, classes);
  });
}

void CudaOperators::cross_entropy_bf16(float* logits, const std::int32_t* labels, float* losses,
                                       float scale, std::uint16_t* gradient, std::int64_t rows,
                                       std::int64_t classes) {
  run("cross_entropy_bf16", [&](TroupeCudaStream* stream) {
    return table().cross_entropy(stream, logits, labels, losses, scale, gradient, TROUPE_CUDA_BF16,
                                 rows, classes);
  });
}

}  // namespace troupe::train
