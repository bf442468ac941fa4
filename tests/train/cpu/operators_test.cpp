#include "tests/train/cpu/operator_fixture.h"
#include "train/cpu/exp.h"
#include "train/cpu/gemm.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

TEST_CASE("gemm: all transpositions, tiles and accumulation against a plain loop") {
  struct Shape {
    std::int64_t m, n, k;
  };
  for (const Shape s :
       {Shape{3, 5, 7}, Shape{300, 130, 70}, Shape{1, 800, 64}, Shape{40, 33, 5000}})
    for (int flags = 0; flags < 8; ++flags) {
      const bool ta = flags & 1, tb = flags & 2, accumulate = flags & 4;
      const Vector a = random_vector(s.m * s.k, 1), b = random_vector(s.k * s.n, 2);
      const Vector start = random_vector(s.m * s.n, 3);
      Vector c[2];
      for (const int threads : {1, 2}) {
        OperatorFixture f(threads);
        c[threads - 1] = start;
        f.operators->gemm({.m = s.m,
                           .n = s.n,
                           .k = s.k,
                           .a = a.data(),
                           .a_stride = ta ? s.m : s.k,
                           .transpose_a = ta,
                           .b = b.data(),
                           .b_stride = tb ? s.k : s.n,
                           .transpose_b = tb,
                           .c = c[threads - 1].data(),
                           .c_stride = s.n,
                           .accumulate = accumulate});
      }
      CHECK(c[0] == c[1]);
      double worst = 0;
      for (std::int64_t i = 0; i < s.m; i += 1 + s.m / 7)
        for (std::int64_t j = 0; j < s.n; j += 1 + s.n / 9) {
          double sum = accumulate ? start[static_cast<std::size_t>(i * s.n + j)] : 0.0;
          for (std::int64_t k = 0; k < s.k; ++k)
            sum +=
                static_cast<double>(a[static_cast<std::size_t>(ta ? k * s.m + i : i * s.k + k)]) *
                b[static_cast<std::size_t>(tb ? j * s.k + k : k * s.n + j)];
          worst = std::max(worst, std::abs(sum - c[0][static_cast<std::size_t>(i * s.n + j)]));
        }
      CAPTURE(s.m);
      CAPTURE(flags);
      // One chain of 5,000 sums of size 20 rounds away a few 1e-6 of it.
      CHECK(worst < 3e-4);
    }
}

TEST_CASE("the exponential is within 2 ulp and passes NaN on") {
  double worst = 0;
  for (int i = -870000; i <= 880000; i += 37) {
    const float x = static_cast<float>(i) * 1e-4f;
    const double exact = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(rounded, INFINITY)) - rounded;
    worst = std::max(worst, std::abs(fast_exp(x) - exact) / ulp);
  }
  CHECK(worst < 2.0);
  CHECK(std::isnan(fast_exp(NAN)));
  CHECK(fast_exp(-INFINITY) < 2e-38f);
}

TEST_CASE("columns: scaled, and sums of products, the same for any number of threads") {
  const std::int64_t rows = 37, width = 150, y_stride = 160, b_stride = 151;
  const Vector start = random_vector(rows * y_stride, 1), factors = random_vector(width, 2);
  const Vector b = random_vector(rows * b_stride, 3), sums = random_vector(width, 4);
  Vector y[2], out[2];
  for (const int threads : {1, 3}) {
    OperatorFixture f(threads);
    Vector& scaled = y[threads > 1] = start;
    Vector& summed = out[threads > 1] = sums;
    f.operators->scale_columns(scaled.data(), y_stride, factors.data(), rows, width);
    f.operators->add_column_products(start.data(), y_stride, b.data(), b_stride, summed.data(),
                                     rows, width);
  }
  Vector expected = start, expected_sums = sums;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < width; ++j) {
      const auto at = static_cast<std::size_t>(i * y_stride + j),
                 column = static_cast<std::size_t>(j);
      expected[at] = start[at] * factors[column];
      // In order of the rows, each product and each sum rounded.
      expected_sums[column] += start[at] * b[static_cast<std::size_t>(i * b_stride + j)];
    }
  for (const int i : {0, 1}) {
    CHECK(y[i] == expected);
    CHECK(out[i] == expected_sums);
  }
}

