// Products of 8 bits over the tests' GPU: which ones they are, their values, whole models.

#include "train/cuda/operators/fp8_products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/random.h"
#include "tests/train/cuda/device/device_fixture.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/device_model.h"
#include "train/cuda/kernels/fp8.h"
#include "train/cuda/operators/cuda_operators.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

using tools::gpu::Bench;
using tools::gpu::CountingBatch;
using tools::gpu::NamedConfig;
using tools::gpu::TrainedModel;
using tools::gpu::TrainOptions;
using Bits = std::vector<std::uint16_t>;

// Of a layer's three products: forward, gradient of the inputs, gradient of the weights.
Gemm layer_product(int which, std::int64_t rows, std::int64_t inputs, std::int64_t outputs) {
  const auto value = Narrow::kValue, gradient = Narrow::kGradient;
  Gemm g{.a_type = DType::kBF16, .b_type = DType::kBF16, .arithmetic = Arithmetic::kBf16};
  switch (which) {
    case 0:
      g.m = rows, g.n = outputs, g.k = inputs, g.transpose_b = true;
      g.narrow_a = value, g.narrow_b = value;
      break;
    case 1:
      g.m = rows, g.n = inputs, g.k = outputs;
      g.narrow_a = gradient, g.narrow_b = value;
      break;
    default:
      g.m = outputs, g.n = inputs, g.k = rows, g.transpose_a = true;
      g.narrow_a = gradient, g.narrow_b = value;
      break;
  }
  g.a_stride = g.transpose_a ? g.m : g.k;
  g.b_stride = g.transpose_b ? g.k : g.n;
  g.c_stride = g.n;
  return g;
}

TEST_CASE("operands of 8 bits lie in rows of what is summed over, whole sixteens") {
  std::string why;
  Gemm g = layer_product(0, 5, 40, 32);
  auto p = plan_fp8_product(g, why);
  REQUIRE(p);
  CHECK(p->gemm.k == 48);
  CHECK(p->gemm.transpose_a == 0);
  CHECK(p->gemm.transpose_b == 1);
  CHECK(p->gemm.a_type == TROUPE_CUDA_E4M3);
  CHECK(p->gemm.b_type == TROUPE_CUDA_E4M3);
  CHECK(p->a.transpose == 0);
  CHECK(p->b.transpose == 0);
  CHECK(p->a_bytes == 5 * 48);
  CHECK(p->b_bytes == 32 * 48);
  p = plan_fp8_product(layer_product(1, 5, 32, 48), why);
  REQUIRE(p);
  CHECK(p->gemm.a_type == TROUPE_CUDA_E5M2);
  CHECK(p->gemm.b_type == TROUPE_CUDA_E4M3);
  CHECK(p->a.transpose == 0);
  CHECK(p->b.transpose == 1);
  p = plan_fp8_product(layer_product(2, 5, 32, 48), why);
  REQUIRE(p);
  CHECK(p->gemm.k == 16);  // five tokens
  CHECK(p->a.transpose == 1);
  CHECK(p->b.transpose == 1);
  // What the units cannot write.
  CHECK_FALSE(plan_fp8_product(layer_product(0, 5, 32, 40), why));
  CHECK(why == "40 columns are no multiple of 16");
  g = layer_product(0, 5, 32, 32);
  g.c_stride = 33;
  CHECK_FALSE(plan_fp8_product(g, why));
  CHECK(why.find("16 bytes") != std::string::npos);
}

struct Fp8Fixture : DeviceFixture {
  explicit Fp8Fixture(const troupe::tests::FakeCudaOptions& options = {})
      : DeviceFixture(options),
        stream(CudaStream::create(device).value()),
        algorithms(std::in_place, device, 64 << 10),
        memory(DeviceMemory::allocate(device, 4 << 20, "tensors", MemoryPurpose::kActivations)
                   .value()),
        scratch(
            DeviceMemory::allocate(device, 4 << 20, "scratch", MemoryPurpose::kWorkspace).value()) {
    CudaOptions given{.fp8 = true};
    given.fp8_notice = [this](const std::string& text) { notices.push_back(text); };
    operators = CudaOperators::create(*stream, *algorithms, scratch->bytes(), given).value();
  }
  ~Fp8Fixture() {
    operators.reset();
    scratch.reset(), memory.reset(), algorithms.reset(), stream.reset();
  }
  std::byte* at(std::int64_t mebibyte) { return memory->data() + (mebibyte << 20); }
  // C of the product of a and b, added to `before`.
  std::vector<float> product(Gemm g, const Bits& a, const Bits& b,
                             const std::vector<float>& before) {
    std::vector<float> c = before;
    operators->upload(a.data(), at(0), a.size() * 2);
    operators->upload(b.data(), at(1), b.size() * 2);
    operators->upload(c.data(), at(2), c.size() * 4);
    g.a = at(0), g.b = at(1);
    g.c = Elements(reinterpret_cast<float*>(at(2)));
    g.accumulate = true;
    operators->gemm(g);
    operators->download(at(2), c.data(), c.size() * 4);
    return c;
  }

