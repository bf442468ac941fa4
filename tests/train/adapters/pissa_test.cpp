#include "train/adapters/pissa.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/support/test_data.h"
#include "tests/train/adapters/adapter_models.h"
#include "train/adapters/adapter_targets.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/model/initialize.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

std::vector<float> product(const PissaMatrix& matrix, const PrincipalFactors& factors) {
  std::vector<float> none(static_cast<std::size_t>(matrix.in * matrix.out));
  subtract_factors(none, matrix, factors);
  for (float& value : none) value = -value;
  return none;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double farthest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    farthest = std::max(farthest, static_cast<double>(std::abs(a[i] - b[i])));
  return farthest;
}

// Of rank 3, nearly.
std::vector<float> nearly_low_rank(std::int64_t rows, std::int64_t columns) {
  ParameterInfo left{.name = "left", .shape = {rows, 3}, .elements = rows * 3};
  ParameterInfo right{.name = "right", .shape = {3, columns}, .elements = 3 * columns};
  ParameterInfo rest{.name = "rest", .shape = {rows, columns}, .elements = rows * columns};
  std::vector<float> l(static_cast<std::size_t>(left.elements)),
      r(static_cast<std::size_t>(right.elements)), w(static_cast<std::size_t>(rest.elements));
  initialize_parameter(left, 1.0, 1, 0, l);
  initialize_parameter(right, 1.0, 1, 0, r);
  initialize_parameter(rest, 1e-3, 1, 0, w);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      for (std::int64_t k = 0; k < 3; ++k)
        w[static_cast<std::size_t>(row * columns + column)] +=
            l[static_cast<std::size_t>(row * 3 + k)] *
            r[static_cast<std::size_t>(k * columns + column)];
  return w;
}

TEST_CASE("the principal part is what a nearly low-rank matrix consists of, however it is stored") {
  for (const auto& [out, in] : {std::pair(20, 12), std::pair(12, 20)}) {
    const std::vector<float> weight = nearly_low_rank(out, in);
    std::vector<float> turned(weight.size());
    for (int o = 0; o < out; ++o)
      for (int i = 0; i < in; ++i)
        turned[static_cast<std::size_t>(i * out + o)] =
            weight[static_cast<std::size_t>(o * in + i)];
    for (const std::int64_t iterations : {-1, 0, 4}) {
      CAPTURE(iterations);
      PissaMatrix matrix{.module = "m", .rank = 3, .in = in, .out = out, .scale = 2.0};
      const auto factors = principal_factors(weight, matrix, {iterations}).value();
      CHECK(distance(product(matrix, factors), weight) < 0.02);
      // Balanced: A·Aᵀ = Bᵀ·B = S / scale, and no sign is left to chance.
      for (std::int64_t k = 0; k < 3; ++k) {
        double a = 0, b = 0;
        float largest = 0;
        for (std::int64_t i = 0; i < in; ++i) {
          const float value = factors.a[static_cast<std::size_t>(k * in + i)];
          a += static_cast<double>(value) * value;
          if (std::abs(value) > std::abs(largest)) largest = value;
        }
        for (std::int64_t o = 0; o < out; ++o)
          b += std::pow(factors.b[static_cast<std::size_t>(o * 3 + k)], 2);
        CHECK(a == doctest::Approx(b));
        CHECK(largest > 0);
      }
      matrix.transposed = true;
      const auto same = principal_factors(turned, matrix, {iterations}).value();
      CHECK((same.a == factors.a && same.b == factors.b));
    }
  }
}

TEST_CASE("what cannot be decomposed is refused") {
  std::vector<float> weight(12, 1.0f);
  PissaMatrix matrix{.module = "layers.0.q", .rank = 4, .in = 3, .out = 4};
  const auto refused = principal_factors(weight, matrix, {});
  CHECK(refused.status().code() == Code::kInvalidArgument);
  CHECK(refused.status().message().find("rank 4 is above 3") != std::string::npos);
  matrix.rank = 2;
  weight[5] = NAN;
  CHECK(principal_factors(weight, matrix, {}).status().code() == Code::kDataLoss);
  LoraRequest request;
  request.targets = {"q_proj"};
  request.rank = 9;  // of 8 features
  request.pissa = PissaStart{};
  const Status wide = make_adapter_config(tests::small_model(), request).status();
  CHECK(wide.message().find("rank 9 is above 8") != std::string::npos);
  CHECK(wide.context("key") == "pissa_init");
  request.additional_targets = {"nosuch"};
  CHECK(make_adapter_config(tests::small_model(), request).status().context("key") ==
        "additional_target");
}

TEST_CASE("init_lora_weights says which decomposition") {
  CHECK(PissaStart::of("pissa") == PissaStart{-1});
  CHECK(PissaStart::of("pissa_niter_16") == PissaStart{16});
  for (const json::Value& other :
       {json::Value(true), json::Value("gaussian"), json::Value("pissa_niter_"),
        json::Value("pissa_niter_-1"), json::Value("pissa_niter_4x")})
    CHECK_FALSE(PissaStart::of(other));
  CHECK(PissaStart{-1}.init_lora_weights() == json::Value("pissa"));
  CHECK(PissaStart{4}.init_lora_weights() == json::Value("pissa_niter_4"));
}

TEST_CASE("against PEFT's own start of a real model") {
  const auto golden = troupe::tests::test_data("lf_golden/pissa/pissa_init");
  const auto model = troupe::tests::test_data("stories260K/hf");
  if (!golden || !model) return;
  PosixFileSystem files;
  const auto theirs = SafetensorsFile::open(files, *golden + "/adapter_model.safetensors").value();
  const auto base = TensorReader::open_model(files, *model).value();
  int compared = 0;
  for (const StoredTensor& a : theirs.tensors()) {
    const std::string suffix = ".lora_A.weight", prefix = "base_model.model.";
    if (!a.name.ends_with(suffix)) continue;
    const std::string module =
        a.name.substr(prefix.size(), a.name.size() - prefix.size() - suffix.size());
    const StoredTensor& b = *theirs.find(prefix + module + ".lora_B.weight");
    const PissaMatrix matrix{
        .module = module, .rank = a.shape[0], .in = a.shape[1], .out = b.shape[0], .scale = 2.0};
    PrincipalFactors expected{.a = std::vector<float>(static_cast<std::size_t>(a.element_count())),
                              .b = std::vector<float>(static_cast<std::size_t>(b.element_count()))};
    REQUIRE(convert_to_float(a.data, a.dtype, expected.a).ok());
    REQUIRE(convert_to_float(b.data, b.dtype, expected.b).ok());
    std::vector<float> weight(static_cast<std::size_t>(matrix.in * matrix.out));
    REQUIRE(base.read(module + ".weight", 0, weight).ok());
    const auto ours = principal_factors(weight, matrix, {}).value();
    CHECK(distance(product(matrix, ours), product(matrix, expected)) < 5e-5);
    ++compared;
  }
  CHECK(compared == 35);
}

}  // namespace
}  // namespace troupe::train
