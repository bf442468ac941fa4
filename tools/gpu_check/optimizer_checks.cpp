// AdamW, sums of squares by tiles and the collectives' tree of sums, against the CPU's.

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/random.h"
#include "runtime/collective/reduce_tree.h"
#include "tools/gpu_check/compared.h"
#include "train/cuda/operators/cuda_optimizer.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/gradient_norm.h"
#include "train/optimizer/random_rounding.h"
#include "train/tensor/convert.h"

namespace troupe::tools::gpu {
namespace {

std::vector<float> numbers(std::int64_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = static_cast<float>(2.0 * random.unit() - 1.0);
  return out;
}

// Elements that differ, and the greatest difference relative to the greatest element.
struct Differences {
  std::int64_t elements = 0;
  double greatest = 0;
};

template <typename T, typename ToDouble>
Differences compare(const std::vector<T>& got, const std::vector<T>& expected, ToDouble number) {
  Differences d;
  double scale = 1e-30;
  for (const T& x : expected) scale = std::max(scale, std::abs(number(x)));
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) == 0) continue;
    ++d.elements;
    const double here = std::abs(number(got[i]) - number(expected[i])) / scale;
    d.greatest = std::max(d.greatest, std::isfinite(here) ? here : 1e30);
  }
  return d;
}

const train::AdamWStep kStep{
    .learning_rate = 1e-3, .weight_decay = 0.1, .step = 3, .gradient_scale = 0.37f};

// One update of a state of type T on both sides; the optimizer's arithmetic has no freedom but how
// a division and a root are rounded.
template <typename T>
Result<Figure> check_adamw(Bench& bench, const train::AdamWStep& step) {
  constexpr bool kBf16 = std::is_same_v<T, std::uint16_t>;
  const std::int64_t count = bench.rehearsal() ? 5000 : 5'000'003, begin = 700;
  const train::ParameterGroups groups = {
      {900, {.decays = true}}, {3000, {}}, {begin + count + 5, {.decays = true}}};
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  std::array<std::vector<T>, 3> states;
  std::array<std::byte*, 3> device{};
  for (std::size_t i = 0; i < states.size(); ++i) {
    std::vector<float> values = numbers(count, i + 1);
    if (i == 2) {
      for (float& x : values) x = x * x;
    }
    states[i].resize(values.size());
    if constexpr (kBf16)
      train::bf16_from_float(values.data(), states[i].data(), count);
    else
      states[i] = values;
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    device[i] = TROUPE_TRY(gpu->take(bytes));
    gpu->operators->upload(states[i].data(), device[i], static_cast<std::size_t>(bytes));
  }
  const std::vector<float> gradients = numbers(count, 9);
  auto* g = reinterpret_cast<float*>(TROUPE_TRY(gpu->take(count * 4)));
  gpu->operators->upload(gradients.data(), g, static_cast<std::size_t>(count) * 4);
  const std::int64_t scratch_bytes = train::CudaOptimizer::scratch_bytes(1);
  std::byte* scratch = TROUPE_TRY(gpu->take(scratch_bytes));
  train::CudaOptimizer optimizer = TROUPE_TRY(train::CudaOptimizer::create(
      *gpu->stream, {scratch, static_cast<std::size_t>(scratch_bytes)}));
  const auto at = [&](std::size_t i) { return reinterpret_cast<T*>(device[i]); };
  TROUPE_RETURN_IF_ERROR(optimizer.update(step, groups, begin, at(0), g, at(1), at(2), count));
  train::adamw_update(step, groups, begin, states[0], gradients, states[1], states[2]);
  double worst = 0;
  std::string text;
  const char* const names[] = {"parameters", "first moments", "second moments"};
  for (std::size_t i = 0; i < states.size(); ++i) {
    std::vector<T> got(states[i].size());
    gpu->operators->download(device[i], got.data(), got.size() * sizeof(T));
    TROUPE_RETURN_IF_ERROR(gpu->operators->failure());
    const Differences d = compare(got, states[i], [](T x) {
      if constexpr (kBf16)
        return static_cast<double>(train::bf16_to_float(x));
      else
        return static_cast<double>(x);
    });
    worst = std::max(worst, d.greatest);
    text +=
        fmt::format("{}{}: {} of {} elements differ", i ? ", " : "", names[i], d.elements, count);
  }
  return Figure{.value = worst,
                .unit = "of the greatest",
                .bar = Figure::Bar::kAtMost,
                .bar_value = bench.exact() ? 0.0 : (kBf16 ? 4e-3 : 2e-7),
                .text = text};
}

