#include "runtime/base/text.h"

#include <doctest/doctest.h>

namespace troupe::text_tests {
namespace {

TEST_CASE("an integer is the whole text, and fits its type") {
  CHECK(parse_integer<int>("42") == 42);
  CHECK(parse_integer<int>("-1") == -1);
  CHECK(parse_integer<std::int64_t>("9223372036854775807") == INT64_MAX);
  for (const char* text : {"", "-", "+1", " 1", "1 ", "1x", "0x1", "1.0", "2147483648"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_integer<int>(text));
  }
  CHECK_FALSE(parse_integer<std::uint16_t>("65536"));
  CHECK_FALSE(parse_integer<std::uint16_t>("-1"));
  CHECK_FALSE(parse_integer<std::int64_t>("9223372036854775808"));
}

TEST_CASE("letters of one case") {
  CHECK(lower_case("NO_shard 2 [Z]@`{") == "no_shard 2 [z]@`{");
  CHECK(upper_case("bf16-az@`{Ä") == "BF16-AZ@`{Ä");
}

}  // namespace
}  // namespace troupe::text_tests
