// Who computes attention, with what scratch memory, in which pieces. Over the tests' GPU, whose
// cuDNN computes as the CPU does and rounds as cuDNN would.

#include "train/cuda/operators/device_attention.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/random.h"
#include "tests/train/cuda/device/device_fixture.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/cuda/operators/cuda_operators.h"
#include "train/cuda/operators/table_calls.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

using troupe::tests::fake_cuda_calls;

constexpr std::int64_t kSlackBytes = 1 << 20;  // of every workspace's bound

// Values that bf16 holds.
std::vector<float> held(std::int64_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = bf16_to_float(float_to_bf16(static_cast<float>(random.unit() - 0.5)));
  return values;
}

std::int64_t query_width(const AttentionShape& s) { return s.query_heads * s.head_dim; }
std::int64_t key_width(const AttentionShape& s) { return s.key_heads * s.head_dim; }
std::int64_t tokens(const AttentionShape& s) { return s.batch * s.query_length; }

// Queries, keys and values of one matrix. `segment`: tokens of each.
struct Packed {
  explicit Packed(AttentionShape given, std::int64_t segment = 0) : shape(given) {
    width = query_width(shape) + 2 * key_width(shape);
    shape.key_length = shape.query_length;
    shape.query_stride = shape.key_stride = width;
    shape.key_batch_stride = shape.key_length * width;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    qkv = held(tokens(shape) * width, 1);
    dout = held(tokens(shape) * query_width(shape), 2);
    for (std::int64_t i = 0; segment > 0 && i < tokens(shape); ++i)
      first_key.push_back(static_cast<std::int32_t>(i % shape.query_length / segment * segment));
    if (segment > 0) shape.first_key = first_key.data();
  }
  void set_window(std::int64_t window) {
    first_key.clear();
    for (std::int64_t i = 0; i < tokens(shape); ++i)
      first_key.push_back(static_cast<std::int32_t>(
          std::max<std::int64_t>(0, i % shape.query_length - window + 1)));
    shape.first_key = first_key.data();
    shape.window = window;
  }

  void drop_out(double probability) {
    for (std::int64_t i = 0; i < tokens(shape); ++i) {
      samples.push_back(static_cast<std::int32_t>(i / shape.query_length));
      places.push_back(static_cast<std::int32_t>(i % shape.query_length));
    }
    shape.dropout = dropout_of(probability);
    shape.dropout.samples = samples.data(), shape.dropout.tokens = places.data();
  }

  AttentionShape shape;
  std::int64_t width = 0;
  std::vector<float> qkv, dout;
  std::vector<std::int32_t> first_key, samples, places;
};

struct Results {
  std::vector<float> out, log_sum_exp, dqkv;
};

void round_all(std::vector<float>& values) {
  for (float& x : values) x = bf16_to_float(float_to_bf16(x));
}

// What the CPU makes of it, rounded where cuDNN's results are.
Results expected(const Packed& p) {
  Arena arena(1);
  const auto cpu = make_cpu_operators(arena);
  Results r;
  r.out.resize(p.dout.size());
  r.log_sum_exp.resize(static_cast<std::size_t>(tokens(p.shape) * p.shape.query_heads));
  r.dqkv.resize(p.qkv.size());
  const std::int64_t keys = query_width(p.shape), values = keys + key_width(p.shape);
  const float* q = p.qkv.data();
  float* dq = r.dqkv.data();
  cpu->attention_forward(p.shape, q, q + keys, q + values, r.out.data(), r.log_sum_exp.data());
  round_all(r.out);
  cpu->attention_backward(p.shape, q, q + keys, q + values, r.out.data(), r.log_sum_exp.data(),
                          p.dout.data(), dq, dq + keys, dq + values);
  round_all(r.dqkv);
  return r;
}

struct AttentionFixture : DeviceFixture {
  explicit AttentionFixture(
      const troupe::tests::FakeCudaOptions& options = {.cudnn_version = 91900})
      : DeviceFixture(options),
        stream(CudaStream::create(device).value()),
        memory(DeviceMemory::allocate(device, 48 << 20, "tensors", MemoryPurpose::kActivations)
                   .value()) {}
  ~AttentionFixture() {
    attention.reset();
    memory.reset(), stream.reset();
  }
  void make(AttentionOptions options = {}) {
    options.notice = [this](const std::string& text) { notices.push_back(text); };
    attention.emplace(device->library(), options);
  }
  std::byte* take(std::int64_t bytes) {
    std::byte* at = memory->data() + used;
    used += (bytes + 255) / 256 * 256;
    REQUIRE(used <= memory->size());
    return at;
  }

