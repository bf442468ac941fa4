// Every operator of the table but products and attention, in fp32 and bf16, against train/cpu.

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "tools/gpu_check/compared.h"
#include "train/tensor/convert.h"

namespace troupe::tools::gpu {
namespace {

using train::Operators;
using Side = Compared::Side;
constexpr float kEps = 1e-5f;

// (rows, width): one row, odd widths, more rows than blocks, wide rows.
std::vector<std::pair<std::int64_t, std::int64_t>> shapes(const Bench& bench) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out = {
      {1, 1}, {1, 64}, {3, 37}, {5, 896}, {130, 128}, {17, 4864}, {1, 3584}, {1000, 33}};
  if (!bench.rehearsal()) {
    out.push_back({2048, 896});
    out.push_back({1024, 3584});
    out.push_back({64, 18944});
    out.push_back({8192, 64});
  }
  return out;
}

using CaseOf = std::function<Result<Compared::Difference>(Compared&, std::int64_t, std::int64_t)>;

// A check of all shapes, in one flavour.
Check check_of(const std::string& name, const std::string& what, Flavour flavour, CaseOf run_case) {
  return {.name = fmt::format("operators/{} {}", name, flavour_name(flavour)),
          .what = what,
          .seconds = 0.3,
          .run = [flavour, run_case](Bench& bench) -> Result<Figure> {
            WorstDifference worst;
            for (const auto& [rows, width] : shapes(bench)) {
              Gpu* gpu = TROUPE_TRY(bench.gpu());
              Compared compared(*gpu, flavour, bench.exact());
              const std::string sizes = fmt::format("{} rows of {}", rows, width);
              Result<Compared::Difference> difference = run_case(compared, rows, width);
              if (!difference.ok()) return difference.status().prefixed(sizes);
              worst.add(*difference, sizes);
            }
            return worst.figure();
          }};
}

// Activations on the host hold what bf16 holds, as the device's do, before more is made of them.
void round_host(const Compared& c, const Side& side, float* x, std::int64_t count);

Result<Compared::Difference> add_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto a = c.activation("a", n), b = c.activation("b", n), out = c.activation("out", n);
  return c.run(
      [=, &c](Operators& o, const Side& t) {
        o.add(t(a), t(b), t(out), n);
        round_host(c, t, t(out), n);
        o.add(t(b), t(out), t(b), n);  // in place
      },
      {});
}

Result<Compared::Difference> dropout_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto x = c.activation("x", n), sum = c.activation("sum", n), out = c.activation("out", n);
  std::vector<std::int32_t> numbers, places;
  for (std::int64_t row = 0; row < rows; ++row) {
    numbers.push_back(static_cast<std::int32_t>(1000 - row / 100));
    places.push_back(static_cast<std::int32_t>(row % 100));
  }
  const auto samples = c.integers("samples", numbers), tokens = c.integers("places", places);
  return c.run(
      [=](Operators& o, const Side& t) {
        train::Dropout dropout = train::dropout_of(0.1);
        dropout.seed = 42, dropout.epoch = 3;
        dropout.site = train::dropout_site(train::DropoutPlace::kMlpOutput, 17);
        dropout.samples = t.integers(samples), dropout.tokens = t.integers(tokens);
        o.dropout(dropout, t(x), nullptr, t(out), rows, width);
        o.dropout(dropout, t(x), t(sum), t(sum), rows, width);  // in place
      },
      {});
}

Result<Compared::Difference> copy_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const auto from = c.activation("from", rows * (width + 3));
  const auto to = c.activation("to", rows * (width + 5));
  return c.run(
      [=](Operators& o, const Side& t) {
        o.copy_rows(t(from, 1), width + 3, t(to, 2), width + 5, rows, width);
      },
      {});
}

Result<Compared::Difference> zero_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const auto x = c.activation("x", rows * width + 7);
  return c.run([=](Operators& o, const Side& t) { o.zero(t(x, 3), rows * width); }, {});
}

Result<Compared::Difference> rms_norm_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto x = c.activation("x", n), y = c.activation("y", n), again = c.activation("again", n);
  const auto w = c.floats("weight", width), rstd = c.floats("rstd", rows);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.rms_norm_forward(t(x), t(w), t(y), t(rstd), rows, width, kEps);
        o.rms_norm_apply(t(x), t(w), t(rstd), t(again), rows, width);
      },
      {});
}

