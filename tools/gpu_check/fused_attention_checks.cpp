// Attention by cuDNN: values against the own kernel's and the CPU's, bits, its rate and what stands
// around it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/base/random.h"
#include "tools/gpu_check/compared.h"
#include "train/cuda/operators/device_attention.h"
#include "train/cuda/operators/table_calls.h"
#include "train/tensor/convert.h"

namespace troupe::tools::gpu {
namespace {

using train::AttentionCall;
using train::AttentionOptions;
using train::AttentionPass;
using train::DeviceAttention;

// Queries, keys and values side by side in one matrix, as a model has them.
struct FusedCase {
  std::int64_t batch, length, query_heads, key_heads, head_dim;
  std::int64_t segment = 0;  // tokens of a segment; 0: one
  std::int64_t window = 0;
  int type = TROUPE_CUDA_BF16;  // F32: rounded for cuDNN, and widened again
  bool ordered = true;
  bool pieces = false;  // each group of heads by itself

  std::int64_t tokens() const { return batch * length; }
  std::int64_t query_width() const { return query_heads * head_dim; }
  std::int64_t key_width() const { return key_heads * head_dim; }
  std::int64_t width() const { return query_width() + 2 * key_width(); }
  std::int64_t element_bytes() const { return type == TROUPE_CUDA_F32 ? 4 : 2; }
  std::string text() const {
    return fmt::format("{} x {} tokens, {} of {} heads of {}{}{}{}{}{}", batch, length, query_heads,
                       key_heads, head_dim, segment ? fmt::format(", segments of {}", segment) : "",
                       window ? fmt::format(", window {}", window) : "",
                       type == TROUPE_CUDA_F32 ? ", fp32 activations" : "",
                       ordered ? "" : ", any order", pieces ? ", in pieces" : "");
  }
  // Of operands in one matrix; first_key: first_keys(), where the shape is used, or null.
  train::AttentionShape shape(const std::int32_t* first_key) const {
    return {.batch = batch,
            .query_length = length,
            .key_length = length,
            .query_heads = query_heads,
            .key_heads = key_heads,
            .head_dim = head_dim,
            .query_stride = width(),
            .key_stride = width(),
            .key_batch_stride = length * width(),
            .scale = static_cast<float>(1 / std::sqrt(double(head_dim))),
            .first_key = first_key};
  }
  // By (batch, length); empty: queries see all before them.
  std::vector<std::int32_t> first_keys() const {
    std::vector<std::int32_t> first;
    for (std::int64_t i = 0; (segment || window) && i < tokens(); ++i) {
      const std::int64_t at = i % length, begin = segment ? at / segment * segment : 0;
      first.push_back(static_cast<std::int32_t>(window ? std::max(begin, at - window + 1) : begin));
    }
    return first;
  }
};

// A case's tensors on the device, and attention over them.
class FusedRun {
 public:
  static Result<FusedRun> create(Gpu& gpu, const FusedCase& c) {
    FusedRun run(gpu, c);
    const std::int64_t element = c.element_bytes();
    run.qkv_ = TROUPE_TRY(gpu.take(c.tokens() * c.width() * element));
    run.dqkv_ = TROUPE_TRY(gpu.take(c.tokens() * c.width() * element));
    run.out_ = TROUPE_TRY(gpu.take(c.tokens() * c.query_width() * element));
    run.dout_ = TROUPE_TRY(gpu.take(c.tokens() * c.query_width() * element));
    run.sums_ = TROUPE_TRY(gpu.take(c.tokens() * c.query_heads * 4));
    const std::vector<std::int32_t> first = c.first_keys();
    std::byte* first_key = TROUPE_TRY(gpu.take(c.tokens() * 4));
    if (!first.empty()) gpu.operators->upload(first.data(), first_key, first.size() * 4);
    run.call_ = {
        .shape = train::table_attention(
            c.shape(first.empty() ? nullptr : reinterpret_cast<const std::int32_t*>(first_key)),
            c.type),
        .arithmetic = train::Arithmetic::kBf16,
        .window = c.segment ? 0 : c.window};
    return run;
  }
  // What is computed next, and the scratch memory that it takes.
  Result<std::unique_ptr<DeviceAttention>> attention(bool fused, std::string* notice) {
    AttentionOptions options{.fused = fused, .ordered = case_.ordered};
    if (case_.pieces) options.piece_bytes = 1;
    options.notice = [notice](const std::string& text) { *notice = text; };
    auto made = std::make_unique<DeviceAttention>(gpu_->device->library(), options);
    scratch_bytes_ = std::max(made->scratch_bytes(call_, AttentionPass::kForward),
                              made->scratch_bytes(call_, AttentionPass::kBackward));
    scratch_ = TROUPE_TRY(gpu_->take(scratch_bytes_));
    return made;
  }
  int forward(DeviceAttention& attention) {
    return attention.forward(gpu_->device->context(), stream(), call_, qkv_, key(qkv_), value(qkv_),
                             out_, reinterpret_cast<float*>(sums_), scratch());
  }
  int backward(DeviceAttention& attention) {
    return attention.backward(gpu_->device->context(), stream(), call_, qkv_, key(qkv_),
                              value(qkv_), out_, reinterpret_cast<float*>(sums_), dout_, dqkv_,
                              key(dqkv_), value(dqkv_), scratch());
  }
  // Both, with rubbish where results and scratch memory are.
  Status run(DeviceAttention& attention) {
    const auto rubbish = [this](std::byte* at, std::int64_t bytes) {
      return gpu_->device->status(gpu_->table().fill(stream(), at, 0x7f, bytes), "filling tensors");
    };
    TROUPE_RETURN_IF_ERROR(rubbish(dqkv_, case_.tokens() * case_.width() * case_.element_bytes()));
    TROUPE_RETURN_IF_ERROR(
        rubbish(out_, case_.tokens() * case_.query_width() * case_.element_bytes()));
    TROUPE_RETURN_IF_ERROR(rubbish(sums_, case_.tokens() * case_.query_heads * 4));
    if (scratch_bytes_ > 0) TROUPE_RETURN_IF_ERROR(rubbish(scratch_, scratch_bytes_));
    TROUPE_RETURN_IF_ERROR(gpu_->device->status(forward(attention), "attention"));
    return gpu_->device->status(backward(attention), "attention's gradients");
  }

