// Twenty steps of each optimizer against its package's formula, computed in double.
#include "train/optimizer/optimizers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/train/optimizer/tensor_harness.h"

namespace troupe::train::tests {
namespace {

constexpr int kSteps = 20;
constexpr double kRate = 1e-2, kDecay = 0.1, kBeta1 = 0.9, kBeta2 = 0.99, kEpsilon = 1e-8;

OptimizerSettings test_settings() {
  return {.weight_decay = kDecay,
          .beta1 = kBeta1,
          .beta2 = kBeta2,
          .epsilon = kEpsilon,
          .hidden_size = 16,
          .heads = 4};
}

std::vector<float> gradient_of(std::size_t count, int step) {
  return values_of_seed(count, 100 + static_cast<std::uint64_t>(step));
}

using Values = std::vector<double>;

// The largest difference, by the largest value.
double distance(const OptimizedTensor& tensor, const Values& exact) {
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    difference = std::max(difference, std::abs(tensor.parameters[i] - exact[i]));
    largest = std::max(largest, std::abs(exact[i]));
  }
  return difference / largest;
}

// `exact` changes parameters in place, given gradients and the number of the step from 1.
double farthest(std::string_view optim, std::string name, std::vector<std::int64_t> shape,
                const std::function<void(Values& p, const Values& g, int t)>& exact) {
  const auto optimizer = make_optimizer(optim, test_settings());
  OptimizedTensor tensor(*optimizer, std::move(name), std::move(shape));
  Values p(tensor.parameters.begin(),
           tensor.parameters.begin() + static_cast<std::ptrdiff_t>(tensor.elements()));
  double result = 0;
  for (int t = 1; t <= kSteps; ++t) {
    const auto g = gradient_of(p.size(), t);
    Values half(g.begin(), g.end());
    for (double& x : half) x *= 0.5;
    exact(p, half, t);
    tensor.step({.learning_rate = kRate, .updates = t, .gradient_scale = 0.5f}, g);
    result = std::max(result, distance(tensor, p));
  }
  CHECK(result > 0);
  return result;
}

double sign(double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : 0.0; }

TEST_CASE("optimizers of elements equal their packages' formulas") {
  Values m(100), v(100), slow(100);
  const auto reset = [&] {
    for (auto* values : {&m, &v, &slow}) std::ranges::fill(*values, 0.0);
  };
  CHECK(farthest("adam", "w", {100}, [&](Values& p, const Values& g, int t) {
          for (std::size_t i = 0; i < p.size(); ++i) {
            const double x = g[i] + kDecay * p[i];
            m[i] = kBeta1 * m[i] + (1 - kBeta1) * x;
            v[i] = kBeta2 * v[i] + (1 - kBeta2) * x * x;
            p[i] -= kRate * (m[i] / (1 - std::pow(kBeta1, t))) /
                    (std::sqrt(v[i] / (1 - std::pow(kBeta2, t))) + kEpsilon);
          }
        }) < 1e-6);
  reset();
  for (const char* name : {"lion_32bit", "paged_lion_32bit"}) {
    CHECK(farthest(name, "w", {100}, [&](Values& p, const Values& g, int) {
            for (std::size_t i = 0; i < p.size(); ++i) {
              p[i] =
                  p[i] * (1 - kRate * kDecay) - kRate * sign(kBeta1 * m[i] + (1 - kBeta1) * g[i]);
              m[i] = kBeta2 * m[i] + (1 - kBeta2) * g[i];
            }
          }) < 1e-6);
    reset();
  }
  CHECK(farthest("adagrad", "w", {100}, [&](Values& p, const Values& g, int) {
          for (std::size_t i = 0; i < p.size(); ++i) {
            const double x = g[i] + kDecay * p[i];
            v[i] += x * x;
            p[i] -= kRate * x / (std::sqrt(v[i]) + 1e-10);
          }
        }) < 1e-6);
  reset();
  CHECK(farthest("rmsprop", "w", {100}, [&](Values& p, const Values& g, int) {
          for (std::size_t i = 0; i < p.size(); ++i) {
            const double x = g[i] + kDecay * p[i];
            v[i] = 0.99 * v[i] + 0.01 * x * x;
            p[i] -= kRate * x / (std::sqrt(v[i]) + 1e-8);
          }
        }) < 1e-6);
  reset();
  CHECK(farthest("ademamix", "w", {100}, [&](Values& p, const Values& g, int t) {
          for (std::size_t i = 0; i < p.size(); ++i) {
            m[i] = kBeta1 * m[i] + (1 - kBeta1) * g[i];
            slow[i] = 0.9999 * slow[i] + (1 - 0.9999) * g[i];
            v[i] = kBeta2 * v[i] + (1 - kBeta2) * g[i] * g[i];
            p[i] = p[i] * (1 - kRate * kDecay) -
                   kRate * (m[i] / (1 - std::pow(kBeta1, t)) + 5 * slow[i]) /
                       (std::sqrt(v[i]) / std::sqrt(1 - std::pow(kBeta2, t)) + kEpsilon);
          }
        }) < 1e-6);
}

TEST_CASE("Adafactor equals transformers' formula, of matrices and of vectors") {
  constexpr std::size_t kRows = 6, kColumns = 10;
  Values rows(kRows), columns(kColumns), squares(60);
  const auto exact = [&](bool matrix) {
    return [&, matrix](Values& p, const Values& g, int t) {
      const double beta = 1 - std::pow(t, -0.8);
      Values u(p.size());
      if (matrix) {
        Values row_means(kRows), column_means(kColumns);
        for (std::size_t i = 0; i < p.size(); ++i) {
          row_means[i / kColumns] += (g[i] * g[i] + 1e-30) / kColumns;
          column_means[i % kColumns] += (g[i] * g[i] + 1e-30) / kRows;
        }
        double mean = 0;
        for (std::size_t r = 0; r < kRows; ++r)
          mean += (rows[r] = beta * rows[r] + (1 - beta) * row_means[r]) / kRows;
        for (std::size_t c = 0; c < kColumns; ++c)
          columns[c] = beta * columns[c] + (1 - beta) * column_means[c];
        for (std::size_t i = 0; i < p.size(); ++i)
          u[i] = g[i] / std::sqrt(rows[i / kColumns] / mean) / std::sqrt(columns[i % kColumns]);
      } else {
        for (std::size_t i = 0; i < p.size(); ++i) {
          squares[i] = beta * squares[i] + (1 - beta) * (g[i] * g[i] + 1e-30);
          u[i] = g[i] / std::sqrt(squares[i]);
        }
      }
      double rms = 0;
      for (const double x : u) rms += x * x / static_cast<double>(u.size());
      for (std::size_t i = 0; i < p.size(); ++i)
        p[i] = p[i] * (1 - kRate * kDecay) - kRate * u[i] / std::max(1.0, std::sqrt(rms));
    };
  };
  CHECK(farthest("adafactor", "w", {kRows, kColumns}, exact(true)) < 1e-6);
  CHECK(farthest("adafactor", "w", {60}, exact(false)) < 1e-6);
}

TEST_CASE("Adam-mini has a second moment for each head, row, tensor or element, by the name") {
  struct Case {
    const char* name;
    std::vector<std::int64_t> shape;
    std::size_t block;
    bool decays;
  };
  for (const Case& of : {Case{"model.layers.0.self_attn.q_proj.weight", {16, 16}, 64, true},
                         Case{"model.layers.0.mlp.up_proj.weight", {6, 16}, 16, true},
                         Case{"model.norm.weight", {16}, 16, false},
                         Case{"model.layers.0.self_attn.q_proj.bias", {16}, 1, false}}) {
    CAPTURE(of.name);
    Values m(256), v(256);
    CHECK(farthest("adam_mini", of.name, of.shape, [&](Values& p, const Values& g, int t) {
            for (std::size_t first = 0; first < p.size(); first += of.block) {
              double mean = 0;
              for (std::size_t i = first; i < first + of.block; ++i)
                mean += g[i] * g[i] / static_cast<double>(of.block);
              double& second = v[first / of.block];
              second = kBeta2 * second + (1 - kBeta2) * mean;
              for (std::size_t i = first; i < first + of.block; ++i) {
                m[i] = kBeta1 * m[i] + (1 - kBeta1) * g[i];
                if (of.decays) p[i] *= 1 - kRate * kDecay;
                p[i] -= kRate * m[i] / (1 - std::pow(kBeta1, t)) /
                        (std::sqrt(second) / std::sqrt(1 - std::pow(kBeta2, t)) + kEpsilon);
              }
            }
          }) < 1e-6);
  }
  const auto optimizer = make_optimizer("adam_mini", test_settings());
  const std::vector<std::int64_t> odd{3, 16};
  CHECK(optimizer->check("k_proj.weight", odd).code() == Code::kUnsupported);
  CHECK(optimizer->check("up_proj.weight", odd).ok());
}

// bitsandbytes' map in its own words: linspace, means of neighbours, powers of ten.
std::vector<double> dynamic_map(bool has_sign) {
  std::vector<double> values{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int parts = has_sign ? 1 << i : 2 << i;
    std::vector<double> edges;
    for (int k = 0; k <= parts; ++k) edges.push_back(0.1 + 0.9 * k / parts);
    for (int k = 0; k < parts; ++k) {
      values.push_back((edges[k] + edges[k + 1]) / 2 * std::pow(10, i - 6));
      if (has_sign) values.push_back(-values.back());
    }
  }
  std::ranges::sort(values);
  return values;
}

// What a block of values is after it was kept in 8 bits.
void keep_in_8_bits(std::span<double> block, const std::vector<double>& map) {
  double scale = 0;
  for (const double x : block) scale = std::max(scale, std::abs(x));
  for (double& x : block) {
    const double wanted = scale > 0 ? x / scale : 0;
    x = scale *
        *std::ranges::min_element(map, {}, [&](double code) { return std::abs(code - wanted); });
  }
}

TEST_CASE("8-bit AdamW and Lion step with exact moments and keep them in blocks of 256") {
  const auto with_sign = dynamic_map(true), without = dynamic_map(false);
  REQUIRE(with_sign.size() == 256);
  constexpr std::size_t kRows = 65, kColumns = 64;  // 16 blocks and a quarter of one
  Values m(kRows * kColumns), v(m.size());
  const auto keep = [&](Values& values, const std::vector<double>& map) {
    for (std::size_t at = 0; at < values.size(); at += 256)
      keep_in_8_bits(std::span(values).subspan(at, std::min<std::size_t>(256, values.size() - at)),
                     map);
  };
  // A value near the middle of two codes may fall to either side: a few of 4160 · 20.
  CHECK(farthest("adamw_8bit", "w", {kRows, kColumns}, [&](Values& p, const Values& g, int t) {
          for (std::size_t i = 0; i < p.size(); ++i) {
            m[i] = kBeta1 * m[i] + (1 - kBeta1) * g[i];
            v[i] = kBeta2 * v[i] + (1 - kBeta2) * g[i] * g[i];
            p[i] = p[i] * (1 - kRate * kDecay) -
                   kRate * (m[i] / (1 - std::pow(kBeta1, t))) /
                       (std::sqrt(v[i] / (1 - std::pow(kBeta2, t))) + kEpsilon);
          }
          keep(m, with_sign), keep(v, without);
        }) < 2e-3);
  std::ranges::fill(m, 0.0);
  CHECK(farthest("lion_8bit", "w", {kRows, kColumns}, [&](Values& p, const Values& g, int) {
          for (std::size_t i = 0; i < p.size(); ++i) {
            p[i] = p[i] * (1 - kRate * kDecay) - kRate * sign(kBeta1 * m[i] + (1 - kBeta1) * g[i]);
            m[i] = kBeta2 * m[i] + (1 - kBeta2) * g[i];
          }
          keep(m, with_sign);
        }) < 1e-1);
  const auto optimizer = make_optimizer("adamw_bnb_8bit", {});
  const UpdateRule& rule = *optimizer->rule();
  const std::vector<std::int64_t> large{64, 64}, small{63, 65};
  CHECK(rule.rule_of("model.layers.0.mlp.up_proj.weight", large).unit == UpdateUnit::kBlock);
  CHECK(rule.rule_of("model.layers.0.mlp.up_proj.weight", small).unit == UpdateUnit::kElement);
  CHECK(rule.rule_of("model.embed_tokens.weight", large).unit == UpdateUnit::kElement);
}

TEST_CASE("Muon steps along the orthogonalised momentum") {
  const auto optimizer = make_optimizer("muon", test_settings());
  for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{8, 24}, {24, 8}}) {
    OptimizedTensor tensor(*optimizer, "model.layers.0.mlp.up_proj.weight",
                           {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)});
    const double factor = kRate * 0.2 * std::sqrt(24.0);
    Values momentum(rows * columns);
    for (int t = 1; t <= 3; ++t) {
      const auto before = tensor.parameters;
      const auto g = gradient_of(rows * columns, t);
      tensor.step({.learning_rate = kRate, .updates = t}, g);
      Values step(momentum.size());
      double along = 0, momentum_norm = 0, step_norm = 0;
      for (std::size_t i = 0; i < step.size(); ++i) {
        momentum[i] = 0.95 * momentum[i] + g[i];
        step[i] = (before[i] * (1 - kRate * kDecay) - tensor.parameters[i]) / factor;
        const double towards = g[i] + 0.95 * momentum[i];
        along += towards * step[i];
        momentum_norm += towards * towards;
        step_norm += step[i] * step[i];
      }
      // Of the same singular vectors: the product with the momentum is the sum of singular values,
      // about; five iterations bring them to between 0.7 and 1.2.
      CHECK(step_norm > 8 * 0.5);
      CHECK(step_norm < 8 * 1.45);
      CHECK(along > 0.8 * std::sqrt(momentum_norm * step_norm));
    }
  }
  const std::vector<std::int64_t> matrix{8, 8};
  CHECK(optimizer->rule()->rule_of("model.embed_tokens.weight", matrix).unit ==
        UpdateUnit::kElement);
}

