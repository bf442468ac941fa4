#include "train/cpu/compiled_gemm.h"

#include <oneapi/dnnl/dnnl.hpp>

#include <array>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/base/check.h"

// libgomp's, which Debian's oneDNN is built on; sets the calling thread's own limit.
extern "C" void omp_set_num_threads(int count);

namespace troupe::train {
namespace {

// Shapes that a model and its batches use come to a few dozen; ragged batches add some each.
constexpr std::size_t kPrimitivesMax = 4096;

// What a primitive is compiled for.
struct ShapeKey {
  std::array<std::int64_t, 6> dims{};  // m, n, k and the three strides
  int flags = 0;
  bool operator==(const ShapeKey&) const = default;
};

struct ShapeHash {
  std::size_t operator()(const ShapeKey& key) const {
    std::uint64_t hash = static_cast<std::uint64_t>(key.flags) + 0x9e3779b97f4a7c15u;
    for (const std::int64_t dim : key.dims)
      hash = (hash ^ static_cast<std::uint64_t>(dim)) * 0xff51afd7ed558ccdu, hash ^= hash >> 32;
    return hash;
  }
};

ShapeKey key_of(const Gemm& g) {
  return {{g.m, g.n, g.k, g.a_stride, g.b_stride, g.c_stride},
          (g.transpose_a ? 1 : 0) | (g.transpose_b ? 2 : 0) | (g.accumulate ? 4 : 0) |
              (g.a_type == DType::kBF16 ? 8 : 0)};
}

dnnl::memory::desc matrix(DType type, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                          bool transposed) {
  return {{rows, columns},
          type == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32,
          transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1}};
}

struct CompiledGemm {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, c, scratchpad;
};

std::shared_ptr<const CompiledGemm> compile(const dnnl::engine& engine, const Gemm& g) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attributes.set_post_ops(ops);
  }
  auto compiled = std::make_shared<CompiledGemm>();
  compiled->a = matrix(g.a_type, g.m, g.k, g.a_stride, g.transpose_a);
  compiled->b = matrix(g.b_type, g.k, g.n, g.b_stride, g.transpose_b);
  compiled->c = matrix(DType::kF32, g.m, g.n, g.c_stride, false);
  const dnnl::matmul::desc description(compiled->a, compiled->b, compiled->c);
  const dnnl::matmul::primitive_desc primitive(description, attributes, engine);
  compiled->primitive = dnnl::matmul(primitive);
  // Of the primitive's own description, which may not be the one above: oneDNN remembers primitives
  // and takes distances of single rows for equal that it plans differently for.
  const_dnnl_primitive_desc_t own = nullptr;
  TROUPE_CHECK(dnnl_primitive_get_primitive_desc(compiled->primitive.get(), &own) == dnnl_success);
  const dnnl_memory_desc_t* scratchpad =
      dnnl_primitive_desc_query_md(own, dnnl_query_scratchpad_md, 0);
  if (scratchpad) compiled->scratchpad = dnnl::memory::desc(*scratchpad);
  return compiled;
}

// A thread's stream and scratch memory.
struct SlotState {
  explicit SlotState(const dnnl::engine& engine) : stream(engine) {}
  ~SlotState() { std::free(scratch); }
  SlotState(const SlotState&) = delete;
  SlotState& operator=(const SlotState&) = delete;

  void* scratch_of(std::size_t bytes) {
    if (bytes > scratch_bytes) {
      std::free(scratch);
      scratch_bytes = (bytes + 4095) / 4096 * 4096;
      scratch = std::aligned_alloc(4096, scratch_bytes);
      TROUPE_CHECK(scratch, "no memory for {} bytes of scratch", scratch_bytes);
    }
    return scratch;
  }

  dnnl::stream stream;
  void* scratch = nullptr;
  std::size_t scratch_bytes = 0;
};

void limit_openmp_here() {
  thread_local bool limited = false;
  if (!limited) omp_set_num_threads(1);
  limited = true;
}

void execute(const dnnl::engine& engine, const CompiledGemm& compiled, const Gemm& g,
             SlotState& slot) {
  const dnnl::memory a(compiled.a, engine, const_cast<void*>(g.a));
  const dnnl::memory b(compiled.b, engine, const_cast<void*>(g.b));
  const dnnl::memory c(compiled.c, engine, g.c.data);
  const dnnl::memory scratch(compiled.scratchpad, engine,
                             slot.scratch_of(compiled.scratchpad.get_size()));
  const std::array<dnnl_exec_arg_t, 4> arguments = {{{DNNL_ARG_SRC, a.get()},
                                                     {DNNL_ARG_WEIGHTS, b.get()},
                                                     {DNNL_ARG_DST, c.get()},
                                                     {DNNL_ARG_SCRATCHPAD, scratch.get()}}};
  const dnnl_status_t status = dnnl_primitive_execute(compiled.primitive.get(), slot.stream.get(),
                                                      arguments.size(), arguments.data());
  TROUPE_CHECK(status == dnnl_success, "oneDNN status {} for m={} n={} k={}",
               static_cast<int>(status), g.m, g.n, g.k);
}

}  // namespace

struct CompiledGemms::Impl {
  explicit Impl(int slots_count) : engine(dnnl::engine::kind::cpu, 0) {
    for (int i = 0; i < slots_count; ++i) slots.push_back(std::make_unique<SlotState>(engine));
  }

  std::shared_ptr<const CompiledGemm> find(const Gemm& g) {
    const ShapeKey key = key_of(g);
    const std::lock_guard lock(mutex);
    const auto found = compiled.find(key);
    if (found != compiled.end()) return found->second;
    if (compiled.size() >= kPrimitivesMax) compiled.clear();
    return compiled.emplace(key, compile(engine, g)).first->second;
  }

  dnnl::engine engine;
  std::vector<std::unique_ptr<SlotState>> slots;
  std::mutex mutex;
  std::unordered_map<ShapeKey, std::shared_ptr<const CompiledGemm>, ShapeHash> compiled;
};

bool cpu_multiplies_bf16() {
  const auto isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  constexpr auto kNeeded = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);
  return (isa & kNeeded) == kNeeded;
}

CompiledGemms::CompiledGemms(int slots) : impl_(std::make_unique<Impl>(slots)) {}
CompiledGemms::~CompiledGemms() = default;

void CompiledGemms::run(const Gemm& gemm, int slot) {
  TROUPE_CHECK(gemm.a_type == gemm.b_type);
  limit_openmp_here();
  execute(impl_->engine, *impl_->find(gemm), gemm, *impl_->slots[static_cast<std::size_t>(slot)]);
}

}  // namespace troupe::train