  void upload(const std::vector<float>& qkv, const std::vector<float>& dout) {
    upload(qkv, qkv_), upload(dout, dout_);
  }
  std::vector<float> out() { return download(out_, case_.tokens() * case_.query_width()); }
  std::vector<float> gradients() { return download(dqkv_, case_.tokens() * case_.width()); }
  std::vector<float> sums() {
    std::vector<float> values(static_cast<std::size_t>(case_.tokens() * case_.query_heads));
    gpu_->operators->download(sums_, values.data(), values.size() * 4);
    return values;
  }
  void fill_operands() {
    // Bytes 0x3c: small numbers, as real ones cost.
    gpu_->table().fill(stream(), qkv_, 0x3c, case_.tokens() * case_.width() * 2);
    gpu_->table().fill(stream(), dout_, 0x3c, case_.tokens() * case_.query_width() * 2);
  }
  const AttentionCall& call() const { return call_; }
  std::byte* qkv() const { return qkv_; }
  std::byte* dqkv() const { return dqkv_; }
  std::byte* out_at() const { return out_; }
  std::byte* dout_at() const { return dout_; }
  float* sums_at() const { return reinterpret_cast<float*>(sums_); }
  std::byte* key(std::byte* at) const { return at + case_.query_width() * case_.element_bytes(); }
  std::byte* value(std::byte* at) const {
    return key(at) + case_.key_width() * case_.element_bytes();
  }

 private:
  FusedRun(Gpu& gpu, const FusedCase& c) : gpu_(&gpu), case_(c) {}
  TroupeCudaStream* stream() const { return gpu_->stream->get(); }
  std::span<std::byte> scratch() const {
    return {scratch_, static_cast<std::size_t>(scratch_bytes_)};
  }
  void upload(const std::vector<float>& values, std::byte* to) {
    if (case_.type == TROUPE_CUDA_F32) {
      gpu_->operators->upload(values.data(), to, values.size() * 4);
      return;
    }
    std::vector<std::uint16_t> words(values.size());
    train::bf16_from_float(values.data(), words.data(), static_cast<std::int64_t>(words.size()));
    gpu_->operators->upload(words.data(), to, words.size() * 2);
  }
  std::vector<float> download(const std::byte* from, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    if (case_.type == TROUPE_CUDA_F32) {
      gpu_->operators->download(from, values.data(), values.size() * 4);
      return values;
    }
    std::vector<std::uint16_t> words(values.size());
    gpu_->operators->download(from, words.data(), words.size() * 2);
    train::float_from_bf16(words.data(), values.data(), count);
    return values;
  }

  Gpu* gpu_;
  FusedCase case_;
  AttentionCall call_;
  std::byte *qkv_ = nullptr, *dqkv_ = nullptr, *out_ = nullptr, *dout_ = nullptr, *sums_ = nullptr,
            *scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
};

// Values that bf16 holds.
std::vector<float> held_values(std::int64_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values)
    x = train::bf16_to_float(train::float_to_bf16(static_cast<float>(2 * random.unit() - 1)));
  return values;
}

struct AttentionResults {
  std::vector<float> out, sums, gradients;
};

AttentionResults host_results(Gpu& gpu, const FusedCase& c, const std::vector<float>& qkv,
                              const std::vector<float>& dout) {
  AttentionResults r;
  r.out.resize(dout.size());
  r.sums.resize(static_cast<std::size_t>(c.tokens() * c.query_heads));
  r.gradients.resize(qkv.size());
  const std::vector<std::int32_t> first = c.first_keys();
  const train::AttentionShape shape = c.shape(first.empty() ? nullptr : first.data());
  const float* q = qkv.data();
  const float* k = q + c.query_width();
  float* dq = r.gradients.data();
  float* dk = dq + c.query_width();
  gpu.host->attention_forward(shape, q, k, k + c.key_width(), r.out.data(), r.sums.data());
  gpu.host->attention_backward(shape, q, k, k + c.key_width(), r.out.data(), r.sums.data(),
                               dout.data(), dq, dk, dk + c.key_width());
  return r;
}

// The greatest difference, of the greatest value.
double relative_difference(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, greatest = 1e-30;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double d = std::fabs(double(got[i]) - double(want[i]));
    if (!(d <= difference)) difference = d;  // what is no number, too
    greatest = std::max(greatest, std::fabs(double(want[i])));
  }
  return difference / greatest;
}

// Products of bf16 with sums of fp32, the softmax's result rounded to bf16 between two products,
// and results of bf16. log_sum_exp is fp32 after one product.
constexpr double kValueTolerance = 2e-2, kSumTolerance = 1e-3;

Compared::Difference results_difference(const AttentionResults& got, const AttentionResults& want,
                                        const char* of) {
  Compared::Difference worst;
  for (const auto& [name, a, b, tolerance] :
       {std::tuple("out", &got.out, &want.out, kValueTolerance),
        std::tuple("log_sum_exp", &got.sums, &want.sums, kSumTolerance),
        std::tuple("gradients", &got.gradients, &want.gradients, kValueTolerance)}) {
    const double difference = relative_difference(*a, *b), share = difference / tolerance;
    if (!(share <= worst.share))
      worst = {share,
               fmt::format("{} of {} differs by {:.1e} of the greatest", name, of, difference)};
  }
  return worst;
}

Result<AttentionResults> device_results(Gpu& gpu, FusedRun& run, bool fused) {
  std::string notice;
  const auto attention = TROUPE_TRY(run.attention(fused, &notice));
  TROUPE_RETURN_IF_ERROR(run.run(*attention));
  TROUPE_RETURN_IF_ERROR(gpu.stream->wait("attention"));
  if (fused && attention->passes().own > 0) return error(Code::kUnsupported, "{}", notice);
  AttentionResults r{run.out(), run.sums(), run.gradients()};
  TROUPE_RETURN_IF_ERROR(gpu.operators->failure());
  return r;
}

std::vector<FusedCase> value_cases(const Bench& bench) {
  std::vector<FusedCase> cases = {
      {2, 40, 14, 2, 64},
      {2, 33, 4, 2, 128},
      {1, 65, 2, 2, 64, 13},
      {2, 50, 6, 2, 64, 0, 16},
      {2, 50, 6, 2, 64, 20, 16},
      {2, 40, 4, 2, 64, 0, 0, TROUPE_CUDA_F32},
      {2, 40, 4, 2, 64, 0, 0, TROUPE_CUDA_BF16, false},
      {3, 40, 8, 4, 64, 11, 0, TROUPE_CUDA_BF16, true, true},
  };
  if (!bench.rehearsal()) {
    cases.push_back({2, 1024, 14, 2, 64});
    cases.push_back({1, 2000, 12, 2, 128, 300});
    cases.push_back({1, 1000, 28, 4, 128, 0, 256});
    cases.push_back({2, 777, 4, 4, 128, 0, 0, TROUPE_CUDA_BF16, true, true});
  }
  return cases;
}