// Σ over the tensor of what GaLore's direction leaves out must be what P leaves out: with P's rows
// orthonormal, and all of the gradient's energy where the rank is the gradient's.
TEST_CASE("GaLore with all dimensions is AdamW in another basis, with fewer a part of it") {
  OptimizerSettings settings = test_settings();
  settings.projection = {.rank = 2, .interval = 100, .scale = 1.0};
  const auto optimizer = make_optimizer("galore", settings);
  OptimizedTensor tensor(*optimizer, "model.layers.0.mlp.up_proj.weight", {6, 4});
  // A gradient of rank 2, whose columns' space does not change: u1·a + u2·b.
  const auto gradient = [](int t) {
    std::vector<float> g(24);
    for (int r = 0; r < 6; ++r)
      for (int c = 0; c < 4; ++c)
        g[static_cast<std::size_t>(4 * r + c)] =
            static_cast<float>(std::sin(r + t) * (c + 1) + 0.3 * std::cos(2 * r - t) * (c == 2));
    return g;
  };
  for (int t = 1; t <= 3; ++t) {
    tensor.step({.learning_rate = kRate, .updates = t}, gradient(t));
    // The projection: 2 rows of 4, orthonormal, that hold the gradient.
    const std::vector<float>& kept = tensor.slots[2 + t % 2];
    const auto p = [&](int r, int c) { return double{kept[static_cast<std::size_t>(4 * r + c)]}; };
    for (int a = 0; a < 2; ++a)
      for (int b = 0; b < 2; ++b) {
        double dot = 0;
        for (int c = 0; c < 4; ++c) dot += p(a, c) * p(b, c);
        CHECK(std::abs(dot - (a == b ? 1.0 : 0.0)) < 1e-6);
      }
    const auto g = gradient(t);
    for (int r = 0; r < 6; ++r) {
      double held = 0, all = 0;
      for (int a = 0; a < 2; ++a) {
        double dot = 0;
        for (int c = 0; c < 4; ++c) dot += p(a, c) * g[static_cast<std::size_t>(4 * r + c)];
        held += dot * dot;
      }
      for (int c = 0; c < 4; ++c) {
        const double x = g[static_cast<std::size_t>(4 * r + c)];
        all += x * x;
      }
      CHECK(std::abs(held - all) < 1e-5 * (1 + all));
    }
  }
}