  // Numbers on the device, as fp32 or bf16.
  std::byte* put(const std::vector<float>& values, int type) {
    std::byte* at = take(static_cast<std::int64_t>(values.size()) * 4);
    if (type == TROUPE_CUDA_F32) {
      std::memcpy(at, values.data(), values.size() * 4);
    } else {
      bf16_from_float(values.data(), reinterpret_cast<std::uint16_t*>(at),
                      static_cast<std::int64_t>(values.size()));
    }
    return at;
  }
  std::vector<float> get(const std::byte* at, std::size_t count, int type) {
    std::vector<float> values(count);
    if (type == TROUPE_CUDA_F32) {
      std::memcpy(values.data(), at, count * 4);
    } else {
      float_from_bf16(reinterpret_cast<const std::uint16_t*>(at), values.data(),
                      static_cast<std::int64_t>(count));
    }
    return values;
  }

  // Both passes over tensors of a type.
  Results run(const Packed& p, int type, Arithmetic arithmetic = Arithmetic::kBf16) {
    used = 0;
    const AttentionShape& s = p.shape;
    AttentionCall call{
        .shape = table_attention(s, type), .arithmetic = arithmetic, .window = s.window};
    const auto put_integers = [&](const std::vector<std::int32_t>& values) {
      std::byte* at = take(static_cast<std::int64_t>(values.size()) * 4);
      std::memcpy(at, values.data(), values.size() * 4);
      return reinterpret_cast<const std::int32_t*>(at);
    };
    if (s.first_key) call.shape.first_key = put_integers(p.first_key);
    if (const Dropout& d = s.dropout)
      call.dropout = {.threshold = d.threshold,
                      .scale = d.scale,
                      .samples = put_integers(p.samples),
                      .tokens = put_integers(p.places)};
    const std::int64_t element = type == TROUPE_CUDA_F32 ? 4 : 2;
    const std::int64_t keys = query_width(s) * element, values = keys + key_width(s) * element;
    std::byte* q = put(p.qkv, type);
    std::byte* dout = put(p.dout, type);
    std::byte* out = take(static_cast<std::int64_t>(p.dout.size()) * 4);
    std::byte* dq = take(static_cast<std::int64_t>(p.qkv.size()) * 4);
    const auto statistics = static_cast<std::size_t>(tokens(s) * s.query_heads);
    std::byte* sums = take(static_cast<std::int64_t>(statistics) * 4);
    const std::int64_t scratch_bytes =
        std::max(attention->scratch_bytes(call, AttentionPass::kForward),
                 attention->scratch_bytes(call, AttentionPass::kBackward));
    std::byte* scratch = take(scratch_bytes);
    std::memset(scratch, 0x7f, static_cast<std::size_t>(scratch_bytes));
    std::byte* behind = take(256);
    std::memset(behind, 0x55, 256);
    forward_code = attention->forward(device->context(), stream->get(), call, q, q + keys,
                                      q + values, out, reinterpret_cast<float*>(sums),
                                      {scratch, static_cast<std::size_t>(scratch_bytes)});
    backward_code =
        attention->backward(device->context(), stream->get(), call, q, q + keys, q + values, out,
                            reinterpret_cast<float*>(sums), dout, dq, dq + keys, dq + values,
                            {scratch, static_cast<std::size_t>(scratch_bytes)});
    REQUIRE(stream->wait("attention").ok());
    CHECK(std::all_of(behind, behind + 256, [](std::byte b) { return b == std::byte{0x55}; }));
    return {get(out, p.dout.size(), type), get(sums, statistics, TROUPE_CUDA_F32),
            get(dq, p.qkv.size(), type)};
  }
  void check(const Packed& p, const Results& got) {
    const Results want = expected(p);
    CHECK(forward_code == TROUPE_CUDA_OK);
    CHECK(backward_code == TROUPE_CUDA_OK);
    CHECK(got.out == want.out);
    CHECK(got.log_sum_exp == want.log_sum_exp);
    CHECK(got.dqkv == want.dqkv);
  }

