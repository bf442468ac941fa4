// What this machine can do in a training step at best: oneDNN's matrix products at a model's
// shapes, in one thread, and memcpy; beside them Troupe's own fp32 products ("ours fp32 …"). "name
// value unit" lines on standard output, tabs between them.
//
//   bench_products TOKENS HIDDEN QKV INNER GATED LAYERS VOCABULARY
//
// QKV: width of queries, keys and values together; GATED: 1 where the MLP has a gate, else 0. For
// every product with weights: the fastest of some runs, and what a step's products take at these
// rates. Logits are computed in pieces of 512 tokens.

#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/tensor/operators.h"

// libgomp's, which Debian's oneDNN is built on; sets the calling thread's own limit.
extern "C" void omp_set_num_threads(int count);

namespace {

using Clock = std::chrono::steady_clock;
using dnnl::memory;

constexpr std::int64_t kLogitRows = 512;
constexpr int kRunsMin = 3, kRunsMax = 40;
constexpr double kSecondsMin = 0.06;  // of timing for a product
constexpr std::size_t kCopyBytes = 64u << 20;
constexpr int kCopies = 15;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// C (m, n) of row-major operands; "nt": B is stored as (n, k), "tn": A as (k, m) and C is added to.
struct Product {
  std::string name;
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  double flops() const { return 2.0 * static_cast<double>(m * n) * static_cast<double>(k); }
};

// A linear layer's three products: forward, gradient of its inputs, gradient of its weights.
std::vector<Product> products_of(const std::string& name, std::int64_t rows, std::int64_t inputs,
                                 std::int64_t outputs) {
  return {{name + " nt", rows, outputs, inputs, false, true},
          {name + " nn", rows, inputs, outputs, false, false},
          {name + " tn", outputs, inputs, rows, true, false}};
}

// Seconds of the fastest of some calls, after one to warm up.
template <typename Call>
double fastest_of(Call call) {
  call();
  double best = 1e9, spent = 0;
  for (int run = 0; run < kRunsMin || (run < kRunsMax && spent < kSecondsMin); ++run) {
    const auto begin = Clock::now();
    call();
    const double seconds = seconds_since(begin);
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

// Troupe's operators.
class Ours {
 public:
  double fastest(const Product& p) {
    const auto elements = [](std::int64_t a, std::int64_t b) {
      return std::vector<float>(static_cast<std::size_t>(a * b), 0.01f);
    };
    const std::vector<float> a = elements(p.m, p.k), b = elements(p.k, p.n);
    std::vector<float> c = elements(p.m, p.n);
    return fastest_of([&] {
      operators_->gemm({.m = p.m,
                        .n = p.n,
                        .k = p.k,
                        .a = a.data(),
                        .a_stride = p.transpose_a ? p.m : p.k,
                        .transpose_a = p.transpose_a,
                        .b = b.data(),
                        .b_stride = p.transpose_b ? p.k : p.n,
                        .transpose_b = p.transpose_b,
                        .c = c.data(),
                        .c_stride = p.n,
                        .accumulate = p.transpose_a});
    });
  }

 private:
  troupe::train::Arena arena_{1};
  std::unique_ptr<troupe::train::Operators> operators_ =
      troupe::train::make_cpu_operators(arena_, {});
};

// oneDNN.
class Machine {
 public:
  Machine() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) { omp_set_num_threads(1); }

  // Seconds of the fastest run.
  double fastest(const Product& p, memory::data_type type) {
    const auto strides = [](std::int64_t rows, std::int64_t columns, bool transposed) {
      return transposed ? memory::dims{1, rows} : memory::dims{columns, 1};
    };
    const memory a({{p.m, p.k}, type, strides(p.m, p.k, p.transpose_a)}, engine_);
    const memory b({{p.k, p.n}, type, strides(p.k, p.n, p.transpose_b)}, engine_);
    const memory c({{p.m, p.n}, memory::data_type::f32, memory::dims{p.n, 1}}, engine_);
    fill(a, 0x3c), fill(b, 0x3c), fill(c, 0);
    dnnl::primitive_attr attributes;
    if (p.transpose_a) {
      dnnl::post_ops ops;
      ops.append_sum(1.0f);
      attributes.set_post_ops(ops);
    }
    const dnnl::matmul::desc description(a.get_desc(), b.get_desc(), c.get_desc());
    const dnnl::matmul product({description, attributes, engine_});
    const std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
    return fastest_of([&] {
      product.execute(stream_, arguments);
      stream_.wait();
    });
  }

 private:
  // Bytes 0x3c3c: small numbers in either type, which products of keep small.
  static void fill(const memory& m, int byte) {
    std::memset(m.get_data_handle(), byte, m.get_desc().get_size());
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
};

bool has_bf16() {
  constexpr auto kNeeded = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kNeeded) == kNeeded;
}

void line(const std::string& name, double value, const char* unit) {
  std::printf("%s\t%.6g\t%s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

void copy_rate() {
  std::vector<char> from(kCopyBytes, 1), to(kCopyBytes, 2);
  std::vector<double> times;
  for (int i = 0; i < kCopies; ++i) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), kCopyBytes);
    times.push_back(seconds_since(begin));
  }
  std::nth_element(times.begin(), times.begin() + kCopies / 2, times.end());
  line("memcpy", static_cast<double>(kCopyBytes) / 1e9 / times[kCopies / 2], "GB/s");
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::int64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  if (sizes.size() != 7 ||
      std::any_of(sizes.begin(), sizes.end(), [](auto size) { return size < 0; }) || !sizes[0]) {
    std::fprintf(stderr, "usage: bench_products TOKENS HIDDEN QKV INNER GATED LAYERS VOCABULARY\n");
    return 2;
  }
  const auto tokens = sizes[0], hidden = sizes[1], qkv = sizes[2], inner = sizes[3];
  const auto layers = sizes[5], vocabulary = sizes[6];
  struct Layer {
    std::vector<Product> products;
    double times;  // in a step
  };
  const std::int64_t rows = std::min(tokens, kLogitRows);
  const std::vector<Layer> step = {
      {products_of("qkv", tokens, hidden, qkv), static_cast<double>(layers)},
      {products_of("attention output", tokens, hidden, hidden), static_cast<double>(layers)},
      {products_of("mlp input", tokens, hidden, (sizes[4] ? 2 : 1) * inner),
       static_cast<double>(layers)},
      {products_of("mlp output", tokens, inner, hidden), static_cast<double>(layers)},
      {products_of("logits", rows, hidden, vocabulary),
       static_cast<double>(tokens) / static_cast<double>(rows)}};
  copy_rate();
  // fastest(product): seconds.
  const auto measure = [&](const std::string& type, auto fastest) {
    double best = 0, seconds = 0;
    for (const auto& [products, times] : step) {
      for (const Product& product : products) {
        const double took = fastest(product);
        line(type + " " + product.name, product.flops() / took / 1e9, "GFLOP/s");
        best = std::max(best, product.flops() / took / 1e9);
        seconds += times * took;
      }
    }
    line(type + " best", best, "GFLOP/s");
    line(type + " products of a step", seconds * 1e3, "ms");
  };
  Machine machine;
  Ours ours;
  measure("fp32", [&](const Product& p) { return machine.fastest(p, memory::data_type::f32); });
  measure("ours fp32", [&](const Product& p) { return ours.fastest(p); });
  if (has_bf16())
    measure("bf16", [&](const Product& p) { return machine.fastest(p, memory::data_type::bf16); });
}