TEST_CASE("columns of a product, scaled, are added to columns of a matrix") {
  const std::int64_t rows = 37, width = 150, stride = 160;
  const Vector start = random_vector(rows * stride, 1), x = random_vector(rows * width, 2);
  const Vector factors = random_vector(width, 3);
  Vector y = start, expected = start;
  OperatorFixture f(3);
  f.operators->add_scaled_columns(y.data(), stride, x.data(), factors.data(), rows, width);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < width; ++j)
      expected[static_cast<std::size_t>(i * stride + j)] +=
          factors[static_cast<std::size_t>(j)] * x[static_cast<std::size_t>(i * width + j)];
  CHECK(y == expected);
}

TEST_CASE("factors of magnitudes: rows or columns, fp32 or bf16, any number of threads") {
  const std::int64_t rows = 70, width = 153;
  const Vector update = random_vector(rows * width, 1), magnitudes = random_vector(rows, 2);
  Vector weight = random_vector(rows * width, 3);
  std::vector<std::uint16_t> words;
  for (float& value : weight) {
    words.push_back(float_to_bf16(value));
    float_from_bf16(&words.back(), &value, 1);  // what both types can say
  }
  Vector turned(weight.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < width; ++j)
      turned[static_cast<std::size_t>(j * rows + i)] =
          weight[static_cast<std::size_t>(i * width + j)];
  struct Made {
    Vector factors = Vector(70), less_one = Vector(70), inverse = Vector(70);
    bool operator==(const Made&) const = default;
  };
  const auto make = [&](ConstElements from, bool by_columns, int threads) {
    Made made;
    OperatorFixture f(threads);
    f.operators->magnitude_factors(from, by_columns ? 1 : width, by_columns ? rows : 1,
                                   update.data(), 0.5f, magnitudes.data(), made.factors.data(),
                                   made.less_one.data(), made.inverse.data(), rows, width);
    return made;
  };
  const Made first = make(weight.data(), false, 1);
  for (std::int64_t i = 0; i < rows; ++i) {
    double squares = 0;
    for (std::int64_t j = 0; j < width; ++j) {
      const auto at = static_cast<std::size_t>(i * width + j);
      squares += std::pow(static_cast<double>(weight[at]) + 0.5 * update[at], 2);
    }
    const auto row = static_cast<std::size_t>(i);
    CHECK(first.inverse[row] == doctest::Approx(1 / std::sqrt(squares)).epsilon(1e-6));
    CHECK(first.factors[row] ==
          doctest::Approx(magnitudes[row] / std::sqrt(squares)).epsilon(1e-6));
    CHECK(first.less_one[row] == first.factors[row] - 1.0f);
  }
  CHECK(make(weight.data(), false, 3) == first);
  CHECK(make(words.data(), false, 2) == first);
  CHECK(make(turned.data(), true, 1) == first);
}

TEST_CASE("RMSNorm: values, fused residual, gradients") {
  const std::int64_t rows = 5, width = 37;
  OperatorFixture f;
  Operators& op = *f.operators;
  Vector x = random_vector(rows * width, 1), w = random_vector(width, 2);
  const Vector dy = random_vector(rows * width, 3), delta = random_vector(rows * width, 4);
  Vector y(x.size()), rstd(rows);
  const auto value = [&] {
    op.rms_norm_forward(x.data(), w.data(), y.data(), rstd.data(), rows, width, 1e-5f);
    return inner_product(y, dy);
  };
  value();
  Vector again(x.size());
  op.rms_norm_apply(x.data(), w.data(), rstd.data(), again.data(), rows, width);
  CHECK(again == y);
  Vector dx(x.size()), dw(w.size());
  op.rms_norm_backward(dy.data(), x.data(), w.data(), rstd.data(), dx.data(), dw.data(), rows,
                       width);
  check_gradient(x, dx, value);
  check_gradient(w, dw, value);

  Vector sum(x.size()), fused(x.size()), expected_sum(x.size());
  op.residual_rms_norm_forward(x.data(), delta.data(), w.data(), sum.data(), fused.data(),
                               rstd.data(), rows, width, 1e-5f);
  op.add(x.data(), delta.data(), expected_sum.data(), rows * width);
  CHECK(sum == expected_sum);
  op.rms_norm_forward(sum.data(), w.data(), y.data(), rstd.data(), rows, width, 1e-5f);
  CHECK(fused == y);
}