Result<Figure> check_tile_sums(Bench& bench) {
  constexpr std::int64_t kTile = 16384;
  const std::int64_t count = (bench.rehearsal() ? 2 : 200) * kTile + 777;
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  std::vector<float> x = numbers(count, 5);
  x[3] = 3e38f;  // its square is no fp32
  const std::size_t nan_at = static_cast<std::size_t>(kTile) + 9;
  x[nan_at] = std::numeric_limits<float>::quiet_NaN();
  auto* on_device = reinterpret_cast<float*>(TROUPE_TRY(gpu->take(count * 4)));
  gpu->operators->upload(x.data(), on_device, x.size() * 4);
  const std::int64_t tiles = (count + kTile - 1) / kTile;
  const std::int64_t scratch_bytes = train::CudaOptimizer::scratch_bytes(tiles);
  std::byte* scratch = TROUPE_TRY(gpu->take(scratch_bytes));
  train::CudaOptimizer optimizer = TROUPE_TRY(train::CudaOptimizer::create(
      *gpu->stream, {scratch, static_cast<std::size_t>(scratch_bytes)}));
  const std::vector<double> sums = TROUPE_TRY(optimizer.tile_sums(on_device, count, kTile));
  const std::vector<double> again = TROUPE_TRY(optimizer.tile_sums(on_device, count, kTile));
  double worst = 0;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const double expected = train::tile_sum_of_squares(std::span(x).subspan(
        index * kTile, static_cast<std::size_t>(std::min(kTile, count - i * kTile))));
    if (std::isfinite(expected) != std::isfinite(sums[index]))
      return error(Code::kInternal, "tile {}: {} instead of {}", i, sums[index], expected);
    if (!std::isfinite(expected)) continue;
    if (sums[index] != again[index])
      return error(Code::kInternal, "tile {}: {} and then {}", i, sums[index], again[index]);
    worst = std::max(worst, std::abs(sums[index] - expected) / expected);
  }
  return Figure{.value = worst,
                .unit = "of the sum",
                .bar = Figure::Bar::kAtMost,
                .bar_value = bench.exact() ? 0.0 : 1e-12,
                .text = fmt::format("{} tiles, one with a NaN, twice the same bits", tiles)};
}

Result<Figure> check_tree_sum(Bench& bench) {
  const std::int64_t count = bench.rehearsal() ? 1000 : 1'000'003;
  std::int64_t differing = 0, sums = 0;
  for (const int type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
    for (const int out_type : {TROUPE_CUDA_F32, TROUPE_CUDA_BF16})
      for (const int parts : {1, 2, 3, 4, 7, 8}) {
        Gpu* gpu = TROUPE_TRY(bench.gpu());
        std::vector<std::vector<float>> values;
        std::vector<const void*> device;
        std::vector<const std::byte*> host;
        for (int i = 0; i < parts; ++i) {
          values.push_back(numbers(count, static_cast<std::uint64_t>(i) + 1));
          std::byte* at = TROUPE_TRY(gpu->take(count * 4));
          if (type == TROUPE_CUDA_BF16) {
            std::vector<std::uint16_t> half(values.back().size());
            train::bf16_from_float(values.back().data(), half.data(), count);
            train::float_from_bf16(half.data(), values.back().data(), count);
            gpu->operators->upload(half.data(), at, half.size() * 2);
          } else {
            gpu->operators->upload(values.back().data(), at, values.back().size() * 4);
          }
          device.push_back(at);
        }
        for (const auto& v : values) host.push_back(reinterpret_cast<const std::byte*>(v.data()));
        std::byte* to = TROUPE_TRY(gpu->take(count * 4));
        TROUPE_RETURN_IF_ERROR(
            gpu->device->status(gpu->table().tree_sum(gpu->stream->get(), device.data(), parts,
                                                      type, to, out_type, count),
                                "tree_sum"));
        std::vector<float> expected(static_cast<std::size_t>(count)), got(expected.size());
        collective::tree_reduce(host, reinterpret_cast<std::byte*>(expected.data()),
                                expected.size(), collective::DataType::kFloat32,
                                collective::ReduceOp::kSum);
        if (out_type == TROUPE_CUDA_BF16) {
          std::vector<std::uint16_t> half(expected.size());
          gpu->operators->download(to, half.data(), half.size() * 2);
          train::float_from_bf16(half.data(), got.data(), count);
          train::round_to_bf16(expected.data(), expected.data(), count);
        } else {
          gpu->operators->download(to, got.data(), got.size() * 4);
        }
        TROUPE_RETURN_IF_ERROR(gpu->operators->failure());
        differing +=
            compare(got, expected, [](float x) { return static_cast<double>(x); }).elements;
        ++sums;
      }
  return Figure{.value = static_cast<double>(differing),
                .unit = "elements that differ",
                .bar = Figure::Bar::kAtMost,
                .bar_value = 0,
                .text = fmt::format("{} sums of {} elements", sums, count)};
}

Result<Figure> check_convert(Bench& bench) {
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  // Every bf16 number, and fp32 numbers beside each: below, at and above the middle to the next.
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; ++high)
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const std::uint32_t bits = high << 16 | low;
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      if (!std::isnan(value)) values.push_back(value);
    }
  const auto count = static_cast<std::int64_t>(values.size());
  std::byte* from = TROUPE_TRY(gpu->take(count * 4));
  std::byte* half = TROUPE_TRY(gpu->take(count * 2));
  std::byte* back = TROUPE_TRY(gpu->take(count * 4));
  gpu->operators->upload(values.data(), from, values.size() * 4);
  const auto convert = [&](const void* a, int a_type, void* b, int b_type) {
    return gpu->device->status(
        gpu->table().convert(gpu->stream->get(), a, a_type, b, b_type, count), "convert");
  };
  TROUPE_RETURN_IF_ERROR(convert(from, TROUPE_CUDA_F32, half, TROUPE_CUDA_BF16));
  TROUPE_RETURN_IF_ERROR(convert(half, TROUPE_CUDA_BF16, back, TROUPE_CUDA_F32));
  std::vector<float> expected(values.size()), got(values.size());
  train::round_to_bf16(values.data(), expected.data(), count);
  // At once, in place.
  auto* values_there = reinterpret_cast<float*>(from);
  TROUPE_RETURN_IF_ERROR(gpu->device->status(
      gpu->table().round_to_bf16(gpu->stream->get(), values_there, values_there, count),
      "round_to_bf16"));
  std::int64_t differing = 0;
  for (const std::byte* rounded : {back, from}) {
    gpu->operators->download(rounded, got.data(), got.size() * 4);
    TROUPE_RETURN_IF_ERROR(gpu->operators->failure());
    differing += compare(got, expected, [](float x) { return static_cast<double>(x); }).elements;
  }
  return Figure{.value = static_cast<double>(differing),
                .unit = "elements that differ",
                .bar = Figure::Bar::kAtMost,
                .bar_value = 0,
                .text = fmt::format("{} numbers, all of bf16 and their neighbours", count)};
}

}  // namespace

void add_optimizer_checks(std::vector<Check>& checks) {
  checks.push_back(
      {"optimizer/convert", "fp32 to bf16 to nearest, ties to even, and back", 0.3, check_convert});
  checks.push_back({"optimizer/adamw f32", "a step of AdamW over flat ranges, state in fp32", 1,
                    [](Bench& bench) { return check_adamw<float>(bench, kStep); }});
  checks.push_back({"optimizer/adamw bf16",
                    "a step of AdamW over flat ranges, state in bf16, rounded to nearest", 1,
                    [](Bench& bench) { return check_adamw<std::uint16_t>(bench, kStep); }});
  checks.push_back({"optimizer/adamw bf16 at random",
                    "the same, rounded up or down by seed, step and element", 1, [](Bench& bench) {
                      train::AdamWStep step = kStep;
                      step.rounding_key = train::rounding_key(42, 3);
                      return check_adamw<std::uint16_t>(bench, step);
                    }});
  checks.push_back({"optimizer/tile sums", "sums of squares by tiles, in double, with a NaN", 1,
                    check_tile_sums});
  checks.push_back(
      {"optimizer/tree sum", "the ranks' sums by the fixed tree, bit by bit", 0.5, check_tree_sum});
}

}  // namespace troupe::tools::gpu
