// Arguments and results of calls.

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <variant>

#include "runtime/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "troupe/serialize.h"

namespace troupe::tests {
namespace {

enum class Color : std::uint8_t { kRed, kGreen };

struct Point3 {
  float x = 0;
  double y = 0;
  std::int16_t z = 0;
};

// One of every kind that may be an argument.
struct EveryKind {
  bool flag = false;
  Color color = Color::kRed;
  std::uint64_t number = 0;
  std::string text;
  std::vector<double> numbers;
  std::vector<std::string> texts;
  std::deque<Point3> points;
  std::array<std::int32_t, 3> three{};
  std::map<std::string, std::vector<std::int32_t>> lists;
  std::set<std::int32_t> set;
  std::unordered_map<std::int32_t, std::string> table;
  std::optional<Point3> maybe;
  std::variant<std::int32_t, std::string, Point3> one_of;
  std::pair<std::string, bool> pair;
  std::tuple<std::int8_t, double> tuple;
  std::unique_ptr<std::vector<std::string>> owned;
  std::chrono::milliseconds duration{0};
  Status status;
  ActorId id;
};

void run_values(std::span<const std::byte> input) {
  auto read = decode_value<EveryKind>(input);
  if (!read.ok()) {
    TROUPE_CHECK(read.status().code() == Code::kProtocol);
    return;
  }
  const auto again = decode_value<EveryKind>(encode_value(*read));
  TROUPE_CHECK(again.ok(), "{}", again.status().to_string());
}

std::vector<FuzzBytes> value_seeds() {
  std::vector<FuzzBytes> seeds;
  seeds.push_back(encode_value(EveryKind{}));
  EveryKind filled;
  filled.flag = true;
  filled.color = Color::kGreen;
  filled.text = "text";
  filled.numbers = {1, 2.5};
  filled.texts = {"a", "", "bc"};
  filled.points = {{1, 2, 3}, {}};
  filled.lists = {{"a", {1, 2}}, {"b", {}}};
  filled.set = {1, 2, 3};
  filled.table = {{7, "seven"}};
  filled.maybe = Point3{4, 5, 6};
  filled.one_of = std::string("x");
  filled.pair = {"p", true};
  filled.owned = std::make_unique<std::vector<std::string>>(2, "owned");
  filled.status = Status(Code::kNotFound, "nowhere").with("actor", "a");
  seeds.push_back(encode_value(filled));
  return seeds;
}

}  // namespace

constinit const FuzzTarget kActorValuesTarget{"actor_values", "arguments and results of calls",
                                              4096, &run_values, &value_seeds};
}  // namespace troupe::tests