  std::optional<CudaStream> stream;
  std::optional<DeviceMemory> memory;
  std::optional<DeviceAttention> attention;
  std::vector<std::string> notices;
  std::int64_t used = 0;
  int forward_code = -1, backward_code = -1;
};

const AttentionShape kSmall{
    .batch = 2, .query_length = 21, .query_heads = 4, .key_heads = 2, .head_dim = 16};

TEST_CASE("bf16 attention is cuDNN's, on tensors of bf16 as they lie and on rounded ones of fp32") {
  AttentionFixture f;
  f.make();
  const Packed p(kSmall);
  for (const int type : {TROUPE_CUDA_BF16, TROUPE_CUDA_F32}) {
    CAPTURE(type);
    f.check(p, f.run(p, type));
  }
  CHECK(f.attention->passes().fused == 4);
  CHECK(f.attention->passes().own == 0);
  CHECK(fake_cuda_calls("attention_forward") == 0);
  CHECK(f.notices.empty());
  // Planned once for each pass: rounded tensors have the strides of the others.
  CHECK(fake_cuda_calls("attention_plan_create") == 2);
  // Of bf16 tensors nothing is copied.
  CHECK(fake_cuda_calls("convert") == 2 + 4);
}

TEST_CASE("fp32 arithmetic is the own kernel's, and so is all where cuDNN is not wanted") {
  AttentionFixture f;
  f.make();
  const Packed p(kSmall);
  f.run(p, TROUPE_CUDA_F32, Arithmetic::kFp32);
  f.make({.fused = false});
  f.run(p, TROUPE_CUDA_F32);
  CHECK(fake_cuda_calls("attention_plan_create") == 0);
  CHECK(fake_cuda_calls("attention_forward") == 2);
  CHECK(fake_cuda_calls("attention_backward") == 2);
  CHECK(f.notices.empty());
}

TEST_CASE("segments are a mask, a window alone is none") {
  AttentionFixture f;
  f.make();
  for (const int type : {TROUPE_CUDA_BF16, TROUPE_CUDA_F32}) {
    const Packed segments(kSmall, 5);
    f.check(segments, f.run(segments, type));
  }
  CHECK(fake_cuda_calls("attention_mask") == 4);
  Packed window(kSmall);
  window.set_window(6);
  f.check(window, f.run(window, TROUPE_CUDA_BF16));
  CHECK(fake_cuda_calls("attention_mask") == 4);
  // A window across segments is a mask like any other.
  window.shape.window = 0;
  f.check(window, f.run(window, TROUPE_CUDA_BF16));
  CHECK(fake_cuda_calls("attention_mask") == 6);
  CHECK(f.attention->passes().own == 0);
}

TEST_CASE("rows and groups of heads are computed in pieces where a workspace would be too large") {
  const AttentionShape shape{
      .batch = 4, .query_length = 40, .query_heads = 6, .key_heads = 3, .head_dim = 8};
  // Of a row, rounded up to 128 tokens: sums, their products, dk and dv of every head.
  const std::int64_t group = 2 * 128 * (4 + 128 * 2) + 2 * 2 * 128 * 8 * 2, row = 3 * group;
  for (const std::int64_t segment : {0, 13}) {
    const std::int64_t mask = segment ? 40 * 40 * 2 : 0;
    const Packed p(shape, segment);
    const auto backward_calls = [&](std::int64_t piece_bytes) {
      AttentionFixture f;
      f.make({.piece_bytes = piece_bytes});
      f.check(p, f.run(p, TROUPE_CUDA_BF16));
      CHECK(f.attention->passes().fused == 2);
      CHECK(fake_cuda_calls("attention_plan_create") == 2);
      return fake_cuda_calls("attention_plan_backward");
    };
    CHECK(backward_calls(kSlackBytes + 4 * (row + mask)) == 1);
    CHECK(backward_calls(kSlackBytes + 4 * (row + mask) - 1) == 2);
    CHECK(backward_calls(kSlackBytes + 2 * (row + mask) - 1) == 4);
    CHECK(backward_calls(kSlackBytes + row + mask - 1) == 12);
  }
  // What no cut makes small enough is left to the own kernel, with the way out.
  AttentionFixture f;
  f.make({.piece_bytes = kSlackBytes, .workspace_max_bytes = kSlackBytes + group - 1});
  const Packed p(shape);
  const Results got = f.run(p, TROUPE_CUDA_BF16);
  CHECK(f.attention->passes().fused == 1);
  CHECK(f.attention->passes().own == 1);
  REQUIRE(f.notices.size() == 1);
  CHECK(f.notices[0].find("gradients in any order need less") != std::string::npos);
  CHECK(got.dqkv == expected(p).dqkv);
}

