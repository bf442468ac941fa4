// Operators beyond the Llama block's: layer norm, norms over heads, biases, GELU.

#include "tests/train/cpu/operator_fixture.h"

namespace troupe::train::tests {
namespace {

TEST_CASE("LayerNorm: values and gradients") {
  const std::int64_t rows = 5, width = 37;
  OperatorFixture f;
  Operators& op = *f.operators;
  Vector x = random_vector(rows * width, 1), w = random_vector(width, 2),
         b = random_vector(width, 3);
  for (float& value : x) value += 3.0f;
  const Vector dy = random_vector(rows * width, 4);
  Vector y(x.size()), mean(rows), rstd(rows);
  const auto value = [&] {
    op.layer_norm_forward(x.data(), w.data(), b.data(), y.data(), mean.data(), rstd.data(), rows,
                          width, 1e-5f);
    return inner_product(y, dy);
  };
  value();
  double sum = 0, squares = 0;
  for (std::size_t c = 0; c < 37; ++c) {
    const double normed = (y[c] - b[c]) / w[c];
    sum += normed, squares += normed * normed;
  }
  CHECK(std::abs(sum) < 1e-3);
  CHECK(squares / 37 == doctest::Approx(1.0).epsilon(1e-3));
  Vector again(x.size());
  op.layer_norm_apply(x.data(), w.data(), b.data(), mean.data(), rstd.data(), again.data(), rows,
                      width);
  CHECK(again == y);
  Vector dx(x.size()), dw(w.size()), db(b.size());
  op.layer_norm_backward(dy.data(), x.data(), w.data(), mean.data(), rstd.data(), dx.data(),
                         dw.data(), db.data(), rows, width);
  check_gradient(x, dx, value);
  check_gradient(w, dw, value);
  check_gradient(b, db, value);
}

TEST_CASE("norms over heads: each head on its own, gradients in place") {
  const std::int64_t rows = 3, heads = 2, dim = 18, x_stride = 40, y_stride = 50;
  OperatorFixture f;
  Operators& op = *f.operators;
  Vector x = random_vector(rows * x_stride, 1), w = random_vector(dim, 2);
  Vector dy = random_vector(rows * y_stride, 3), y(dy.size()), rstd(rows * heads);
  for (std::int64_t row = 0; row < rows; ++row)  // beside the heads nothing is touched
    std::fill_n(dy.begin() + row * y_stride + heads * dim, y_stride - heads * dim, 0.0f);
  const auto value = [&] {
    op.head_norm_forward(x.data(), x_stride, w.data(), y.data(), y_stride, rstd.data(), rows, heads,
                         dim, 1e-6f);
    return inner_product(y, dy);
  };
  value();
  CHECK(y[36] == 0.0f);
  Vector expected(dim);
  float expected_rstd = 0;
  op.rms_norm_forward(x.data() + x_stride + dim, w.data(), expected.data(), &expected_rstd, 1, dim,
                      1e-6f);
  CHECK(std::equal(expected.begin(), expected.end(), y.begin() + y_stride + dim));
  CHECK(rstd[3] == expected_rstd);

  Vector in_place = dy, dw(dim), dx(x.size());
  op.head_norm_backward(in_place.data(), y_stride, x.data(), x_stride, w.data(), rstd.data(),
                        dw.data(), rows, heads, dim);
  for (std::int64_t row = 0; row < rows; ++row)
    std::copy_n(in_place.begin() + row * y_stride, heads * dim, dx.begin() + row * x_stride);
  check_gradient(x, dx, value);
  check_gradient(w, dw, value);
}

TEST_CASE("GELU: values and gradients, in place") {
  OperatorFixture f;
  const Vector points = {-1000.0f, -8.0f, -1.0f, 0.0f, 0.5f, 3.0f, 1000.0f};
  Vector act(points.size());
  f.operators->gelu_forward(points.data(), act.data(), 7);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double x = points[i];
    const double u = std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
    CHECK(act[i] == doctest::Approx(0.5 * x * (1 + std::tanh(u))).epsilon(1e-6));
  }
  Vector x = random_vector(70, 1);
  for (float& value : x) value *= 4;
  const Vector dact = random_vector(70, 2);
  Vector out(70);
  const auto value = [&] {
    f.operators->gelu_forward(x.data(), out.data(), 70);
    return inner_product(out, dact);
  };
  value();
  Vector gradient = x, in_place = dact, alone = x;
  f.operators->gelu_backward(gradient.data(), in_place.data(), in_place.data(), 70);
  CHECK(in_place == out);
  f.operators->gelu_backward(alone.data(), dact.data(), nullptr, 70);
  CHECK(alone == gradient);
  check_gradient(x, gradient, value, 5e-3);
}

TEST_CASE("bias: added to every row, its gradient is the sum of rows") {
  const std::int64_t rows = 4, width = 5, stride = 7;
  OperatorFixture f;
  const Vector start = random_vector(rows * stride, 1), bias = random_vector(width, 2);
  Vector y = start;
  f.operators->add_bias(y.data(), stride, bias.data(), rows, width);
  Vector sums = bias;
  f.operators->bias_backward(y.data(), stride, sums.data(), rows, width);
  for (std::size_t c = 0; c < 5; ++c) {
    float sum = bias[c];
    for (std::size_t row = 0; row < 4; ++row) {
      CHECK(y[row * 7 + c] == start[row * 7 + c] + bias[c]);
      sum += y[row * 7 + c];
    }
    CHECK(sums[c] == sum);
  }
  CHECK(y[5] == start[5]);
}

TEST_CASE("the number of threads changes no bit") {
  const std::int64_t rows = 300, width = 200, heads = 4, dim = 50;
  const Vector x = random_vector(rows * width, 1), w = random_vector(width, 2);
  const Vector dy = random_vector(rows * width, 3);
  std::vector<Vector> results[3];
  for (const int threads : {1, 2, 3}) {
    OperatorFixture f(threads);
    Operators& op = *f.operators;
    Vector y(x.size()), mean(300), rstd(1200), dx(x.size()), dw(200), db(200), head = dy, dh(50);
    Vector gelu = x, act(x.size());
    op.layer_norm_forward(x.data(), w.data(), w.data(), y.data(), mean.data(), rstd.data(), rows,
                          width, 1e-5f);
    op.layer_norm_backward(dy.data(), x.data(), w.data(), mean.data(), rstd.data(), dx.data(),
                           dw.data(), db.data(), rows, width);
    op.head_norm_forward(x.data(), width, w.data(), y.data(), width, rstd.data(), rows, heads, dim,
                         1e-6f);
    op.head_norm_backward(head.data(), width, x.data(), width, w.data(), rstd.data(), dh.data(),
                          rows, heads, dim);
    op.gelu_backward(gelu.data(), dy.data(), act.data(), rows * width);
    op.bias_backward(dy.data(), width, db.data(), rows, width);
    results[threads - 1] = {y, mean, rstd, dx, dw, db, head, dh, gelu, act};
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

}  // namespace
}  // namespace troupe::train::tests
