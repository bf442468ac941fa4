#include "scheduler/policy/resources.h"

#include <doctest/doctest.h>

#include <limits>

using namespace troupe;
using namespace troupe::scheduler;

TEST_CASE("amounts are parsed exactly") {
  CHECK(*parse_amount("CPU", "2") == 20'000);
  CHECK(*parse_amount("CPU", "0.5") == 5'000);
  CHECK(*parse_amount("CPU", "0.0001") == 1);
  CHECK(*parse_amount("CPU", "1.50000") == 15'000);
  CHECK(*parse_amount("memory", "4Gi") == (4LL << 30) * 10'000);
  CHECK(*parse_amount("memory", "4GiB") == (4LL << 30) * 10'000);
  CHECK(*parse_amount("memory", "1.5K") == 15'000'000);
}

TEST_CASE("what is no amount is refused with the reason") {
  for (const char* bad : {"", ".", "-1", "1e3", "0.00001", "4Xi", "99999999999999999", "900Ti5",
                          "9999999T", " 1", "1 "}) {
    const auto result = parse_amount("CPU", bad);
    CHECK_MESSAGE(!result.ok(), bad);
    if (!result.ok()) CHECK(result.status().code() == Code::kInvalidArgument);
  }
}

TEST_CASE("name=amount") {
  const auto pair = parse_resource("tpu.v4=2");
  REQUIRE(pair.ok());
  CHECK(pair->first == "tpu.v4");
  CHECK(pair->second == 20'000);
  for (const char* bad : {"gpu", "=1", "a b=1", "x="}) CHECK_FALSE(parse_resource(bad).ok());
}

TEST_CASE("ten tenths are one") {
  wire::Resources have{{"CPU", 10'000}};
  const wire::Resources tenth{{"CPU", 1'000}};
  for (int i = 0; i < 10; ++i) {
    REQUIRE(fits(tenth, have));
    subtract(have, tenth);
  }
  CHECK_FALSE(fits(tenth, have));
  CHECK(amount_of(have, "CPU") == 0);
  add(have, tenth);
  CHECK(fits(tenth, have));
}

TEST_CASE("amounts that peers make up do not wrap around") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(validate(wire::Resources{{"CPU", kMost}}).code() == Code::kInvalidArgument);
  CHECK(validate(wire::Resources{{"CPU", -1}}).code() == Code::kInvalidArgument);
  constexpr std::int64_t kLarge = std::int64_t{1} << 62;
  REQUIRE(validate(wire::Resources{{"CPU", kLarge}}).ok());
  wire::Resources sum;
  for (int i = 0; i < 5; ++i) add(sum, {{"CPU", kLarge}});
  CHECK_FALSE(fits(sum, {{"CPU", kLarge}}));
  wire::Resources left{{"CPU", -kLarge}};
  for (int i = 0; i < 5; ++i) subtract(left, {{"CPU", kLarge}});
  CHECK(amount_of(left, "CPU") < 0);
  CHECK(format_amount("CPU", std::numeric_limits<std::int64_t>::min()).starts_with("-92233720"));
}

TEST_CASE("amounts are printed as people write them") {
  CHECK(format_amount("CPU", 5'000) == "0.5");
  CHECK(format_amount("CPU", 20'000) == "2");
  CHECK(format_amount("memory", (4LL << 30) * 10'000) == "4 GiB");
  CHECK(format_resources({}) == "nothing");
  CHECK(format_resources({{"CPU", 10'000}, {"GPU", 20'000}}) == "CPU 1, GPU 2");
}