  std::optional<CudaStream> stream;
  std::optional<GemmAlgorithms> algorithms;
  std::optional<DeviceMemory> memory, scratch;
  std::unique_ptr<CudaOperators> operators;
  std::vector<std::string> notices;
};

Bits random_bits(std::int64_t count, std::uint64_t seed, float scale) {
  SeededRandom random(seed);
  Bits bits(static_cast<std::size_t>(count));
  for (std::uint16_t& x : bits)
    x = float_to_bf16(scale * static_cast<float>(2.0 * random.unit() - 1.0));
  return bits;
}

// What the format holds of the values, scaled by the greatest of them.
template <class Format>
std::vector<double> rounded(const Bits& bits) {
  float greatest = 0;
  for (const std::uint16_t x : bits) greatest = std::max(greatest, std::abs(bf16_to_float(x)));
  const cuda::Fp8Scale s = cuda::fp8_scale<Format>(cuda::bits_of(greatest));
  std::vector<double> values;
  for (const std::uint16_t x : bits)
    values.push_back(static_cast<double>(cuda::float_from_fp8<Format>(
                         cuda::fp8_from_float<Format>(bf16_to_float(x) * s.scale))) *
                     s.inverse);
  return values;
}

TEST_CASE("products of 8 bits are those of the rounded operands") {
  Fp8Fixture f;
  for (int which = 0; which < 3; ++which) {
    CAPTURE(which);
    const Gemm g = layer_product(which, 21, 48, 64);
    const Bits a = random_bits(g.m * g.k, 1, which == 0 ? 3.0f : 1e-6f);
    const Bits b = random_bits(g.k * g.n, 2, 0.05f);
    const std::vector<double> a_held = which == 0 ? rounded<cuda::E4M3>(a) : rounded<cuda::E5M2>(a);
    const std::vector<double> b_held = rounded<cuda::E4M3>(b);
    const std::vector<float> before(static_cast<std::size_t>(g.m * g.n), 1e-7f);
    const std::vector<float> found = f.product(g, a, b, before);
    REQUIRE(f.operators->failure().ok());
    double worst = 0, greatest = 0, rounding = 0;
    for (std::int64_t i = 0; i < g.m; ++i) {
      for (std::int64_t j = 0; j < g.n; ++j) {
        double sum = 1e-7f, exact = 1e-7f;
        for (std::int64_t k = 0; k < g.k; ++k) {
          const auto ai = static_cast<std::size_t>(g.transpose_a ? k * g.m + i : i * g.k + k);
          const auto bi = static_cast<std::size_t>(g.transpose_b ? j * g.k + k : k * g.n + j);
          sum += a_held[ai] * b_held[bi];
          exact += static_cast<double>(bf16_to_float(a[ai])) * bf16_to_float(b[bi]);
        }
        const double here = found[static_cast<std::size_t>(i * g.n + j)];
        worst = std::max(worst, std::abs(here - sum));
        rounding = std::max(rounding, std::abs(here - exact));
        greatest = std::max(greatest, std::abs(sum));
      }
    }
    CHECK(worst < 1e-5 * greatest);
    CHECK(rounding > 1e-3 * greatest);  // it was 8 bits
  }
  CHECK(f.notices.empty());
}

TEST_CASE("what is not finite is not hidden by the rounding") {
  Fp8Fixture f;
  const Gemm g = layer_product(0, 4, 32, 16);
  const std::vector<float> before(static_cast<std::size_t>(g.m * g.n));
  for (const std::uint16_t bad : {0x7f80, 0xff80, 0x7fc0}) {
    Bits a = random_bits(g.m * g.k, 1, 1.0f);
    a[5] = bad;
    const std::vector<float> found = f.product(g, a, random_bits(g.k * g.n, 2, 1.0f), before);
    CHECK(std::isnan(found[0]));
  }
}

TEST_CASE("what fp8 does not reach is bf16's, and told once") {
  Fp8Fixture f;
  const auto in_bf16 = [&](const Gemm& wanted) {
    Gemm g = wanted;
    const Bits a = random_bits(g.m * g.k, 1, 1.0f), b = random_bits(g.k * g.n, 2, 1.0f);
    const std::vector<float> before(static_cast<std::size_t>(g.m * g.n));
    const std::vector<float> found = f.product(g, a, b, before);
    g.narrow_a = g.narrow_b = Narrow::kNot;
    return found == f.product(g, a, b, before);
  };
  CHECK_FALSE(in_bf16(layer_product(0, 5, 32, 32)));
  CHECK(in_bf16(layer_product(0, 5, 32, 40)));
  CHECK(in_bf16(layer_product(0, 7, 32, 24)));
  REQUIRE(f.notices.size() == 1);
  CHECK(f.notices[0] ==
        "fp8: the product of 5 x 40 x 32 is computed in bf16: 40 columns are no multiple of 16 "
        "(told once)");
}

