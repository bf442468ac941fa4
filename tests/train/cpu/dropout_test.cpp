// Dropout on the CPU: the elements that dropout.h says, in every layout that loops have.

#include <algorithm>

#include "tests/train/cpu/operator_fixture.h"
#include "train/cpu/isa.h"
#include "train/cpu/kernels.h"

namespace troupe::train::tests {
namespace {

// One element, as its definition has it.
float mask_of(const Dropout& d, std::int64_t row, std::int64_t column, std::uint32_t head = 0) {
  const PhiloxWords words =
      dropout_words(d.seed, d.epoch, d.site | head, static_cast<std::uint32_t>(d.samples[row]),
                    static_cast<std::uint32_t>(d.tokens[row]),
                    static_cast<std::uint32_t>(column / kDropoutColumns));
  return dropout_bits(words, static_cast<std::uint32_t>(column)) >= d.threshold ? d.scale : 0.0f;
}

// Samples one behind the other, their numbers in no order.
struct DroppedRows {
  explicit DroppedRows(std::int64_t rows, const std::vector<std::int64_t>& lengths = {}) {
    std::size_t part = 0;
    std::int32_t place = 0;
    for (std::int64_t row = 0; row < rows; ++row, ++place) {
      if (part < lengths.size() && place == lengths[part]) ++part, place = 0;
      samples.push_back(static_cast<std::int32_t>(1000 - 7 * part));
      places.push_back(place);
      starts.push_back(static_cast<std::int32_t>(row - place));
    }
    dropout = dropout_of(0.3);
    dropout.seed = 42, dropout.epoch = 1;
    dropout.site = dropout_site(DropoutPlace::kAttention, 5);
    dropout.samples = samples.data(), dropout.tokens = places.data();
  }
  std::vector<std::int32_t> samples, places, starts;
  Dropout dropout;
};

TEST_CASE("dropout: every element is its definition's, whatever the width and the threads") {
  for (const std::int64_t width : {1, 7, 8, 100, 128, 129, 768, 1000}) {
    constexpr std::int64_t kRows = 5;
    CAPTURE(width);
    const DroppedRows rows(kRows, {2, 3});
    const Vector x = random_vector(kRows * width, 1), residual = random_vector(kRows * width, 2);
    Vector expected(x.size()), added(x.size());
    for (std::int64_t i = 0; i < kRows * width; ++i) {
      const float mask = mask_of(rows.dropout, i / width, i % width);
      expected[static_cast<std::size_t>(i)] =
          mask == 0.0f ? 0.0f : x[static_cast<std::size_t>(i)] * mask;
      added[static_cast<std::size_t>(i)] =
          residual[static_cast<std::size_t>(i)] + expected[static_cast<std::size_t>(i)];
    }
    for (const int threads : {1, 2}) {
      OperatorFixture f(threads);
      Vector out(x.size()), in_place = x, onto = residual;
      f.operators->dropout(rows.dropout, x.data(), nullptr, out.data(), kRows, width);
      CHECK(out == expected);
      f.operators->dropout(rows.dropout, in_place.data(), nullptr, in_place.data(), kRows, width);
      CHECK(in_place == expected);
      f.operators->dropout(rows.dropout, x.data(), residual.data(), out.data(), kRows, width);
      CHECK(out == added);
      f.operators->dropout(rows.dropout, x.data(), onto.data(), onto.data(), kRows, width);
      CHECK(onto == added);
    }
  }
}

TEST_CASE("dropout: a row that begins anywhere") {
  const DroppedRows rows(1);
  const Vector x = random_vector(400, 1);
  for (const std::int64_t first : {0, 1, 5, 8, 13, 127, 1000}) {
    CAPTURE(first);
    Vector out(x.size());
    kernels::dropout_row(x.data(), nullptr, out.data(), 400, first,
                         kernels::dropout_row_of(rows.dropout, 0, 3));
    for (std::int64_t i = 0; i < 400; ++i) {
      const float mask = mask_of(rows.dropout, 0, first + i, 3);
      CHECK(out[static_cast<std::size_t>(i)] ==
            (mask == 0.0f ? 0.0f : x[static_cast<std::size_t>(i)] * mask));
    }
  }
}

struct DroppedCase {
  std::int64_t queries, keys;
  std::vector<std::int64_t> samples;  // lengths of all but the last
  std::int64_t heads = 4, key_heads = 2, dim = 6;
  Arithmetic arithmetic = Arithmetic::kFp32;