Result<Compared::Difference> residual_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto x = c.activation("x", n), delta = c.activation("delta", n);
  const auto sum = c.activation("sum", n), y = c.activation("y", n);
  const auto w = c.floats("weight", width), rstd = c.floats("rstd", rows);
  return c.run(
      [=, &c](Operators& o, const Side& t) {
        if (t.on_device() || c.flavour() == Flavour::kF32) {
          o.residual_rms_norm_forward(t(x), t(delta), t(w), t(sum), t(y), t(rstd), rows, width,
                                      kEps);
          // In place.
          o.residual_rms_norm_forward(t(x), t(delta), t(w), t(x), t(y), t(rstd), rows, width, kEps);
          return;
        }
        // The norm is of the sum as it is kept.
        o.add(t(x), t(delta), t(sum), n);
        round_host(c, t, t(sum), n);
        o.rms_norm_forward(t(sum), t(w), t(y), t(rstd), rows, width, kEps);
        o.copy_rows(t(sum), width, t(x), width, rows, width);
      },
      {});
}

Result<Compared::Difference> rms_backward_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto dy = c.activation("dy", n), x = c.activation("x", n), dx = c.activation("dx", n);
  const auto w = c.floats("weight", width), rstd = c.floats("rstd", rows),
             dw = c.floats("dweight", width);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.rms_norm_backward(t(dy), t(x), t(w), t(rstd), t(dx), t(dw), rows, width);
      },
      {.f32 = 3e-5});
}

Result<Compared::Difference> layer_norm_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto x = c.activation("x", n), y = c.activation("y", n), again = c.activation("again", n);
  const auto w = c.floats("weight", width), b = c.floats("bias", width);
  const auto mean = c.floats("mean", rows), rstd = c.floats("rstd", rows);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.layer_norm_forward(t(x), t(w), t(b), t(y), t(mean), t(rstd), rows, width, kEps);
        o.layer_norm_apply(t(x), t(w), t(b), t(mean), t(rstd), t(again), rows, width);
      },
      {.f32 = 3e-5});
}

Result<Compared::Difference> layer_backward_case(Compared& c, std::int64_t rows,
                                                 std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto dy = c.activation("dy", n), x = c.activation("x", n), dx = c.activation("dx", n);
  const auto w = c.floats("weight", width), mean = c.floats("mean", rows, 0.1f),
             rstd = c.floats("rstd", rows);
  const auto dw = c.floats("dweight", width), db = c.floats("dbias", width);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.layer_norm_backward(t(dy), t(x), t(w), t(mean), t(rstd), t(dx), t(dw), t(db), rows,
                              width);
      },
      {.f32 = 3e-5});
}

// Heads of 32 in rows that hold more than them.
struct Heads {
  static constexpr std::int64_t kDim = 32;
  explicit Heads(std::int64_t seed) : count(1 + seed % 7), width(count * kDim), stride(width + 8) {}
  std::int64_t count, width, stride;
};

Result<Compared::Difference> head_norm_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const Heads h(width);
  const auto x = c.activation("x", rows * h.stride), y = c.activation("y", rows * (h.stride + 16));
  const auto w = c.floats("weight", Heads::kDim), rstd = c.floats("rstd", rows * h.count),
             in_place = c.floats("rstd in place", rows * h.count);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.head_norm_forward(t(x), h.stride, t(w), t(y), h.stride + 16, t(rstd), rows, h.count,
                            Heads::kDim, kEps);
        o.head_norm_forward(t(x), h.stride, t(w), t(x), h.stride, t(in_place), rows, h.count,
                            Heads::kDim, kEps);
      },
      {});
}

Result<Compared::Difference> head_backward_case(Compared& c, std::int64_t rows,
                                                std::int64_t width) {
  const Heads h(width);
  const auto dy = c.activation("dy", rows * h.stride),
             x = c.activation("x", rows * (h.stride + 16));
  const auto w = c.floats("weight", Heads::kDim), rstd = c.floats("rstd", rows * h.count),
             dw = c.floats("dweight", Heads::kDim);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.head_norm_backward(t(dy), h.stride, t(x), h.stride + 16, t(w), t(rstd), t(dw), rows,
                             h.count, Heads::kDim);
      },
      {.f32 = 3e-5});
}

