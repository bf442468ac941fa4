#include "runtime/base/huge_pages.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

namespace troupe {
namespace {

TEST_CASE("buffers are aligned to what they are made of, and can be written from end to end") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, kHugePageBytes,
                                  2 * kHugePageBytes + 1}) {
    CAPTURE(bytes);
    const HugeBytes buffer(allocate_huge(bytes));
    REQUIRE(buffer);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.get());
    CHECK(address % (bytes >= kHugePageBytes ? kHugePageBytes : 4096) == 0);
    for (std::size_t at = 0; at < bytes; at += 4096) buffer.get()[at] = std::byte{1};
    if (bytes > 0) buffer.get()[bytes - 1] = std::byte{2};
  }
}

TEST_CASE("a vector keeps its elements as it grows, and what is too large throws") {
  HugeVector<float> values;
  for (int i = 0; i < (1 << 20); ++i) values.push_back(static_cast<float>(i));
  CHECK(values.front() == 0);
  CHECK(values.back() == (1 << 20) - 1);
  CHECK_THROWS_AS(HugeAllocator<double>().allocate(std::numeric_limits<std::size_t>::max() / 4),
                  std::bad_array_new_length);
}

}  // namespace
}  // namespace troupe