TEST_CASE("unordered gradients take a workspace that grows with the length alone") {
  TroupeCudaFusedAttention s{.batch = 1,
                             .query_length = 4096,
                             .key_length = 4096,
                             .query_heads = 28,
                             .key_heads = 4,
                             .head_dim = 128,
                             .backward = 1};
  const std::int64_t any_order = fused_attention_workspace_bound(s);
  s.ordered = 1;
  const std::int64_t ordered = fused_attention_workspace_bound(s);
  // What cuDNN 9.19 asks for on an H200: 117,899,520 and 998,703,360 bytes.
  CHECK(any_order >= 117'899'520);
  CHECK(any_order < 200'000'000);
  CHECK(ordered >= 998'703'360);
  CHECK(ordered < 1'000'000'000);
}

TEST_CASE("where cuDNN is missing or refuses, the own kernel serves and a notice says why, once") {
  const Packed p(kSmall);
  const auto one_notice = [](const AttentionFixture& f, const std::string& part) {
    REQUIRE(f.notices.size() == 1);
    CAPTURE(f.notices[0]);
    CHECK(f.notices[0].find("Troupe's own kernel") != std::string::npos);
    CHECK(f.notices[0].find(part) != std::string::npos);
  };
  SUBCASE("missing") {
    AttentionFixture f({.cudnn_version = 0});
    f.make();
    for (int i = 0; i < 2; ++i) CHECK(f.run(p, TROUPE_CUDA_BF16).dqkv == expected(p).dqkv);
    one_notice(f, "libcudnn.so.9 is not there");
    CHECK(fake_cuda_calls("fused_attention_available") == 1);
    CHECK(fake_cuda_calls("attention_backward") == 2);
  }
  SUBCASE("refused, and not asked again") {
    AttentionFixture f;
    f.make();
    AttentionShape wide = kSmall;
    wide.head_dim = 136;
    const Packed w(wide);
    for (int i = 0; i < 2; ++i) CHECK(f.run(w, TROUPE_CUDA_BF16).dqkv == expected(w).dqkv);
    one_notice(f, "no engine for heads of this size");
    CHECK(fake_cuda_calls("attention_plan_create") == 2);
  }
  SUBCASE("more workspace than was reserved") {
    AttentionFixture f({.cudnn_version = 91900, .cudnn_workspace_bytes = 1 << 30});
    f.make();
    CHECK(f.run(p, TROUPE_CUDA_BF16).dqkv == expected(p).dqkv);
    one_notice(f, "it wants 1073741824 bytes of workspace");
    CHECK(fake_cuda_calls("attention_plan_destroy") == 2);
  }
  SUBCASE("heads that no vector holds") {
    AttentionFixture f;
    f.make();
    AttentionShape odd = kSmall;
    odd.head_dim = 12;
    const Packed o(odd);
    CHECK(f.run(o, TROUPE_CUDA_BF16).dqkv == expected(o).dqkv);
    one_notice(f, "not all multiples of 8");
    CHECK(fake_cuda_calls("attention_plan_create") == 0);
  }
}

TEST_CASE("a dropout of the weights is the own kernel's, and a notice says so once") {
  AttentionFixture f;
  f.make();
  Packed p(kSmall);
  p.drop_out(0.3);
  f.check(p, f.run(p, TROUPE_CUDA_BF16));
  CHECK(f.run(p, TROUPE_CUDA_F32).log_sum_exp == expected(p).log_sum_exp);
  CHECK(f.attention->passes().fused == 0);
  CHECK(f.attention->passes().own == 4);
  CHECK(fake_cuda_calls("attention_dropout_forward") == 2);
  CHECK(fake_cuda_calls("attention_dropout_backward") == 2);
  REQUIRE(f.notices.size() == 1);
  CHECK(f.notices[0].find("attention_dropout (GPT-2: attn_pdrop) of 0") != std::string::npos);
  // What evaluates, without dropout, is cuDNN's.
  f.check(Packed(kSmall), f.run(Packed(kSmall), TROUPE_CUDA_BF16));
  CHECK(f.attention->passes().fused == 2);
}

TEST_CASE("an address between vectors is the own kernel's") {
  AttentionFixture f;
  f.make();
  const AttentionShape& s = Packed(kSmall).shape;
  const AttentionCall call{.shape = {.batch = s.batch,
                                     .query_length = s.query_length,
                                     .key_length = s.key_length,
                                     .query_heads = s.query_heads,
                                     .key_heads = s.key_heads,
                                     .head_dim = s.head_dim,
                                     .query_stride = s.query_stride,
                                     .key_stride = s.key_stride,
                                     .key_batch_stride = s.key_batch_stride,
                                     .scale = 1.0f,
                                     .type = TROUPE_CUDA_BF16},
                           .arithmetic = Arithmetic::kBf16};
  std::byte* qkv = f.take(1 << 16);
  std::memset(qkv, 0, 1 << 16);
  std::byte* out = f.take(1 << 16);
  const std::int64_t scratch_bytes = f.attention->scratch_bytes(call, AttentionPass::kForward);
  const std::span<std::byte> scratch(f.take(scratch_bytes),
                                     static_cast<std::size_t>(scratch_bytes));
  const auto forward = [&](std::byte* q) {
    return f.attention->forward(f.device->context(), f.stream->get(), call, q, q + 128, q + 192,
                                out, nullptr, scratch);
  };
  CHECK(forward(qkv + 2) == TROUPE_CUDA_OK);
  CHECK(f.attention->passes().own == 1);
  // Sums that the caller does not want go to scratch memory.
  CHECK(forward(qkv) == TROUPE_CUDA_OK);
  CHECK(f.attention->passes().fused == 1);
  REQUIRE(f.stream->wait("attention").ok());
  REQUIRE(f.notices.size() == 1);
  CHECK(f.notices[0].find("multiple of 16 bytes") != std::string::npos);
}

TEST_CASE("plans that were not used for longest go") {
  AttentionFixture f;
  f.make({.plans_max = 4});
  const auto run = [&](std::int64_t length) {
    AttentionShape shape = kSmall;
    shape.query_length = length;
    const Packed p(shape);
    f.check(p, f.run(p, TROUPE_CUDA_BF16));
  };
  run(8), run(9);
  CHECK(fake_cuda_calls("attention_plan_destroy") == 0);
  run(8);
  CHECK(fake_cuda_calls("attention_plan_create") == 4);
  run(10);  // those of 9
  run(8);
  CHECK(fake_cuda_calls("attention_plan_create") == 6);
  CHECK(fake_cuda_calls("attention_plan_destroy") == 2);
  f.attention.reset();
  CHECK(fake_cuda_calls("attention_plan_destroy") == 6);
}

TEST_CASE("a failure is told, not computed around") {
  AttentionFixture f;
  f.make();
  troupe::tests::fake_cuda_inject(
      {.function = "attention_plan_create", .code = TROUPE_CUDA_OUT_OF_MEMORY, .text = "no room"});
  f.run(Packed(kSmall), TROUPE_CUDA_BF16);
  CHECK(f.forward_code == TROUPE_CUDA_OUT_OF_MEMORY);
  CHECK(fake_cuda_calls("attention_forward") == 0);
}

TEST_CASE("the next tokens of a text are the own kernel's, its beginning cuDNN's") {
  AttentionFixture f;
  f.make();
  AttentionCall call{.shape = {.batch = 1,
                               .query_length = 1,
                               .key_length = 100,
                               .query_heads = 4,
                               .key_heads = 2,
                               .head_dim = 16,
                               .query_stride = 128,
                               .key_stride = 32,
                               .key_batch_stride = 3200,
                               .scale = 1.0f,
                               .type = TROUPE_CUDA_F32},
                     .arithmetic = Arithmetic::kBf16};
  CHECK(f.attention->scratch_bytes(call, AttentionPass::kForward) == 0);
  call.shape.query_length = 64;
  CHECK(f.attention->scratch_bytes(call, AttentionPass::kForward) > kSlackBytes);
}

TEST_CASE("a single row of any length has one of few plans, and bits of its own tokens alone") {
  AttentionFixture f;
  f.make();
  AttentionShape one = kSmall;
  one.batch = 1;
  for (const std::int64_t length : {64, 1, 21, 63, 50}) {
    CAPTURE(length);
    one.query_length = length;
    for (const int type : {TROUPE_CUDA_BF16, TROUPE_CUDA_F32}) {
      const Packed whole(one);
      f.check(whole, f.run(whole, type));
    }
  }
  CHECK(fake_cuda_calls("attention_plan_create") == 2);
  for (const std::int64_t length : {100, 128, 70}) {
    CAPTURE(length);
    one.query_length = length;
    for (const int type : {TROUPE_CUDA_BF16, TROUPE_CUDA_F32}) {
      const Packed segments(one, 9);
      f.check(segments, f.run(segments, type));
    }
  }
  CHECK(fake_cuda_calls("attention_plan_create") == 4);
  CHECK(f.attention->passes().own == 0);
}

TEST_CASE("less scratch memory than is liked best means more pieces, far less the own kernel") {
  AttentionFixture f;
  f.make();
  const AttentionCall call{.shape = {.batch = 4,
                                     .query_length = 256,
                                     .key_length = 256,
                                     .query_heads = 4,
                                     .key_heads = 2,
                                     .head_dim = 16,
                                     .query_stride = 128,
                                     .key_stride = 128,
                                     .key_batch_stride = 256 * 128,
                                     .scale = 1.0f,
                                     .type = TROUPE_CUDA_BF16},
                           .arithmetic = Arithmetic::kBf16};
  const auto bytes = [&](std::int64_t available) {
    return f.attention->scratch_bytes(call, AttentionPass::kBackward, available);
  };
  const std::int64_t best = bytes(std::int64_t{1} << 40);
  CHECK(bytes(best) == best);
  const std::int64_t less = bytes(best - 1);
  CHECK(less < best);
  CHECK(less > kSlackBytes);
  CHECK(bytes(less) == less);
  CHECK(f.notices.empty());
  // Four bytes of every head's token.
  CHECK(bytes(kSlackBytes) == 4 * 4 * 256 * 4);
  REQUIRE(f.notices.size() == 1);
  CHECK(f.notices[0].find("of workspace, and 1048576 may be had") != std::string::npos);
}

TEST_CASE("the operators' meter reserves what attention takes") {
  AttentionFixture f;
  const Packed p(kSmall, 7);
  AttentionShape shape = p.shape;
  shape.arithmetic = Arithmetic::kBf16;
  GemmAlgorithms algorithms(f.device, 0);
  const auto pass = [&](CudaOperators& operators, float* base) {
    shape.first_key = reinterpret_cast<const std::int32_t*>(base);
    float *q = base + 1024, *out = q + 16384, *dq = out + 16384, *sums = dq + 16384;
    operators.attention_forward(shape, q, q + 64, q + 96, out, sums);
    operators.attention_backward(shape, q, q + 64, q + 96, out, sums, out, dq, dq + 64, dq + 96);
  };
  const auto meter = CudaOperators::meter(f.device->library(), 0);
  pass(*meter, reinterpret_cast<float*>(std::uintptr_t{4096}));
  CHECK(meter->scratch_needed() > kSlackBytes);
  std::byte* tensors = f.take(1 << 20);
  std::memset(tensors, 0, 1 << 20);
  std::byte* scratch = f.take(meter->scratch_needed());
  std::vector<std::string> notices;
  CudaOptions options;
  options.attention.notice = [&](const std::string& text) { notices.push_back(text); };
  {
    const auto operators =
        CudaOperators::create(*f.stream, algorithms,
                              {scratch, static_cast<std::size_t>(meter->scratch_needed())}, options)
            .value();
    pass(*operators, reinterpret_cast<float*>(tensors));
    REQUIRE(operators->synchronize().ok());
    CHECK(operators->scratch_needed() == meter->scratch_needed());
    CHECK(operators->attention_passes().fused == 2);
  }
  CHECK(notices.empty());
  // Less than the own kernel takes.
  const auto too_little =
      CudaOperators::create(*f.stream, algorithms, {scratch, std::size_t{512}}).value();
  pass(*too_little, reinterpret_cast<float*>(tensors));
  CHECK(too_little->failure().code() == Code::kOutOfMemory);
}

}  // namespace
}  // namespace troupe::train::tests
