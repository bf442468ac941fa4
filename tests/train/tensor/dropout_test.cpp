#include "train/tensor/dropout.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>

namespace troupe::train::tests {
namespace {

TEST_CASE("Philox4x32-10 gives the words of its authors' reference") {
  // kat_vectors of Random123.
  const auto words = [](std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
    const PhiloxWords w =
        philox4x32_10(key[0], key[1], counter[0], counter[1], counter[2], counter[3]);
    return std::array{w.word[0], w.word[1], w.word[2], w.word[3]};
  };
  constexpr std::uint32_t kOnes = 0xffffffffu;
  CHECK(words({0, 0, 0, 0}, {0, 0}) ==
        std::array{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(words({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
        std::array{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(words({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}) ==
        std::array{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("a probability becomes a threshold, and what stays keeps the expected value") {
  CHECK(!dropout_of(0.0));
  CHECK(!dropout_of(1e-7));
  for (const double p : {0.1, 0.25, 0.5, 0.9, 0.9999999}) {
    const Dropout dropout = dropout_of(p);
    CHECK(dropout.threshold == doctest::Approx(p * 65536).epsilon(1e-4));
    CHECK(dropout.scale * (65536.0 - dropout.threshold) == doctest::Approx(65536.0).epsilon(1e-6));
  }
  CHECK(dropout_of(0.5).scale == 2.0f);
}

// Bits of a row's first 4,096 columns.
std::array<std::uint32_t, 512> row_of(std::uint32_t seed, std::uint32_t epoch, std::uint32_t site,
                                      std::uint32_t sample, std::uint32_t token) {
  const std::uint32_t threshold = dropout_of(0.3).threshold;
  std::array<std::uint32_t, 512> row{};
  for (std::uint32_t group = 0; group < row.size(); ++group)
    row[group] = dropout_kept(dropout_words(seed, epoch, site, sample, token, group), threshold);
  return row;
}

TEST_CASE("masks keep their share, and no two places have anything in common") {
  const std::uint32_t layer = dropout_site(DropoutPlace::kMlpOutput, 3);
  const auto row = row_of(42, 0, layer, 7, 100);
  const std::array others = {row_of(43, 0, layer, 7, 100),
                             row_of(42, 1, layer, 7, 100),
                             row_of(42, 0, layer, 8, 100),
                             row_of(42, 0, layer, 7, 101),
                             row_of(42, 0, dropout_site(DropoutPlace::kMlpOutput, 4), 7, 100),
                             row_of(42, 0, dropout_site(DropoutPlace::kAttentionOutput, 3), 7, 100),
                             row_of(42, 0, dropout_site(DropoutPlace::kAttention, 3, 0), 7, 100),
                             row_of(42, 0, dropout_site(DropoutPlace::kAttention, 3, 1), 7, 100)};
  const auto share = [](const auto& a, const auto& b) {
    int kept = 0;
    for (std::size_t i = 0; i < a.size(); ++i) kept += std::popcount(a[i] & b[i]);
    return kept / 4096.0;
  };
  // Four standard deviations of the mean of 4,096.
  const double much = 4 * std::sqrt(0.3 * 0.7 / 4096);
  CHECK(std::abs(share(row, row) - 0.7) < much);
  for (const auto& other : others) {
    CHECK(std::abs(share(other, other) - 0.7) < much);
    CHECK(std::abs(share(row, other) - 0.49) < much);
  }
  // Neighbours in a row.
  auto shifted = row;
  for (auto& bits : shifted) bits = (bits >> 1 | bits << 7) & 0xffu;
  CHECK(std::abs(share(row, shifted) - 0.49) < much);
}

TEST_CASE("a column's bits are those of its group, in memory's order") {
  const PhiloxWords words = dropout_words(1, 2, 3, 4, 5, 6);
  for (std::uint32_t i = 0; i < kDropoutColumns; ++i) {
    const std::uint32_t bits = dropout_bits(words, 8 * 6 + i);
    CHECK(bits == (words.word[i / 2] >> (i % 2 * 16) & 0xffffu));
    CHECK((dropout_kept(words, bits) >> i & 1) == 1);
    CHECK((dropout_kept(words, bits + 1) >> i & 1) == 0);
  }
}

}  // namespace
}  // namespace troupe::train::tests