TEST_CASE("a product that the library has no algorithm of 8 bits for is computed in bf16") {
  Fp8Fixture f({.fp8_algorithms = false});
  const Gemm g = layer_product(0, 5, 32, 32);
  const Bits a = random_bits(g.m * g.k, 1, 1.0f), b = random_bits(g.k * g.n, 2, 1.0f);
  const std::vector<float> before(static_cast<std::size_t>(g.m * g.n));
  const std::vector<float> found = f.product(g, a, b, before);
  REQUIRE(f.operators->failure().ok());
  Gemm wide = g;
  wide.narrow_a = wide.narrow_b = Narrow::kNot;
  CHECK(found == f.product(wide, a, b, before));
  CHECK(f.product(g, a, b, before) == found);  // and stays so
  REQUIRE(f.notices.size() == 1);
  CHECK(f.notices[0].find("no algorithm for the product fp8") != std::string::npos);
}

TEST_CASE("8 bits are of compute capability 8.9 and later") {
  for (const auto& [major, minor, good] :
       {std::tuple(8, 0, false), {8, 6, false}, {8, 9, true}, {9, 0, true}, {12, 0, true}}) {
    troupe::tests::fake_cuda_reset({.compute_major = major, .compute_minor = minor});
    const auto device =
        CudaDevice::open(CudaLibrary::over(troupe::tests::fake_cuda_table()), 0, MapEnvironment())
            .value();
    const Status status = check_fp8(*device);
    CHECK(status.ok() == good);
    if (!good) {
      CHECK(status.code() == Code::kUnsupported);
      CHECK(status.message().find(fmt::format("this one has {}.{}", major, minor)) !=
            std::string::npos);
      CHECK(status.message().find("use bf16: true") != std::string::npos);
    }
  }
}

// --- whole models

struct Steps {
  std::vector<double> losses;
  std::vector<float> parameters;
};

Steps steps_of(const NamedConfig& named, bool fp8, int steps,
               Recompute recompute = Recompute::kLayers) {
  troupe::tests::fake_cuda_reset();
  Bench bench(CudaLibrary::over(troupe::tests::fake_cuda_table()), {.rehearsal = true});
  tools::gpu::Gpu* gpu = bench.gpu().value();
  const TrainOptions options{
      .compute = DType::kBF16, .activations = DType::kBF16, .recompute = recompute, .fp8 = fp8};
  const auto model = tools::gpu::gpu_model(named.config, options, *gpu).value();
  REQUIRE(model->set_parameters(tools::gpu::initial_parameters(named.config, model->layout(), 3), 0)
              .ok());
  Steps result;
  for (int step = 1; step <= steps; ++step) {
    const CountingBatch batch(options.rows, options.length, named.config.vocab_size, step, false);
    REQUIRE(model->zero_gradients().ok());
    const LossSum sum =
        model->forward_backward(batch.micro(), 1.0f / static_cast<float>(2 * (options.length - 1)))
            .value();
    result.losses.push_back(sum.loss_sum / static_cast<double>(sum.target_count));
    REQUIRE(model->update({.learning_rate = 3e-3, .weight_decay = 0.01, .step = step}).ok());
  }
  result.parameters = model->parameters().value();
  return result;
}

TEST_CASE("every family's steps in fp8 follow those in bf16, and learn") {
  int steps = 8;  // of the first, which shows the learning
  for (const NamedConfig& named : tools::gpu::small_models(true)) {
    CAPTURE(named.name);
    const Steps wide = steps_of(named, false, steps), narrow = steps_of(named, true, steps);
    // E4M3 rounds by 2⁻⁴ at most, E5M2 by 2⁻³; sums of many average that out.
    for (int i = 0; i < steps; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(narrow.losses[at] == doctest::Approx(wide.losses[at]).epsilon(0.03));
    }
    if (steps > 3) CHECK(narrow.losses.back() < 0.97 * narrow.losses.front());
    CHECK(narrow.parameters != wide.parameters);
    steps = 3;
  }
}

TEST_CASE("what is computed again in fp8 has the bits of the first time") {
  const NamedConfig named = tools::gpu::small_models(true).front();
  const Steps kept = steps_of(named, true, 2, Recompute::kNothing);
  for (const Recompute recompute : {Recompute::kCheapOperators, Recompute::kLayers}) {
    const Steps again = steps_of(named, true, 2, recompute);
    CHECK(again.losses == kept.losses);
    CHECK(again.parameters == kept.parameters);
  }
}

}  // namespace
}  // namespace troupe::train::tests