TEST_CASE("RoPE turns back, and position 0 changes nothing") {
  const std::int64_t rows = 4, heads = 3, dim = 10, stride = 40;
  OperatorFixture f;
  Vector cosine(5 * 5), sine(5 * 5);
  for (std::size_t p = 0; p < 5; ++p)
    for (std::size_t i = 0; i < 5; ++i)
      cosine[p * 5 + i] = std::cos(0.3f * static_cast<float>(p * (i + 1))),
                     sine[p * 5 + i] = std::sin(0.3f * static_cast<float>(p * (i + 1)));
  const std::vector<std::int32_t> positions = {0, 4, 2, 2};
  const Vector start = random_vector(rows * stride, 1);
  Vector x = start;
  f.operators->rope(x.data(), stride, positions.data(), cosine.data(), sine.data(), rows, heads,
                    dim, RopeDirection::kForward);
  CHECK(std::equal(x.begin(), x.begin() + stride, start.begin()));
  CHECK(x[40] == doctest::Approx(start[40] * cosine[20] - start[45] * sine[20]));
  CHECK(x[45] == doctest::Approx(start[45] * cosine[20] + start[40] * sine[20]));
  f.operators->rope(x.data(), stride, positions.data(), cosine.data(), sine.data(), rows, heads,
                    dim, RopeDirection::kBackward);
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i] == doctest::Approx(start[i]).epsilon(1e-5));
}

TEST_CASE("SwiGLU: gradients, in place") {
  const std::int64_t rows = 3, width = 21;
  OperatorFixture f;
  Vector gate_up = random_vector(rows * 2 * width, 1);
  for (float& x : gate_up) x *= 3;
  const Vector dact = random_vector(rows * width, 2);
  Vector act(dact.size());
  const auto value = [&] {
    f.operators->swiglu_forward(gate_up.data(), act.data(), rows, width);
    return inner_product(act, dact);
  };
  value();
  Vector gradient = gate_up, in_place = dact;
  f.operators->swiglu_backward(gradient.data(), in_place.data(), in_place.data(), rows, width);
  for (std::size_t i = 0; i < act.size(); ++i) CHECK(in_place[i] == doctest::Approx(act[i]));
  check_gradient(gate_up, gradient, value, 5e-3);
}

TEST_CASE("GEGLU: GELU of the gate times up, and gradients, in place") {
  // More than a piece of the backward loop, and a rest that fills no vector.
  const std::int64_t rows = 2, width = 531;
  OperatorFixture f(2);
  Vector gate_up = random_vector(rows * 2 * width, 1);
  for (float& x : gate_up) x *= 3;
  const Vector dact = random_vector(rows * width, 2);
  Vector act(dact.size()), gelu(static_cast<std::size_t>(width));
  f.operators->geglu_forward(gate_up.data(), act.data(), rows, width);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* gate = gate_up.data() + row * 2 * width;
    f.operators->gelu_forward(gate, gelu.data(), width);
    for (std::int64_t i = 0; i < width; ++i)
      CHECK(act[static_cast<std::size_t>(row * width + i)] ==
            gelu[static_cast<std::size_t>(i)] * gate[width + i]);
  }
  Vector gradient = gate_up, in_place = dact, alone = gate_up;
  f.operators->geglu_backward(gradient.data(), in_place.data(), in_place.data(), rows, width);
  CHECK(in_place == act);
  f.operators->geglu_backward(alone.data(), dact.data(), nullptr, rows, width);
  CHECK(alone == gradient);
  // Of few columns, so that differences of the sum are not lost in it.
  Vector few(gate_up.begin(), gate_up.begin() + 2 * 21), few_gradient = few;
  const Vector few_dact(dact.begin(), dact.begin() + 21);
  Vector few_act(21);
  f.operators->geglu_backward(few_gradient.data(), few_dact.data(), nullptr, 1, 21);
  check_gradient(
      few, few_gradient,
      [&] {
        f.operators->geglu_forward(few.data(), few_act.data(), 1, 21);
        return inner_product(few_act, few_dact);
      },
      5e-3);
}