TEST_CASE("GaLore's and APOLLO's twenty steps equal their packages' formulas") {
  constexpr int kRows = 6, kColumns = 4, kRank = 2;
  struct Case {
    const char* optim;
    bool by_tensor, front;
  };
  for (const Case& of :
       {Case{"galore", false, false}, Case{"apollo", false, false}, Case{"apollo", true, true}}) {
    CAPTURE(of.optim);
    CAPTURE(of.by_tensor);
    OptimizerSettings settings = test_settings();
    const bool apollo = std::string_view(of.optim) == "apollo";
    settings.projection = {.rank = kRank,
                           .interval = 7,
                           .scale = 4.0,
                           .scales_gradient = apollo,
                           .by_tensor = of.by_tensor,
                           .scale_front = of.front};
    const auto optimizer = make_optimizer(of.optim, settings);
    OptimizedTensor tensor(*optimizer, "model.layers.0.mlp.up_proj.weight", {kRows, kColumns});
    Values p(tensor.parameters.begin(), tensor.parameters.begin() + kRows * kColumns);
    Values m(kRows * kRank), v(m.size());
    double last_norm = 0, worst = 0;
    for (int t = 1; t <= kSteps; ++t) {
      const auto g = gradient_of(p.size(), t);
      tensor.step({.learning_rate = kRate, .updates = t}, g);
      // Tall: R = G·Pᵀ, with the projection that is kept.
      const std::vector<float>& kept = tensor.slots[static_cast<std::size_t>(2 + t % 2)];
      const auto projection = [&](int a, int c) {
        return double{kept[static_cast<std::size_t>(kColumns * a + c)]};
      };
      Values low(m.size()), normed(m.size()), step(p.size());
      for (int r = 0; r < kRows; ++r)
        for (int a = 0; a < kRank; ++a) {
          const auto at = static_cast<std::size_t>(kRank * r + a);
          for (int c = 0; c < kColumns; ++c)
            low[at] += g[static_cast<std::size_t>(kColumns * r + c)] * projection(a, c);
          m[at] = kBeta1 * m[at] + (1 - kBeta1) * low[at];
          v[at] = kBeta2 * v[at] + (1 - kBeta2) * low[at] * low[at];
          normed[at] = m[at] / (std::sqrt(v[at]) + kEpsilon);
        }
      const auto norm = [](const Values& x, int begin, int count) {
        double sum = 0;
        for (int i = begin; i < begin + count; ++i)
          sum += x[static_cast<std::size_t>(i)] * x[static_cast<std::size_t>(i)];
        return std::sqrt(sum);
      };
      for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c) {
          const auto at = static_cast<std::size_t>(kColumns * r + c);
          if (apollo) {
            const int begin = of.by_tensor ? 0 : kRank * r;
            const int count = of.by_tensor ? kRows * kRank : kRank;
            step[at] = g[at] * norm(normed, begin, count) / (norm(low, begin, count) + 1e-8) *
                       (of.front ? 2.0 : 1.0);
          } else {
            for (int a = 0; a < kRank; ++a)
              step[at] += 4.0 * normed[static_cast<std::size_t>(kRank * r + a)] * projection(a, c);
          }
        }
      if (apollo) {
        double now = norm(step, 0, kRows * kColumns);
        const double limiter = t == 1 ? 1.0 : std::max(now / (last_norm + 1e-8), 1.01) / 1.01;
        for (double& x : step) x = x / limiter * (of.front ? 1.0 : 2.0);
        last_norm = now / limiter;
      }
      const double rate = kRate * std::sqrt(1 - std::pow(kBeta2, t)) / (1 - std::pow(kBeta1, t));
      for (std::size_t i = 0; i < p.size(); ++i)
        p[i] = (p[i] - rate * step[i]) * (1 - kRate * kDecay);
      worst = std::max(worst, distance(tensor, p));
    }
    CHECK(worst < 1e-5);
  }
}