  std::int64_t width() const { return heads * dim; }
  std::int64_t key_width() const { return key_heads * dim; }
};

struct DroppedRun {
  Vector out, lse, dq, dk, dv;
};

AttentionShape shape_of(const DroppedCase& c, const DroppedRows& rows) {
  AttentionShape s;
  s.batch = 1;
  s.query_length = c.queries, s.key_length = c.keys;
  s.query_heads = c.heads, s.key_heads = c.key_heads, s.head_dim = c.dim;
  s.query_stride = c.width(), s.key_stride = c.key_width();
  s.key_batch_stride = c.keys * c.key_width();
  s.scale = 0.7f;
  s.first_key = c.samples.empty() ? nullptr : rows.starts.data();
  s.arithmetic = c.arithmetic;
  s.dropout = rows.dropout;
  return s;
}

DroppedRun attend_dropped(const DroppedCase& c, const DroppedRows& rows, const Vector& q,
                          const Vector& k, const Vector& v, const Vector& dout, int threads) {
  OperatorFixture f(threads);
  const AttentionShape s = shape_of(c, rows);
  DroppedRun r{Vector(q.size()), Vector(static_cast<std::size_t>(c.heads * c.queries)),
               Vector(q.size()), Vector(k.size()), Vector(v.size())};
  f.operators->attention_forward(s, q.data(), k.data(), v.data(), r.out.data(), r.lse.data());
  if (c.queries == c.keys)
    f.operators->attention_backward(s, q.data(), k.data(), v.data(), r.out.data(), r.lse.data(),
                                    dout.data(), r.dq.data(), r.dk.data(), r.dv.data());
  return r;
}

// PyTorch's: softmax, then weights times mask, in double.
std::vector<double> dropped_row(const DroppedCase& c, const DroppedRows& rows, const Vector& q,
                                const Vector& k, const Vector& v, std::int64_t query,
                                std::int64_t head) {
  const auto at = [](const Vector& x, std::int64_t i) {
    return static_cast<double>(x[static_cast<std::size_t>(i)]);
  };
  const std::int64_t key_head = head / (c.heads / c.key_heads), past = c.keys - c.queries;
  const std::int64_t start = c.samples.empty() ? 0 : rows.starts[static_cast<std::size_t>(query)];
  std::vector<double> out(static_cast<std::size_t>(c.dim));
  double sum = 0;
  for (std::int64_t key = start; key <= past + query; ++key) {
    double score = 0;
    for (std::int64_t d = 0; d < c.dim; ++d)
      score += at(q, query * c.width() + head * c.dim + d) *
               at(k, key * c.key_width() + key_head * c.dim + d);
    const double p = std::exp(score * 0.7f);
    sum += p;
    const float mask = mask_of(rows.dropout, query,
                               key - (past + query - rows.places[static_cast<std::size_t>(query)]),
                               static_cast<std::uint32_t>(head));
    for (std::int64_t d = 0; d < c.dim; ++d)
      out[static_cast<std::size_t>(d)] +=
          p * mask * at(v, key * c.key_width() + key_head * c.dim + d);
  }
  for (double& x : out) x /= sum;
  return out;
}

void check_dropped(const DroppedCase& c, double tolerance) {
  CAPTURE(c.queries);
  CAPTURE(c.samples.size());
  DroppedRows rows(c.queries, c.samples);
  for (std::int32_t& place : rows.places) place += static_cast<std::int32_t>(c.keys - c.queries);
  Vector q = random_vector(c.queries * c.width(), 1), k = random_vector(c.keys * c.key_width(), 2),
         v = random_vector(c.keys * c.key_width(), 3);
  const Vector dout = random_vector(c.queries * c.width(), 4);
  const DroppedRun one = attend_dropped(c, rows, q, k, v, dout, 1);
  const DroppedRun two = attend_dropped(c, rows, q, k, v, dout, 2);
  CHECK(one.out == two.out);
  CHECK(one.dq == two.dq);
  CHECK(one.dk == two.dk);
  CHECK(one.dv == two.dv);
  for (std::int64_t query = 0; query < c.queries; query += 1 + c.queries / 17)
    for (const std::int64_t head : {std::int64_t{0}, c.heads - 1}) {
      const auto expected = dropped_row(c, rows, q, k, v, query, head);
      for (std::int64_t d = 0; d < c.dim; ++d)
        CHECK(std::abs(one.out[static_cast<std::size_t>(query * c.width() + head * c.dim + d)] -
                       expected[static_cast<std::size_t>(d)]) < tolerance);
    }
  if (c.queries != c.keys || c.arithmetic == Arithmetic::kBf16) return;
  const auto value = [&] {
    return inner_product(attend_dropped(c, rows, q, k, v, dout, 1).out, dout);
  };
  check_gradient(q, one.dq, value);
  check_gradient(k, one.dk, value);
  check_gradient(v, one.dv, value);
}

TEST_CASE("dropout of attention's weights: values and slopes under a fixed mask") {
  check_dropped({5, 5, {}}, 1e-5);  // too few queries for blocks
  check_dropped({70, 70, {}}, 1e-5);
  check_dropped({133, 133, {50, 3, 9, 40}}, 1e-5);  // samples begin at any key
  check_dropped({3, 40, {}}, 1e-5);                 // behind a cache
}

TEST_CASE("dropout of attention's weights: bf16 products, the same mask") {
  for (const std::vector<std::int64_t>& samples : {std::vector<std::int64_t>{}, {50, 3, 9, 40}}) {
    DroppedCase c{133, 133, samples};
    c.dim = 16;
    c.arithmetic = Arithmetic::kBf16;
    check_dropped(c, 3e-2);
    // Beside the same in fp32, gradients too: another mask would be no small difference.
    const DroppedRows rows(c.queries, samples);
    const Vector q = random_vector(c.queries * c.width(), 1),
                 k = random_vector(c.keys * c.key_width(), 2),
                 v = random_vector(c.keys * c.key_width(), 3),
                 dout = random_vector(c.queries * c.width(), 4);
    const DroppedRun bf16 = attend_dropped(c, rows, q, k, v, dout, 1);
    c.arithmetic = Arithmetic::kFp32;
    const DroppedRun fp32 = attend_dropped(c, rows, q, k, v, dout, 1);
    for (const auto& [a, b] : {std::pair(&bf16.dq, &fp32.dq), std::pair(&bf16.dk, &fp32.dk),
                               std::pair(&bf16.dv, &fp32.dv)}) {
      double difference = 0, size = 0;
      for (std::size_t i = 0; i < a->size(); ++i) {
        difference = std::max<double>(difference, std::abs((*a)[i] - (*b)[i]));
        size = std::max<double>(size, std::abs((*b)[i]));
      }
      CHECK(difference < 3e-2 * size);
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests
