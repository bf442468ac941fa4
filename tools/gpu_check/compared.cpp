#include "tools/gpu_check/compared.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/random.h"
#include "tools/gpu_check/bf16_operators.h"
#include "train/tensor/convert.h"

namespace troupe::tools::gpu {
namespace {

constexpr std::int64_t kGuardBytes = 256;

// Of each tensor another one: copied from one tensor's guard to another one's it is found, too.
std::byte guard(std::size_t tensor) { return static_cast<std::byte>(0x11 + 37 * tensor); }

std::int64_t kind_bytes(Compared::Kind kind) { return kind == Compared::Kind::kBf16 ? 2 : 4; }

template <typename T>
std::vector<std::byte> raw_bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Elements as numbers, whatever they are.
std::vector<double> numbers(Compared::Kind kind, const std::byte* bytes, std::int64_t count) {
  std::vector<double> out(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::byte* at = bytes + i * kind_bytes(kind);
    double& number = out[static_cast<std::size_t>(i)];
    if (kind == Compared::Kind::kIntegers) {
      std::int32_t value = 0;
      std::memcpy(&value, at, sizeof value);
      number = value;
    } else if (kind == Compared::Kind::kBf16) {
      std::uint16_t value = 0;
      std::memcpy(&value, at, sizeof value);
      number = train::bf16_to_float(value);
    } else {
      float value = 0;
      std::memcpy(&value, at, sizeof value);
      number = value;
    }
  }
  return out;
}

}  // namespace

void* Compared::Side::at(Tensor tensor) const {
  const Data& data = compared_.data_[static_cast<std::size_t>(tensor.index)];
  return device_ ? data.device : const_cast<std::byte*>(data.host.data());
}

Compared::Tensor Compared::add(std::string name, Kind kind, std::int64_t count,
                               std::vector<std::byte> bytes) {
  bytes.resize(bytes.size() + kGuardBytes, guard(data_.size()));
  data_.push_back({std::move(name), kind, count, false, std::move(bytes), nullptr});
  return {static_cast<int>(data_.size()) - 1};
}

Compared::Tensor Compared::random(std::string name, Kind kind, std::int64_t count, float scale) {
  SeededRandom random(data_.size() + 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = static_cast<float>((2.0 * random.unit() - 1.0) * scale);
  if (kind == Kind::kBf16) {
    std::vector<std::uint16_t> rounded(values.size());
    train::bf16_from_float(values.data(), rounded.data(), count);
    return add(std::move(name), kind, count, raw_bytes(rounded));
  }
  if (kind == Kind::kActivation && flavour_ == Flavour::kBf16)
    train::round_to_bf16(values.data(), values.data(), count);
  return add(std::move(name), kind, count, raw_bytes(values));
}

Compared::Tensor Compared::activation(std::string name, std::int64_t count, float scale) {
  return random(std::move(name), Kind::kActivation, count, scale);
}
Compared::Tensor Compared::floats(std::string name, std::int64_t count, float scale) {
  return random(std::move(name), Kind::kFloat, count, scale);
}
Compared::Tensor Compared::floats(std::string name, std::vector<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return add(std::move(name), Kind::kFloat, count, raw_bytes(values));
}
Compared::Tensor Compared::bf16(std::string name, std::int64_t count, float scale) {
  return random(std::move(name), Kind::kBf16, count, scale);
}
Compared::Tensor Compared::integers(std::string name, std::vector<std::int32_t> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return add(std::move(name), Kind::kIntegers, count, raw_bytes(values));
}
void Compared::ignore(Tensor tensor) {
  data_[static_cast<std::size_t>(tensor.index)].ignored = true;
}

Compared::Difference Compared::compare(const Data& data, const std::vector<std::byte>& got,
                                       const Tolerances& tolerances) const {
  const auto body = static_cast<std::size_t>(data.count * kind_bytes(data.kind));
  if (!std::equal(got.begin() + static_cast<std::ptrdiff_t>(body), got.end(),
                  data.host.begin() + static_cast<std::ptrdiff_t>(body)))
    return {std::numeric_limits<double>::infinity(), data.name + ": written beyond its end"};
  if (data.ignored) return {};
  std::vector<double> expected = numbers(data.kind, data.host.data(), data.count);
  const std::vector<double> found = numbers(data.kind, got.data(), data.count);
  const bool rounded =
      data.kind == Kind::kBf16 || (data.kind == Kind::kActivation && flavour_ == Flavour::kBf16);
  if (rounded) {
    for (double& x : expected)
      x = train::bf16_to_float(train::float_to_bf16(static_cast<float>(x)));
  }
  double greatest = tolerances.least, difference = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isfinite(expected[i])) greatest = std::max(greatest, std::abs(expected[i]));
    if (expected[i] == found[i]) continue;
    const double here = std::isfinite(expected[i]) && std::isfinite(found[i])
                            ? std::abs(expected[i] - found[i])
                            : std::numeric_limits<double>::infinity();
    if (here > difference) difference = here, at = i;
  }
  if (difference == 0) return {};
  const double tolerance = exact_ ? 0.0
                                  : (data.kind == Kind::kIntegers ? 0.0
                                     : rounded                    ? tolerances.bf16
                                                                  : tolerances.f32);
  const double relative = difference / greatest;
  return {tolerance > 0 ? relative / tolerance : std::numeric_limits<double>::infinity(),
          fmt::format("{}: {:.2g} of its greatest (tolerance {:.2g}), element {}: {:.9g} instead "
                      "of {:.9g}",
                      data.name, relative, tolerance, at, found[at], expected[at])};
}

Result<Compared::Difference> Compared::run(const Call& call, const Tolerances& tolerances) {
  if (flavour_ == Flavour::kF32) return run_on(*gpu_.operators, call, tolerances);
  Bf16Operators operators(gpu_);
  return run_on(operators, call, tolerances);
}

Result<Compared::Difference> Compared::run_on(train::Operators& device, const Call& call,
                                              const Tolerances& tolerances) {
  for (Data& data : data_) {
    data.device = TROUPE_TRY(gpu_.take(static_cast<std::int64_t>(data.host.size())));
    gpu_.operators->upload(data.host.data(), data.device, data.host.size());
  }
  call(device, Side(*this, true));
  TROUPE_RETURN_IF_ERROR(device.failure());
  call(*gpu_.host, Side(*this, false));
  Difference worst;
  for (const Data& data : data_) {
    std::vector<std::byte> got(data.host.size());
    gpu_.operators->download(data.device, got.data(), got.size());
    TROUPE_RETURN_IF_ERROR(gpu_.operators->failure());
    Difference difference = compare(data, got, tolerances);
    if (difference.share > worst.share) worst = std::move(difference);
  }
  return worst;
}

void WorstDifference::add(const Compared::Difference& difference, const std::string& what) {
  ++cases_;
  if (difference.share > worst_.share)
    worst_ = {difference.share, fmt::format("{} with {}", difference.text, what)};
}

Figure WorstDifference::figure() const {
  return {.value = worst_.share,
          .unit = "of the tolerance",
          .bar = Figure::Bar::kAtMost,
          .bar_value = 1.0,
          .text = fmt::format("{} cases; {}", cases_,
                              worst_.text.empty() ? "no difference" : "worst " + worst_.text)};
}

}  // namespace troupe::tools::gpu
