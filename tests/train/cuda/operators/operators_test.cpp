// The checks of a GPU's values, over the tests' GPU, which computes as the CPU does: they pass bit
// by bit here, which shows that tensors, sizes and strides go where they should; and they fail
// where an operator is wrong, which shows that they can. Over the library's own kernels they pass
// within the tolerances of a real GPU.

#include "tests/train/cuda/device/device_fixture.h"
#include "tests/train/cuda/fake/host_gpu.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/runner.h"

namespace troupe::train::tests {
namespace {

using namespace troupe::tools;

void all_pass(const std::string& group, std::size_t at_least,
              const troupe::tests::FakeCudaOptions& options = {}) {
  troupe::tests::fake_cuda_reset(options);
  {
    gpu::Bench bench(
        CudaLibrary::over(troupe::tests::fake_cuda_table()),
        {.rehearsal = true, .kernels = options.kernels != troupe::tests::FakeKernels::kNone});
    const std::vector<gpu::Check> checks = gpu::selected_checks({group});
    CHECK(checks.size() >= at_least);
    for (const gpu::Check& check : checks) {
      const gpu::CheckResult result = gpu::run_check(check, bench);
      CAPTURE(result.name);
      CAPTURE(result.reason);
      CAPTURE(result.figure.text);
      CHECK(result.verdict == gpu::Verdict::kPassed);
    }
  }
  CHECK(troupe::tests::fake_cuda_left().empty());
}

TEST_CASE("operators in fp32 and bf16 are the CPU's") { all_pass("operators/", 39); }
TEST_CASE("products of every type are the CPU's") { all_pass("products/values", 4); }
TEST_CASE("what follows products in them is as apart") { all_pass("products/epilogues", 2); }
TEST_CASE("attention is the CPU's") { all_pass("attention/values", 2); }
TEST_CASE("attention by the tests' cuDNN is the CPU's") {
  all_pass("attention/cudnn", 4, {.cudnn_version = 91900});
}
TEST_CASE("the optimizer is the CPU's") { all_pass("optimizer/", 5); }
TEST_CASE("models' losses and gradients are the CPU's") { all_pass("model/", 3); }
TEST_CASE("training goes as on the CPU") { all_pass("training/steps", 3); }

const troupe::tests::FakeCudaOptions kByPhases = {.kernels = troupe::tests::FakeKernels::kByPhases};

TEST_CASE(
    "the library's kernels: operators in fp32 and bf16, attention and gradients that cancel out") {
  all_pass("operators/", 39, kByPhases);
  all_pass("attention/values f32", 1, kByPhases);
}
TEST_CASE("the library's kernels: steps of training") {
  all_pass("training/steps f32", 1, kByPhases);
}
TEST_CASE("the library's kernels: what is updated under a log, each thread by itself") {
  if (!troupe::tests::host_gpu::why_not_apart().empty()) return;
  all_pass("optimizer/", 5, {.kernels = troupe::tests::FakeKernels::kByThreads, .kernel_order = 3});
}

// The tests' table with one function that is wrong.
TroupeCudaTable broken_table() { return troupe::tests::fake_cuda_table(); }

gpu::CheckResult result_over(const TroupeCudaTable& table, const std::string& name,
                             bool rehearsal = true) {
  troupe::tests::fake_cuda_reset();
  gpu::Bench bench(CudaLibrary::over(table), {.rehearsal = rehearsal});
  const std::vector<gpu::Check> checks = gpu::selected_checks({name});
  REQUIRE(checks.size() == 1);
  return gpu::run_check(checks.front(), bench);
}

TEST_CASE("a wrong value, one that is left out and one too many are found") {
  // The last element is not computed.
  TroupeCudaTable left_out = broken_table();
  left_out.gelu_forward = [](TroupeCudaStream* stream, std::int32_t type, const void* x, void* act,
                             std::int64_t count) {
    return count == 1
               ? TROUPE_CUDA_OK
               : troupe::tests::fake_cuda_table().gelu_forward(stream, type, x, act, count - 1);
  };
  gpu::CheckResult result = result_over(left_out, "operators/gelu f32");
  CHECK(result.verdict == gpu::Verdict::kFailed);
  CHECK(result.figure.text.find("worst act: ") != std::string::npos);

  // One element beyond the end.
  TroupeCudaTable too_many = broken_table();
  too_many.gelu_forward = [](TroupeCudaStream* stream, std::int32_t type, const void* x, void* act,
                             std::int64_t count) {
    return troupe::tests::fake_cuda_table().gelu_forward(stream, type, x, act, count + 1);
  };
  result = result_over(too_many, "operators/gelu f32");
  CHECK(result.verdict == gpu::Verdict::kFailed);
  CHECK(result.figure.text.find("act: written beyond its end") != std::string::npos);

  // Another function of nearly the same values: outside of a GPU's tolerance, too.
  TroupeCudaTable other = broken_table();
  other.rms_norm_apply = [](TroupeCudaStream* stream, std::int32_t type, const void* x,
                            const float* weight, const float* rstd, void* y, std::int64_t rows,
                            std::int64_t width) {
    return troupe::tests::fake_cuda_table().rms_norm_forward(
        stream, type, x, weight, y, const_cast<float*>(rstd), rows, width, 2e-5f);
  };
  CHECK(result_over(other, "operators/rms_norm f32").verdict == gpu::Verdict::kFailed);
}

TEST_CASE("a call that fails, and one that the device cannot do, are told as such") {
  TroupeCudaTable failing = broken_table();
  failing.rope = [](TroupeCudaStream*, std::int32_t, void*, std::int64_t, const std::int32_t*,
                    const float*, const float*, std::int64_t, std::int64_t, std::int64_t,
                    std::int32_t) -> int { return TROUPE_CUDA_FAILED; };
  gpu::CheckResult result = result_over(failing, "operators/rope f32");
  CHECK(result.verdict == gpu::Verdict::kFailed);
  CHECK(result.broken);
  CHECK(result.reason.find("rope") != std::string::npos);
  failing.rope = [](TroupeCudaStream*, std::int32_t, void*, std::int64_t, const std::int32_t*,
                    const float*, const float*, std::int64_t, std::int64_t, std::int64_t,
                    std::int32_t) -> int { return TROUPE_CUDA_UNSUPPORTED; };
  CHECK(result_over(failing, "operators/rope bf16").verdict == gpu::Verdict::kSkipped);
}

}  // namespace
}  // namespace troupe::train::tests