Result<Compared::Difference> bias_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const auto y = c.activation("y", rows * (width + 5));
  const auto b = c.floats("bias", width);
  return c.run([=](Operators& o, const Side& t) { o.add_bias(t(y), width + 5, t(b), rows, width); },
               {});
}

Result<Compared::Difference> bias_backward_case(Compared& c, std::int64_t rows,
                                                std::int64_t width) {
  const auto dy = c.activation("dy", rows * (width + 5));
  const auto db = c.floats("dbias", width);
  return c.run(
      [=](Operators& o, const Side& t) { o.bias_backward(t(dy), width + 5, t(db), rows, width); },
      {.f32 = 3e-5});
}

Result<Compared::Difference> rope_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const Heads h(width);
  constexpr std::int64_t kHalf = Heads::kDim / 2, kPositions = 50;
  std::vector<std::int32_t> positions;
  for (std::int64_t i = 0; i < rows; ++i)
    positions.push_back(static_cast<std::int32_t>(i * 7 % kPositions));
  std::vector<float> cosines, sines;
  for (std::int64_t i = 0; i < kPositions * kHalf; ++i) {
    const double angle = static_cast<double>(i / kHalf) * std::pow(1e-4, i % kHalf / 16.0);
    cosines.push_back(static_cast<float>(std::cos(angle)));
    sines.push_back(static_cast<float>(std::sin(angle)));
  }
  const auto x = c.activation("x", rows * h.stride), back = c.activation("back", rows * h.stride);
  const auto at = c.integers("positions", positions);
  const auto cosine = c.floats("cosine", cosines), sine = c.floats("sine", sines);
  return c.run(
      [=](Operators& o, const Side& t) {
        for (const auto& [tensor, direction] : {std::pair(x, train::RopeDirection::kForward),
                                                std::pair(back, train::RopeDirection::kBackward)})
          o.rope(t(tensor), h.stride, t.integers(at), t(cosine), t(sine), rows, h.count,
                 Heads::kDim, direction);
      },
      {});
}

Result<Compared::Difference> swiglu_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto gate_up = c.activation("gate_up", 2 * n, 4.0f), act = c.activation("act", n);
  return c.run(
      [=](Operators& o, const Side& t) { o.swiglu_forward(t(gate_up), t(act), rows, width); }, {});
}

Result<Compared::Difference> swiglu_backward_case(Compared& c, std::int64_t rows,
                                                  std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto gate_up = c.activation("gate_up", 2 * n, 4.0f), dact = c.activation("dact", n),
             act = c.activation("act", n);
  const auto second = c.activation("gate_up without act", 2 * n, 4.0f);
  const auto third = c.activation("gate_up in place", 2 * n, 4.0f),
             in_place = c.activation("dact that becomes act", n);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.swiglu_backward(t(gate_up), t(dact), t(act), rows, width);
        o.swiglu_backward(t(second), t(dact), nullptr, rows, width);
        o.swiglu_backward(t(third), t(in_place), t(in_place), rows, width);
      },
      {});
}

Result<Compared::Difference> gelu_case(Compared& c, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto x = c.activation("x", n, 4.0f), act = c.activation("act", n),
             in_place = c.activation("x in place", n, 4.0f);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.gelu_forward(t(x), t(act), n);
        o.gelu_forward(t(in_place), t(in_place), n);
      },
      {});
}

Result<Compared::Difference> gelu_backward_case(Compared& c, std::int64_t rows,
                                                std::int64_t width) {
  const std::int64_t n = rows * width;
  const auto x = c.activation("x", n, 4.0f), dact = c.activation("dact", n),
             act = c.activation("act", n), second = c.activation("x without act", n, 4.0f);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.gelu_backward(t(x), t(dact), t(act), n);
        o.gelu_backward(t(second), t(dact), nullptr, n);
      },
      {});
}

// Ids of which many are the same.
std::vector<std::int32_t> some_ids(std::int64_t rows, std::int64_t below) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < rows; ++i)
    ids.push_back(static_cast<std::int32_t>((i * i + i / 3) % below));
  return ids;
}

