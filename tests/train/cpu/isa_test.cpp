// Limits on the instruction set, each in a process of its own: they come before the first product.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "tests/support/command.h"
#include "tests/train/cpu/operator_fixture.h"
#include "train/cpu/isa.h"

namespace troupe::train::tests {
namespace {

// Runs one of the skipped test cases below in a new process; returns its exit status.
int run_alone(const std::string& test_case) {
  std::array<char, 4096> path{};
  REQUIRE(readlink("/proc/self/exe", path.data(), path.size() - 1) > 0);
  return troupe::tests::run_command({path.data(), "--no-skip", "--test-case=" + test_case})
      .exit_code;
}

Vector product_of(Operators& operators, Arithmetic arithmetic) {
  const Vector a = random_vector(50 * 60, 1), b = random_vector(60 * 70, 2);
  Vector c(50 * 70);
  operators.gemm({.m = 50,
                  .n = 70,
                  .k = 60,
                  .a = a.data(),
                  .a_stride = 60,
                  .b = b.data(),
                  .b_stride = 70,
                  .c = c.data(),
                  .c_stride = 70,
                  .arithmetic = arithmetic});
  return c;
}

// What fp32 products are with any instruction set that has FMA: chains in order of k.
Vector chains() {
  const Vector a = random_vector(50 * 60, 1), b = random_vector(60 * 70, 2);
  Vector c(50 * 70);
  for (std::size_t i = 0; i < 50; ++i)
    for (std::size_t j = 0; j < 70; ++j)
      for (std::size_t k = 0; k < 60; ++k)
        c[i * 70 + j] = std::fma(a[i * 60 + k], b[k * 70 + j], c[i * 70 + j]);
  return c;
}

TEST_CASE("child: limited to AVX2" * doctest::skip()) {
  const int before = cpu_isa_level();
  REQUIRE(limit_cpu_isa(kCpuAvx2).ok());
  CHECK(limit_cpu_isa(kCpuAvx2).ok());
  CHECK(cpu_isa_level() == std::min(before, kCpuAvx2));
  OperatorFixture f;
  CHECK(!f.operators->fast_bf16());
  const Vector exact = product_of(*f.operators, Arithmetic::kFp32);
  const Vector rounded = product_of(*f.operators, Arithmetic::kBf16);
  for (std::size_t i = 0; i < exact.size(); ++i) CHECK(std::abs(exact[i] - rounded[i]) < 0.1);
  CHECK(exact != rounded);
  if (before >= kCpuAvx2) CHECK(exact == chains());
  CHECK(limit_cpu_isa(kCpuAvx512).code() == Code::kFailedPrecondition);
  CHECK(cpu_isa_level() == std::min(before, kCpuAvx2));
}

TEST_CASE("child: the processor's own level is no limit" * doctest::skip()) {
  const int level = cpu_isa_level();
  REQUIRE(limit_cpu_isa(level).ok());
  CHECK(cpu_isa_level() == level);
  OperatorFixture f;
  CHECK(f.operators->fast_bf16() == (level >= kCpuAvx512Bf16));
  if (level >= kCpuAvx2) CHECK(product_of(*f.operators, Arithmetic::kFp32) == chains());
}

TEST_CASE("a limit on the instruction set holds") {
  CHECK(run_alone("child: limited to AVX2") == 0);
  CHECK(run_alone("child: the processor*") == 0);
}

TEST_CASE("a limit that comes too late or is none is refused") {
  OperatorFixture f;
  product_of(*f.operators, Arithmetic::kFp32);
  CHECK(limit_cpu_isa(kCpuAvx2).to_string() ==
        "instructions cannot be limited to AVX2 any more: oneDNN has chosen its kernels; set the "
        "limit before operators are made");
  CHECK(limit_cpu_isa(7).code() == Code::kInvalidArgument);
  CHECK(limit_cpu_isa(-1).code() == Code::kInvalidArgument);
  CHECK(std::string(cpu_isa_name(kCpuAmx)) == "AMX");
  CHECK(cpu_isa_level() >= kCpuPlain);
}

}  // namespace
}  // namespace troupe::train::tests
