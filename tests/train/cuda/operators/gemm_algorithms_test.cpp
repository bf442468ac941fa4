// Products' algorithms: chosen once, the same again everywhere.

#include "train/cuda/operators/gemm_algorithms.h"

#include <cstring>

#include "tests/train/cuda/device/device_fixture.h"

namespace troupe::train::tests {
namespace {

TroupeCudaGemm product(std::int64_t n) {
  return {.m = 32,
          .n = n,
          .k = 16,
          .a_stride = 16,
          .b_stride = n,
          .c_stride = n,
          .a_type = TROUPE_CUDA_BF16,
          .b_type = TROUPE_CUDA_BF16,
          .arithmetic = TROUPE_CUDA_COMPUTE_BF16,
          .alignment_bytes = 16};
}

// Which of its algorithms the tests' GPU gave.
std::uint64_t index_of(const Result<TroupeCudaAlgorithm>& algorithm) {
  return algorithm.value().opaque[0];
}

bool same_algorithm(const TroupeCudaAlgorithm& a, const TroupeCudaAlgorithm& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

TEST_CASE("the first that the workspace allows is chosen, and asked for once") {
  DeviceFixture f;
  GemmAlgorithms large(f.device, 32 << 20), small(f.device, 100 << 10), none(f.device, 0);
  CHECK(index_of(large.choose(product(64))) == 0);
  CHECK(index_of(small.choose(product(64))) == 2);
  CHECK(index_of(none.choose(product(64))) == 3);
  CHECK(small.candidates(product(64), 8).value().size() == 2);

  const std::int64_t asked = troupe::tests::fake_cuda_calls("gemm_algorithms");
  CHECK(same_algorithm(large.choose(product(64)).value(), large.choose(product(64)).value()));
  CHECK(troupe::tests::fake_cuda_calls("gemm_algorithms") == asked);
  TroupeCudaGemm adding = product(64);
  adding.accumulate = 1;
  CHECK_FALSE(same_algorithm(large.choose(adding).value(), large.choose(product(64)).value()));
  CHECK(large.size() == 2);
}

TEST_CASE("choices are written and taken again by who has the same library, and by nobody else") {
  std::string text;
  {
    DeviceFixture f;
    GemmAlgorithms first(f.device, 1 << 20);
    REQUIRE(first.choose(product(64)).ok());
    REQUIRE(first.choose(product(128)).ok());
    text = first.to_text();

    // Where the library would now name another one, the written one is taken.
    GemmAlgorithms second(f.device, 1 << 20);
    REQUIRE(second.take_text(text).ok());
    CHECK(second.size() == 2);
    const std::int64_t asked = troupe::tests::fake_cuda_calls("gemm_algorithms");
    CHECK(same_algorithm(second.choose(product(64)).value(), first.choose(product(64)).value()));
    CHECK(troupe::tests::fake_cuda_calls("gemm_algorithms") == asked);
    CHECK(second.to_text() == text);
    CHECK(second.take_text(text).ok());  // the same again

    GemmAlgorithms other_workspace(f.device, 2 << 20);
    CHECK(other_workspace.take_text(text).code() == Code::kFailedPrecondition);
    CHECK(second.take_text("something else").code() == Code::kInvalidArgument);
    CHECK(second.take_text(text.substr(0, text.size() - 20)).code() == Code::kInvalidArgument);
    CHECK(second.take_text(text + "1 2 3\n").code() == Code::kInvalidArgument);
    // A choice that differs from one in use, and one for more workspace than there is.
    std::string changed = text;
    changed[changed.size() - 2] = changed[changed.size() - 2] == '1' ? '2' : '1';
    CHECK(second.take_text(changed).code() == Code::kFailedPrecondition);
    GemmAlgorithms empty(f.device, 1 << 20);
    const std::size_t needs = text.rfind(" 1048576 ");
    REQUIRE(needs != std::string::npos);
    std::string greedy = text;
    greedy.replace(needs, 9, " 1048577 ");
    CHECK(empty.take_text(greedy).code() == Code::kInvalidArgument);
    CHECK(empty.size() == 0);
  }
  DeviceFixture updated({.cublaslt_version = 130200});
  GemmAlgorithms algorithms(updated.device, 1 << 20);
  const Status refused = algorithms.take_text(text);
  CHECK(refused.code() == Code::kFailedPrecondition);
  CHECK(says(refused, "cublasLt 130100"));
  CHECK(says(refused, "cublasLt 130200"));
  CHECK(algorithms.size() == 0);
}

TEST_CASE("what follows a product is part of what its algorithm is chosen and written by") {
  DeviceFixture f;
  GemmAlgorithms algorithms(f.device, 1 << 20);
  TroupeCudaGemm biased = product(64);
  biased.epilogue = TROUPE_CUDA_EPILOGUE_BIAS;
  const TroupeCudaAlgorithm plain = algorithms.choose(product(64)).value();
  const auto chosen = algorithms.choose_if_any(biased).value();
  REQUIRE(chosen);
  CHECK_FALSE(same_algorithm(*chosen, plain));
  CHECK(algorithms.size() == 2);
  CHECK(describe_gemm(biased).ends_with("align=16 +bias"));
  GemmAlgorithms again(f.device, 1 << 20);
  REQUIRE(again.take_text(algorithms.to_text()).ok());
  CHECK(again.to_text() == algorithms.to_text());
  const std::int64_t asked = troupe::tests::fake_cuda_calls("gemm_algorithms");
  CHECK(same_algorithm(*again.choose_if_any(biased).value(), *chosen));
  CHECK(troupe::tests::fake_cuda_calls("gemm_algorithms") == asked);
  // Rows of 4·9 elements, which GELU's input cannot have: asked once, and no choice.
  TroupeCudaGemm none = product(36);
  none.epilogue = TROUPE_CUDA_EPILOGUE_BIAS_GELU;
  CHECK_FALSE(algorithms.choose_if_any(none).value());
  CHECK_FALSE(algorithms.choose_if_any(none).value());
  CHECK(troupe::tests::fake_cuda_calls("gemm_algorithms") == asked + 1);
  CHECK(algorithms.size() == 2);
}

TEST_CASE("a product that the library cannot compute is refused by its sizes") {
  DeviceFixture f;
  GemmAlgorithms algorithms(f.device, 0);
  troupe::tests::fake_cuda_inject({.function = "gemm_algorithms",
                                   .code = TROUPE_CUDA_UNSUPPORTED,
                                   .text = "CUBLAS_STATUS_NOT_SUPPORTED"});
  const auto refused = algorithms.choose(product(64));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().code() == Code::kUnsupported);
  CHECK(says(refused.status(), "bf16 m=32 n=64 k=16 a=bf16/16 b=bf16/64 c=f32/64 align=16"));
}

TEST_CASE("timing tells every candidate, and tuning keeps one of them") {
  DeviceFixture f;
  CudaStream stream = CudaStream::create(f.device).value();
  const TroupeCudaGemm gemm = product(64);
  const std::int64_t workspace = 1 << 20;
  const DeviceMemory memory =
      DeviceMemory::allocate(f.device, 4 << 20, "operands", MemoryPurpose::kOther).value();
  std::memset(memory.data(), 0, static_cast<std::size_t>(memory.size()));
  const GemmAlgorithms::Operands operands{.a = memory.data(),
                                          .b = memory.data() + (1 << 20),
                                          .c = memory.data() + (2 << 20),
                                          .workspace = memory.data() + (3 << 20)};
  GemmAlgorithms algorithms(f.device, workspace);
  const auto timings = algorithms.time(gemm, operands, stream, 8, 3).value();
  REQUIRE(timings.size() == 3);
  CHECK(timings[0].algorithm.opaque[0] == 1);
  CHECK(troupe::tests::fake_cuda_calls("gemm") == 3 * 4);
  REQUIRE(algorithms.tune(gemm, operands, stream, 2, 1).ok());
  CHECK(index_of(algorithms.choose(gemm)) <= 2);
  CHECK(algorithms.size() == 1);
  // With what follows it, by the function for that.
  TroupeCudaGemm biased = gemm;
  biased.epilogue = TROUPE_CUDA_EPILOGUE_BIAS;
  GemmAlgorithms::Operands more = operands;
  more.bias = memory.data() + (1 << 19);
  CHECK(algorithms.time(biased, more, stream, 8, 1).value().size() == 3);
  CHECK(troupe::tests::fake_cuda_calls("gemm_fused") == 3 * 2);
}

}  // namespace
}  // namespace troupe::train::tests