Check fused_values_check() {
  return {.name = "attention/cudnn values",
          .what =
              "cuDNN's attention and gradients against the CPU's and the own kernel's: grouped "
              "heads, segments, windows, pieces, fp32 activations; out and gradients to 2e-2 of "
              "the greatest, log_sum_exp to 1e-3",
          .seconds = 8,
          .run = [](Bench& bench) -> Result<Figure> {
            WorstDifference worst;
            for (const FusedCase& c : value_cases(bench)) {
              Gpu* gpu = TROUPE_TRY(bench.gpu());
              FusedRun run = TROUPE_TRY(FusedRun::create(*gpu, c));
              const std::vector<float> qkv = held_values(c.tokens() * c.width(), 1),
                                       dout = held_values(c.tokens() * c.query_width(), 2);
              run.upload(qkv, dout);
              const auto fused = device_results(*gpu, run, true);
              if (!fused.ok()) return fused.status().prefixed(c.text());
              const auto own = device_results(*gpu, run, false);
              if (!own.ok()) return own.status().prefixed(c.text());
              const AttentionResults host = host_results(*gpu, c, qkv, dout);
              worst.add(results_difference(*fused, host, "cuDNN from the CPU"), c.text());
              worst.add(results_difference(*fused, *own, "cuDNN from the own kernel"), c.text());
            }
            return worst.figure();
          }};
}

// A step that is computed again must have the same bits.
Check same_bits_check() {
  return {.name = "attention/cudnn bits",
          .what = "cuDNN's ordered gradients, eight times over the same tensors: bits that differ",
          .seconds = 3,
          .run = [](Bench& bench) -> Result<Figure> {
            std::int64_t differing = 0;
            for (const std::int64_t segment : {0, 300}) {
              FusedCase c{4, 1024, 14, 2, 64, segment};
              if (bench.rehearsal()) c = {2, 30, 4, 2, 64, segment ? 11 : 0};
              Gpu* gpu = TROUPE_TRY(bench.gpu());
              FusedRun run = TROUPE_TRY(FusedRun::create(*gpu, c));
              run.upload(held_values(c.tokens() * c.width(), 1),
                         held_values(c.tokens() * c.query_width(), 2));
              const AttentionResults first = TROUPE_TRY(device_results(*gpu, run, true));
              for (int i = 0; i < (bench.rehearsal() ? 1 : 7); ++i) {
                const AttentionResults again = TROUPE_TRY(device_results(*gpu, run, true));
                for (const auto& [a, b] :
                     {std::pair(&first.out, &again.out), std::pair(&first.sums, &again.sums),
                      std::pair(&first.gradients, &again.gradients)})
                  for (std::size_t at = 0; at < a->size(); ++at)
                    differing += std::memcmp(&(*a)[at], &(*b)[at], sizeof(float)) != 0;
              }
            }
            return Figure{.value = static_cast<double>(differing),
                          .unit = "numbers differ",
                          .bar = Figure::Bar::kAtMost,
                          .bar_value = 0};
          }};
}

struct RatedModel {
  const char* name;
  std::int64_t query_heads, key_heads, head_dim;
};
constexpr RatedModel kRated[] = {{"0.5B", 14, 2, 64}, {"1.5B", 12, 2, 128}, {"7B", 28, 4, 128}};

struct PassTimes {
  double forward = 0, backward = 0;
};

Result<PassTimes> fused_times(Gpu& gpu, FusedRun& run, int times) {
  std::string notice;
  const auto attention = TROUPE_TRY(run.attention(true, &notice));
  run.fill_operands();
  PassTimes t;
  t.forward =
      TROUPE_TRY(gpu.milliseconds("attention", times, [&] { return run.forward(*attention); }));
  t.backward = TROUPE_TRY(
      gpu.milliseconds("its gradients", times, [&] { return run.backward(*attention); }));
  if (attention->passes().own > 0) return error(Code::kUnsupported, "{}", notice);
  return t;
}