TEST_CASE("a number is added to each element, in place too") {
  OperatorFixture f(2);
  Vector x = random_vector(50'000, 1), out(x.size());
  f.operators->add_number(x.data(), 1.0f, out.data(), 50'000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += 1.0f;
  CHECK(out == x);
  f.operators->add_number(x.data(), -2.5f, x.data(), 50'000);
  for (float& value : out) value -= 2.5f;
  CHECK(out == x);
}

TEST_CASE("embedding: gather and ordered scatter") {
  OperatorFixture f(2);
  const std::vector<std::int32_t> ids = {2, 0, 2, 1};
  const Vector weight = random_vector(3 * 70, 1), dout = random_vector(4 * 70, 2);
  Vector out(4 * 70), dweight(3 * 70);
  f.operators->embedding_forward(ids.data(), weight.data(), DType::kF32, out.data(), 4, 70);
  CHECK(std::equal(out.begin(), out.begin() + 70, weight.begin() + 140));
  f.operators->embedding_backward(ids.data(), dout.data(), dweight.data(), 4, 70);
  for (std::size_t c = 0; c < 70; ++c) {
    CHECK(dweight[140 + c] == dout[c] + dout[140 + c]);
    CHECK(dweight[c] == dout[70 + c]);
  }
}

TEST_CASE("cross entropy: loss, gradient in place, infinities are not hidden") {
  const std::int64_t rows = 4, classes = 53;
  OperatorFixture f;
  Vector logits = random_vector(rows * classes, 1);
  for (float& x : logits) x *= 4;
  const std::vector<std::int32_t> labels = {0, 52, 17, 17};
  Vector losses(rows);
  const auto value = [&] {
    Vector copy = logits;
    f.operators->cross_entropy(copy.data(), labels.data(), losses.data(), 0.5f, false, rows,
                               classes);
    double sum = 0;
    for (const float loss : losses) sum += loss;
    return 0.5 * sum;
  };
  double sum = 0;
  for (std::int64_t c = 0; c < classes; ++c)
    sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>(c)]));
  value();
  CHECK(losses[0] == doctest::Approx(std::log(sum) - logits[0]));
  Vector gradient = logits;
  f.operators->cross_entropy(gradient.data(), labels.data(), losses.data(), 0.5f, true, rows,
                             classes);
  check_gradient(logits, gradient, value);
  for (const float bad : {NAN, INFINITY}) {
    Vector copy = logits;
    copy[60] = bad;
    f.operators->cross_entropy(copy.data(), labels.data(), losses.data(), 1.0f, false, rows,
                               classes);
    CHECK(!std::isfinite(losses[1]));
    CHECK(std::isfinite(losses[0]));
  }
}

// exp(x − greatest) overflows where the greatest is missed: at any place of the row, in whole
// vectors or behind them.
TEST_CASE("cross entropy: the greatest logit is found wherever it stands") {
  OperatorFixture f;
  constexpr std::int64_t kClasses = 150;
  for (std::int64_t place = 0; place < kClasses; ++place) {
    CAPTURE(place);
    Vector logits = random_vector(2 * kClasses, 5);
    logits[static_cast<std::size_t>(place)] = 300.0f;
    logits[static_cast<std::size_t>(2 * kClasses - 1 - place)] = 300.0f;
    const std::vector<std::int32_t> labels = {static_cast<std::int32_t>(place),
                                              static_cast<std::int32_t>(place)};
    const float beside = logits[static_cast<std::size_t>(kClasses + place)];
    Vector losses(2);
    f.operators->cross_entropy(logits.data(), labels.data(), losses.data(), 1.0f, true, 2,
                               kClasses);
    CHECK(losses[0] == doctest::Approx(0.0));
    CHECK(losses[1] == doctest::Approx(300.0 - beside));
    CHECK(logits[static_cast<std::size_t>(2 * kClasses - 1 - place)] == doctest::Approx(1.0));
  }
}

TEST_CASE("weighted cross-entropy: each row's gradient times its weight, in fp32 and bf16") {
  const std::int64_t rows = 7, classes = 53;
  const std::vector<std::int32_t> labels = {1, 0, 52, 7, 8, 20, 3};
  const Vector weights = {1.0f, 0.0f, -2.5f, 0.5f, 1.0f, -1.0f, 3.0f};
  const Vector start = random_vector(rows * classes, 1);
  OperatorFixture f(2);
  Vector plain = start, weighted = start, destroyed = start, losses(7), same(weights), again(7);
  f.operators->cross_entropy(plain.data(), labels.data(), losses.data(), 0.5f, true, rows, classes);
  // Losses may lie where the weights did.
  f.operators->weighted_cross_entropy(weighted.data(), labels.data(), same.data(), same.data(),
                                      0.5f, nullptr, rows, classes);
  std::vector<std::uint16_t> bf16(start.size());
  f.operators->weighted_cross_entropy(destroyed.data(), labels.data(), weights.data(), again.data(),
                                      0.5f, bf16.data(), rows, classes);
  CHECK(same == losses);
  CHECK(again == losses);
  Vector wide(start.size());
  float_from_bf16(bf16.data(), wide.data(), rows * classes);
  for (std::size_t i = 0; i < start.size(); ++i) {
    const float weight = weights[i / classes];
    if (weight == 1.0f) CHECK(weighted[i] == plain[i]);
    CHECK(weighted[i] == doctest::Approx(weight * plain[i]).epsilon(1e-6));
    CHECK(wide[i] == doctest::Approx(weighted[i]).epsilon(4e-3));
  }
}