Result<Compared::Difference> embedding_case(Compared& c, std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kVocabulary = 61;
  const auto ids = c.integers("ids", some_ids(rows, kVocabulary));
  const auto table = c.floats("table", kVocabulary * width);
  const auto half = c.bf16("bf16 table", kVocabulary * width);
  const auto a = c.activation("of fp32", rows * width), b = c.activation("of bf16", rows * width);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.embedding_forward(t.integers(ids), t(table), train::DType::kF32, t(a), rows, width);
        o.embedding_forward(t.integers(ids), t.bf16(half), train::DType::kBF16, t(b), rows, width);
      },
      {});
}

Result<Compared::Difference> embedding_backward_case(Compared& c, std::int64_t rows,
                                                     std::int64_t width) {
  constexpr std::int64_t kVocabulary = 61;
  const auto ids = c.integers("ids", some_ids(rows, kVocabulary));
  const auto dout = c.activation("dout", rows * width);
  const auto dweight = c.floats("dweight", kVocabulary * width);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.embedding_backward(t.integers(ids), t(dout), t(dweight), rows, width);
      },
      {.f32 = 3e-5});
}

Result<Compared::Difference> cross_entropy_case(Compared& c, std::int64_t rows,
                                                std::int64_t width) {
  const std::int64_t classes = width + 1, n = rows * classes;
  const auto labels = c.integers("labels", some_ids(rows, classes));
  const auto logits = c.floats("logits", n, 8.0f), other = c.floats("other logits", n, 8.0f),
             third = c.floats("logits that bf16 gradients are of", n, 8.0f);
  const auto losses = c.floats("losses", rows), other_losses = c.floats("losses alone", rows),
             third_losses = c.floats("losses beside bf16 gradients", rows);
  const auto gradient = c.bf16("bf16 gradient", n);
  c.ignore(other);
  c.ignore(third);
  return c.run(
      [=](Operators& o, const Side& t) {
        o.cross_entropy(t(logits), t.integers(labels), t(losses), 0.25f, true, rows, classes);
        o.cross_entropy(t(other), t.integers(labels), t(other_losses), 1.0f, false, rows, classes);
        o.cross_entropy_bf16(t(third), t.integers(labels), t(third_losses), 0.25f, t.bf16(gradient),
                             rows, classes);
      },
      {});
}

void round_host(const Compared& c, const Side& side, float* x, std::int64_t count) {
  if (side.on_device() || c.flavour() == Flavour::kF32) return;
  train::round_to_bf16(x, x, count);
}

}  // namespace

void add_operator_checks(std::vector<Check>& checks) {
  for (const Flavour flavour : {Flavour::kF32, Flavour::kBf16}) {
    const auto add = [&](const char* name, const char* what, CaseOf run_case) {
      checks.push_back(check_of(name, what, flavour, std::move(run_case)));
    };
    add("dropout", "dropout by counters, and what it leaves added to a stream", dropout_case);
    add("rms_norm", "RMSNorm, and again from its statistics", rms_norm_case);
    add("residual_rms_norm", "sum of two and its RMSNorm", residual_case);
    add("rms_norm_backward", "gradients of RMSNorm, added to", rms_backward_case);
    add("rope", "rotation and its inverse, by position", rope_case);
    add("swiglu", "SwiGLU", swiglu_case);
    add("swiglu_backward", "gradients of SwiGLU, in place", swiglu_backward_case);
    add("embedding", "rows of fp32 and bf16 tables by id", embedding_case);
    add("embedding_backward", "rows added by id, many of them equal", embedding_backward_case);
    // fp32 in either flavour.
    if (flavour == Flavour::kF32)
      add("cross_entropy", "losses, and gradients in fp32 and bf16", cross_entropy_case);
    add("add_bias", "a bias for every row", bias_case);
    add("bias_backward", "sums over rows, added to", bias_backward_case);
    add("layer_norm", "LayerNorm, and again from its statistics", layer_norm_case);
    add("layer_norm_backward", "gradients of LayerNorm, added to", layer_backward_case);
    add("gelu", "GELU", gelu_case);
    add("gelu_backward", "gradients of GELU, in place", gelu_backward_case);
    add("head_norm", "RMSNorm of heads, in place too", head_norm_case);
    add("head_norm_backward", "gradients of heads' norms", head_backward_case);
    add("add", "sums, in place too", add_case);
    if (flavour == Flavour::kF32) {
      add("copy_rows", "rows by their strides", copy_case);
      add("zero", "zeros", zero_case);
    }
  }
}

}  // namespace troupe::tools::gpu