// One graph of the whole batch, run by itself.
Result<PassTimes> library_times(Gpu& gpu, const FusedRun& run, const FusedCase& c, int times) {
  PassTimes t;
  for (const bool backward : {false, true}) {
    const TroupeCudaFusedAttention shape{.batch = c.batch,
                                         .query_length = c.length,
                                         .key_length = c.length,
                                         .query_heads = c.query_heads,
                                         .key_heads = c.key_heads,
                                         .head_dim = c.head_dim,
                                         .query_stride = c.width(),
                                         .key_stride = c.width(),
                                         .key_batch_stride = c.length * c.width(),
                                         .out_stride = c.query_width(),
                                         .scale = run.call().shape.scale,
                                         .backward = backward,
                                         .ordered = backward && c.ordered};
    TroupeCudaAttentionPlan* plan = nullptr;
    std::int64_t bytes = 0;
    TROUPE_RETURN_IF_ERROR(gpu.device->status(
        gpu.table().attention_plan_create(gpu.device->context(), &shape, &plan, &bytes),
        "planning attention"));
    const auto timed = [&]() -> Result<double> {
      std::byte* workspace = TROUPE_TRY(gpu.take(bytes));
      return gpu.milliseconds("cuDNN's attention", times, [&] {
        TroupeCudaStream* stream = gpu.stream->get();
        std::byte* qkv = run.qkv();
        if (!backward)
          return gpu.table().attention_plan_forward(stream, plan, qkv, run.key(qkv), run.value(qkv),
                                                    nullptr, run.out_at(), run.sums_at(), workspace,
                                                    bytes);
        std::byte* dqkv = run.dqkv();
        return gpu.table().attention_plan_backward(
            stream, plan, qkv, run.key(qkv), run.value(qkv), nullptr, run.out_at(), run.sums_at(),
            run.dout_at(), dqkv, run.key(dqkv), run.value(dqkv), workspace, bytes);
      });
    };
    const Result<double> taken = timed();
    TROUPE_RETURN_IF_ERROR(
        gpu.device->status(gpu.table().attention_plan_destroy(plan), "giving a plan back"));
    (backward ? t.backward : t.forward) = TROUPE_TRY(taken);
  }
  return t;
}

Check fused_rate_check(std::int64_t length) {
  return {
      .name = fmt::format("attention/cudnn rate {}", length),
      .what = fmt::format("attention and its gradients as a model calls them, against cuDNN's own "
                          "graphs, rows of {} tokens, heads of Qwen2.5-0.5B, 1.5B and 7B; TFLOP/s "
                          "in order, in any order, with segments",
                          length),
      .seconds = 7,
      .run = [length](Bench& bench) -> Result<Figure> {
        const int times = bench.rehearsal() ? 1 : 10;
        std::string text;
        double ours = 0, theirs = 0;
        for (const RatedModel& m : kRated) {
          const std::int64_t tokens = bench.rehearsal() ? 32 : 8192;
          const std::int64_t row = bench.rehearsal() ? 16 : length;
          FusedCase c{tokens / row, row, m.query_heads, m.key_heads, m.head_dim};
          // Two products of half of the square; backward five.
          const double flops = 2.0 * static_cast<double>(tokens * m.query_heads * m.head_dim) *
                               static_cast<double>(row);
          const auto rates = [&](const PassTimes& t) {
            return fmt::format("{:.0f} backward {:.0f}", flops / t.forward / 1e9,
                               2.5 * flops / t.backward / 1e9);
          };
          const auto times_of = [&](const FusedCase& one, bool library) -> Result<PassTimes> {
            Gpu* gpu = TROUPE_TRY(bench.gpu());
            FusedRun run = TROUPE_TRY(FusedRun::create(*gpu, one));
            const PassTimes own = TROUPE_TRY(fused_times(*gpu, run, times));
            if (!library) return own;
            const PassTimes alone = TROUPE_TRY(library_times(*gpu, run, one, times));
            ours += own.forward + own.backward, theirs += alone.forward + alone.backward;
            return own;
          };
          const PassTimes ordered = TROUPE_TRY(times_of(c, true));
          c.ordered = false;
          const PassTimes any = TROUPE_TRY(times_of(c, false));
          c.ordered = true, c.segment = std::max<std::int64_t>(1, row / 3);
          const PassTimes masked = TROUPE_TRY(times_of(c, false));
          text += fmt::format("{}{}: {}, any order {}, segments {}", text.empty() ? "" : "; ",
                              m.name, rates(ordered), rates(any), rates(masked));
        }
        return Figure{.value = 100 * theirs / ours,
                      .unit = "% of cuDNN's own rate",
                      .bar = bench.rehearsal() ? Figure::Bar::kNone : Figure::Bar::kAtLeast,
                      .bar_value = 95,
                      .text = text};
      }};
}

}  // namespace

void add_fused_attention_checks(std::vector<Check>& checks) {
  checks.push_back(fused_values_check());
  checks.push_back(same_bits_check());
}

void add_fused_attention_rate_checks(std::vector<Check>& checks) {
  for (const std::int64_t length : {1024, 4096}) checks.push_back(fused_rate_check(length));
}

}  // namespace troupe::tools::gpu