TEST_CASE("cross-entropy times its target's probability, and the divergence from a reference") {
  const std::int64_t rows = 3, classes = 53;
  const std::vector<std::int32_t> labels = {1, 0, 52};
  const Vector logits = random_vector(rows * classes, 1), other = random_vector(rows * classes, 2);
  OperatorFixture f(2);
  Vector found = logits, reference = other, losses(3), destroyed = logits, again(3);
  f.operators->divergence_cross_entropy(found.data(), labels.data(), reference.data(),
                                        losses.data(), 0.5f, 0.3f, nullptr, rows, classes);
  std::vector<std::uint16_t> bf16(logits.size());
  reference = other;
  f.operators->divergence_cross_entropy(destroyed.data(), labels.data(), reference.data(),
                                        again.data(), 0.5f, 0.3f, bf16.data(), rows, classes);
  CHECK(again == losses);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto softmax = [&](const Vector& of) {
      std::vector<double> p;
      double sum = 0;
      for (std::int64_t i = 0; i < classes; ++i) p.push_back(std::exp(of[row * classes + i]));
      for (const double value : p) sum += value;
      for (double& value : p) value /= sum;
      return p;
    };
    const std::vector<double> p = softmax(logits), q = softmax(other);
    const double target = p[labels[row]];
    double divergence = 0;
    for (std::int64_t i = 0; i < classes; ++i) divergence += q[i] * std::log(q[i] / p[i]);
    CHECK(losses[row] == doctest::Approx(-target * std::log(target) + 0.3 * divergence));
    for (std::int64_t i = 0; i < classes; ++i) {
      const double one = i == labels[row] ? 1 : 0;
      const double gradient = 0.5 * (target * (p[i] - one) + 0.3 * (p[i] - q[i]));
      CHECK(found[row * classes + i] == doctest::Approx(gradient).epsilon(1e-4).scale(0.01));
      CHECK(bf16_to_float(bf16[row * classes + i]) ==
            doctest::Approx(gradient).epsilon(8e-3).scale(0.01));
    }
  }
}

TEST_CASE("cross-entropy weighted by the entropy of the greatest logits, in fp32 and bf16") {
  const std::int64_t rows = 4, classes = 53;
  const std::vector<std::int32_t> labels = {1, 0, 52, 7};
  Vector start = random_vector(rows * classes, 1);
  start[2 * classes + 9] = 30.0f;  // a row that is sure
  for (const std::int64_t top : {20, 100}) {
    Vector weights;
    for (std::int64_t row = 0; row < rows; ++row) {
      Vector logits(start.begin() + row * classes, start.begin() + (row + 1) * classes);
      std::sort(logits.rbegin(), logits.rend());
      logits.resize(static_cast<std::size_t>(std::min(top, classes)));
      double sum = 0, entropy = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      for (const float logit : logits) {
        const double p = std::exp(static_cast<double>(logit)) / sum;
        entropy -= p * std::log(p);
      }
      weights.push_back(static_cast<float>(std::pow(entropy / 3.0, 1.5)));
    }
    CHECK(weights[2] < 1e-9);
    OperatorFixture f(2);
    Vector expected = start, found = start, destroyed = start, plain(4), losses(4), again(4);
    f.operators->weighted_cross_entropy(expected.data(), labels.data(), weights.data(),
                                        plain.data(), 0.5f, nullptr, rows, classes);
    f.operators->entropy_weighted_cross_entropy(found.data(), labels.data(), losses.data(), 0.5f,
                                                top, 3.0f, 1.5f, nullptr, rows, classes);
    std::vector<std::uint16_t> bf16(start.size());
    f.operators->entropy_weighted_cross_entropy(destroyed.data(), labels.data(), again.data(), 0.5f,
                                                top, 3.0f, 1.5f, bf16.data(), rows, classes);
    CHECK(again == losses);
    Vector wide(start.size());
    float_from_bf16(bf16.data(), wide.data(), rows * classes);
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(losses[i] == doctest::Approx(plain[i] * weights[i]).epsilon(1e-5));
    for (std::size_t i = 0; i < start.size(); ++i) {
      CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-5));
      CHECK(wide[i] == doctest::Approx(found[i]).epsilon(4e-3));
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests
