// The targets without libFuzzer: their seeds, cut and damaged, on every machine and compiler.

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "runtime/base/random.h"
#include "tests/fuzz/fuzz_target.h"

namespace troupe::tests {
namespace {

constexpr int kDamagedInputs = 400;
constexpr int kCutsMax = 100;

std::size_t any_place(Random& random, const FuzzBytes& bytes) {
  return bytes.empty() ? 0 : random.below(bytes.size());
}

// Places and lengths as good fuzzers choose them: bits, special numbers, pieces moved about.
void damage(Random& random, const std::vector<FuzzBytes>& seeds, FuzzBytes& bytes) {
  constexpr std::uint8_t kSpecial[] = {0, 1, 0x7f, 0x80, 0xfe, 0xff};
  const std::size_t at = any_place(random, bytes);
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  const std::size_t count =
      std::min<std::size_t>(bytes.size() - at, 1 + random.below(random.below(4) == 0 ? 200 : 8));
  switch (random.below(6)) {
    case 0:
      if (!bytes.empty()) bytes[at] ^= static_cast<std::byte>(1u << random.below(8));
      break;
    case 1:
      std::fill_n(begin, count, static_cast<std::byte>(kSpecial[random.below(6)]));
      break;
    case 2:
      bytes.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
      break;
    case 3: {
      const FuzzBytes piece(begin, begin + static_cast<std::ptrdiff_t>(count));
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(any_place(random, bytes)),
                   piece.begin(), piece.end());
      break;
    }
    case 4: {
      FuzzBytes noise(1 + random.below(16));
      random.fill(noise);
      bytes.insert(begin, noise.begin(), noise.end());
      break;
    }
    default: {
      const FuzzBytes& other = seeds[random.below(seeds.size())];
      const auto from = static_cast<std::ptrdiff_t>(any_place(random, other));
      bytes.resize(at);
      bytes.insert(bytes.end(), other.begin() + from, other.end());
    }
  }
}

void take_all(const FuzzTarget& target) {
  const auto seeds = target.seeds();
  REQUIRE(!seeds.empty());
  target.run({});
  for (const FuzzBytes& seed : seeds) {
    target.run(seed);
    const std::size_t step = 1 + seed.size() * seeds.size() / kCutsMax;
    for (std::size_t size = 0; size < seed.size(); size += step) {
      target.run(std::span(seed).first(size));
    }
  }
  SeededRandom random(1);
  for (int round = 0; round < kDamagedInputs; ++round) {
    FuzzBytes input = seeds[random.below(seeds.size())];
    for (std::uint64_t times = 1 + random.below(4); times > 0; --times) {
      damage(random, seeds, input);
    }
    if (input.size() > target.bytes_max) input.resize(target.bytes_max);
    target.run(input);
  }
}

TEST_CASE("every target takes its seeds, whole, cut and damaged") {
  for (const FuzzTarget& target : fuzz_targets()) {
    // A name that ends in a zero: it is a literal.
    SUBCASE(target.name.data()) { take_all(target); }
  }
}

TEST_CASE("targets have names of their own, in order, and seeds that fit") {
  std::set<std::string> names;
  std::string before;
  for (const FuzzTarget& target : fuzz_targets()) {
    const std::string name(target.name);
    CHECK(before < name);
    CHECK(names.insert(name).second);
    CHECK(find_fuzz_target(name) == &target);
    before = name;
    for (const FuzzBytes& seed : target.seeds()) CHECK(seed.size() > 0);
  }
  CHECK(find_fuzz_target("none") == nullptr);
}

}  // namespace
}  // namespace troupe::tests