TEST_CASE("APOLLO's random projections are torch's, by seeds of its package") {
  OptimizerSettings settings = test_settings();
  settings.projection = {
      .rank = 8, .interval = 1, .scale = 1.0, .scales_gradient = true, .random = true};
  const auto optimizer = make_optimizer("apollo", settings);
  OptimizedTensor tensor(*optimizer, "model.layers.0.mlp.up_proj.weight", {8, 4});
  tensor.step({.learning_rate = kRate, .updates = 1}, gradient_of(32, 1));
  // torch.randn(8, 4, generator=torch.Generator().manual_seed(1)) begins so.
  constexpr std::array kFirst{-1.5255959033966064, -0.7502318024635315, -0.6539809107780457,
                              -1.6094847917556763};
  for (std::size_t i = 0; i < kFirst.size(); ++i)
    CHECK(std::abs(tensor.slots[3][i] * std::sqrt(8.0) - kFirst[i]) < 1e-5);
}

TEST_CASE("BAdam trains one layer at a time, each from moments of zero") {
  const auto layers_of = [](const BlockSettings& blocks, int updates) {
    OptimizerSettings settings = test_settings();
    settings.blocks = blocks;
    const auto optimizer = make_optimizer("badam", settings);
    std::vector<int> layers;
    for (int t = 1; t <= updates; ++t)
      for (int layer = 0; layer < blocks.layers; ++layer)
        if (optimizer->is_active(static_cast<std::uint16_t>(layer + 1), t)) layers.push_back(layer);
    return layers;
  };
  CHECK(layers_of({.layers = 3, .switch_interval = 3}, 9) ==
        std::vector{0, 0, 1, 1, 1, 2, 2, 2, 0});
  CHECK(layers_of({.layers = 3, .switch_mode = "descending", .switch_interval = 2}, 5) ==
        std::vector{2, 1, 1, 0, 0});
  CHECK(layers_of({.layers = 3, .switch_interval = -1, .start = 1}, 4) == std::vector{1, 2, 0, 1});
  CHECK(layers_of({.layers = 3, .switch_mode = "fixed", .switch_interval = 1, .start = 2}, 3) ==
        std::vector{2, 2, 2});
  auto drawn = layers_of({.layers = 4, .switch_mode = "random", .switch_interval = 1}, 8);
  std::sort(drawn.begin(), drawn.begin() + 4);
  CHECK(std::vector(drawn.begin(), drawn.begin() + 4) == std::vector{0, 1, 2, 3});

  OptimizerSettings settings = test_settings();
  settings.blocks = {.layers = 2, .switch_interval = 2};
  const auto optimizer = make_optimizer("badam", settings);
  OptimizedTensor tensor(*optimizer, "model.layers.1.mlp.up_proj.weight", {100});
  Values p(tensor.parameters.begin(), tensor.parameters.begin() + 100), m(100), v(100);
  for (int t = 1; t <= 7; ++t) {
    const auto g = gradient_of(100, t);
    tensor.step({.learning_rate = kRate, .updates = t}, g);
    // Layer 1 has updates 2, 3, 6 and 7.
    const int own = t == 2 || t == 6 ? 1 : t == 3 || t == 7 ? 2 : 0;
    if (own == 1) std::ranges::fill(m, 0.0), std::ranges::fill(v, 0.0);
    for (std::size_t i = 0; own > 0 && i < p.size(); ++i) {
      m[i] = kBeta1 * m[i] + (1 - kBeta1) * g[i];
      v[i] = kBeta2 * v[i] + (1 - kBeta2) * g[i] * g[i];
      p[i] = p[i] * (1 - kRate * 0.01) -
             kRate * (m[i] / (1 - std::pow(kBeta1, own))) /
                 (std::sqrt(v[i] / (1 - std::pow(kBeta2, own))) + kEpsilon);
    }
    CHECK(distance(tensor, p) < 1e-6);
  }
}

}  // namespace
}  // namespace troupe::train::tests
