// Attention with bf16 products beside attention in fp32.

#include <algorithm>

#include "tests/train/cpu/operator_fixture.h"
#include "train/cpu/isa.h"

namespace troupe::train::tests {
namespace {

struct HeadsCase {
  std::int64_t query_length, key_length, heads, key_heads, dim;
  bool segments;
  std::int64_t batch = 2;

  // Queries and keys lie in buffers of their own, with something between two rows.
  std::int64_t query_stride() const { return heads * dim + 5; }
  std::int64_t key_stride() const { return 2 * key_heads * dim; }
  std::int64_t out_elements() const { return batch * query_length * heads * dim; }
  std::vector<std::int32_t> first_keys() const {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < batch * query_length; ++i)
      out.push_back(static_cast<std::int32_t>(i % query_length / 53 * 53));
    return out;
  }
};

struct Attended {
  Vector out, log_sum_exp, dq, dkv;
};

Attended attend(const HeadsCase& c, const Vector& q, const Vector& kv, const Vector& dout,
                Arithmetic arithmetic, int threads, const CpuOptions& options = {}) {
  Arena arena(threads);
  const auto operators = make_cpu_operators(arena, options);
  const auto first_key = c.first_keys();
  AttentionShape s;
  s.batch = c.batch;
  s.query_length = c.query_length, s.key_length = c.key_length;
  s.query_heads = c.heads, s.key_heads = c.key_heads, s.head_dim = c.dim;
  s.query_stride = c.query_stride(), s.key_stride = c.key_stride();
  s.key_batch_stride = c.key_length * c.key_stride();
  s.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  s.first_key = c.segments ? first_key.data() : nullptr;
  s.arithmetic = arithmetic;
  Attended r{Vector(dout.size()),
             Vector(static_cast<std::size_t>(c.batch * c.heads * c.query_length)), Vector(q.size()),
             Vector(kv.size())};
  const float *k = kv.data(), *v = k + c.key_heads * c.dim;
  operators->attention_forward(s, q.data(), k, v, r.out.data(), r.log_sum_exp.data());
  if (c.query_length == c.key_length)
    operators->attention_backward(s, q.data(), k, v, r.out.data(), r.log_sum_exp.data(),
                                  dout.data(), r.dq.data(), r.dkv.data(),
                                  r.dkv.data() + c.key_heads * c.dim);
  return r;
}

// Of all elements together: that of one may be large where it is nearly zero.
double relative_difference(const Vector& a, const Vector& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return size > 0 ? std::sqrt(difference / size) : 0;
}

bool equal(const Attended& a, const Attended& b) {
  return a.out == b.out && a.log_sum_exp == b.log_sum_exp && a.dq == b.dq && a.dkv == b.dkv;
}

TEST_CASE("attention in bf16 is that in fp32 to within bf16, with any threads the same bits") {
  Arena arena(1);
  const bool native = make_cpu_operators(arena)->fast_bf16() && cpu_isa_level() == kCpuAvx512Bf16;
  for (const HeadsCase& c :
       {HeadsCase{70, 70, 4, 2, 6, false}, HeadsCase{256, 256, 2, 2, 48, false},
        HeadsCase{177, 177, 3, 1, 64, true}, HeadsCase{8, 8, 2, 1, 33, false},
        HeadsCase{129, 129, 2, 2, 128, true}, HeadsCase{20, 81, 4, 2, 16, false}}) {
    CAPTURE(c.query_length);
    const Vector q = random_vector(c.batch * c.query_length * c.query_stride(), 1);
    const Vector kv = random_vector(c.batch * c.key_length * c.key_stride(), 2);
    const Vector dout = random_vector(c.out_elements(), 3);
    const Attended exact = attend(c, q, kv, dout, Arithmetic::kFp32, 1);
    const Attended rounded = attend(c, q, kv, dout, Arithmetic::kBf16, 1);
    CHECK(relative_difference(rounded.out, exact.out) < 0.01);
    CHECK(relative_difference(rounded.log_sum_exp, exact.log_sum_exp) < 0.01);
    CHECK(relative_difference(rounded.dq, exact.dq) < 0.02);
    CHECK(relative_difference(rounded.dkv, exact.dkv) < 0.02);
    CHECK((rounded.out != exact.out) == native);
    CHECK(equal(rounded, attend(c, q, kv, dout, Arithmetic::kBf16, 3)));
    // Without the processor's bf16 it is that of fp32.
    CHECK(equal(exact, attend(c, q, kv, dout, Arithmetic::kBf16, 1, {.native_bf16 = false})));
  }
}

TEST_CASE("attention of a decoded token is fp32") {
  const HeadsCase c{1, 40, 4, 2, 16, false};
  const Vector q = random_vector(c.batch * c.query_stride(), 1);
  const Vector kv = random_vector(c.batch * c.key_length * c.key_stride(), 2);
  const Vector dout(static_cast<std::size_t>(c.out_elements()));
  CHECK(equal(attend(c, q, kv, dout, Arithmetic::kBf16, 1),
              attend(c, q, kv, dout, Arithmetic::kFp32, 1)));
}

TEST_CASE("attention in bf16 sees no key after a query, and hides nothing that is not finite") {
  const HeadsCase c{80, 80, 1, 1, 24, false};
  const Vector q = random_vector(c.batch * 80 * c.query_stride(), 1);
  Vector kv = random_vector(c.batch * 80 * c.key_stride(), 2);
  const Vector dout = random_vector(c.out_elements(), 3);
  const Attended before = attend(c, q, kv, dout, Arithmetic::kBf16, 1);
  for (std::int64_t d = 0; d < c.key_stride(); ++d)
    kv[static_cast<std::size_t>(70 * c.key_stride() + d)] = 1e4f;
  const Attended after = attend(c, q, kv, dout, Arithmetic::kBf16, 1);
  const auto row70 = static_cast<std::ptrdiff_t>(70 * c.dim);
  CHECK(std::equal(before.out.begin(), before.out.begin() + row70, after.out.begin()));
  CHECK(before.out[static_cast<std::size_t>(row70)] != after.out[static_cast<std::size_t>(row70)]);
  kv[static_cast<std::size_t>(70 * c.key_stride())] = std::nanf("");
  const Attended spoilt = attend(c, q, kv, dout, Arithmetic::kBf16, 1);
  CHECK(std::isnan(spoilt.out[static_cast<std::size_t>(row70)]));
}

}  // namespace
}  // namespace troupe::train::tests
