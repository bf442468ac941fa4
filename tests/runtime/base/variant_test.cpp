#include "runtime/base/variant.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace troupe {
namespace {

// How many there are, and what was done with them.
struct Counted {
  static inline int alive = 0;
  static inline int copies = 0;
  int number = 0;
  explicit Counted(int n) : number(n) { ++alive; }
  Counted(const Counted& other) : number(other.number) { ++alive, ++copies; }
  Counted(Counted&& other) noexcept : number(std::exchange(other.number, -1)) { ++alive; }
  Counted& operator=(const Counted&) = delete;  // a variant makes anew
  ~Counted() { --alive; }
  friend bool operator==(const Counted& a, const Counted& b) { return a.number == b.number; }
};
struct Nothing {
  friend bool operator==(const Nothing&, const Nothing&) = default;
};
struct Text {
  std::string text;
  friend bool operator==(const Text&, const Text&) = default;
};

struct Things : Alternatives<Nothing, Text, Counted> {};
using Thing = Variant<Things>;

const std::string kLong = "longer than what a string keeps within itself";

TEST_CASE("a variant is its first alternative, and then what it was given") {
  Thing thing;
  CHECK(holds_alternative<Nothing>(thing));
  CHECK(thing.index() == 0);
  thing = Text{kLong};
  CHECK(thing.index() == 1);
  REQUIRE(get_if<Text>(&thing) != nullptr);
  CHECK(get_if<Text>(&thing)->text == kLong);
  CHECK(get_if<Counted>(&thing) == nullptr);
  get<Text>(thing).text += "!";
  CHECK(get<Text>(std::as_const(thing)).text == kLong + "!");
  CHECK_THROWS_AS(static_cast<void>(get<Nothing>(thing)), std::bad_variant_access);
  CHECK(get<Text>(std::move(thing)).text == kLong + "!");
  static_assert(std::variant_size_v<Thing> == 3);
  static_assert(std::is_same_v<std::variant_alternative_t<2, Thing>, Counted>);
  // Nothing but an alternative becomes one.
  static_assert(!std::is_constructible_v<Thing, int>);
  static_assert(!std::is_constructible_v<Thing, const char*>);
}

TEST_CASE("what a variant holds is copied, moved and destroyed with it") {
  Counted::copies = 0;
  {
    Thing one = Counted(1);
    Thing other = one;
    CHECK(Counted::alive == 2);
    CHECK(Counted::copies == 1);
    CHECK(get<Counted>(other).number == 1);
    const Thing moved = std::move(one);
    CHECK(get<Counted>(moved).number == 1);
    CHECK(get<Counted>(one).number == -1);  // still there, and moved from
    other = Text{kLong};
    CHECK(Counted::alive == 2);
    other = moved;
    CHECK(Counted::copies == 2);
    CHECK(get<Counted>(other).number == 1);
    Thing& same = other;
    other = same;
    other = std::move(same);
    CHECK(get<Counted>(other).number == 1);
    std::vector<Thing> many(5, other);
    many.insert(many.begin(), Nothing{});
    many.push_back(Counted(7));
    CHECK(get<Counted>(many.back()).number == 7);
    CHECK(Counted::alive == 9);
  }
  CHECK(Counted::alive == 0);
}

TEST_CASE("a visitor sees the alternative itself") {
  Thing thing = Text{"a"};
  visit(
      []<typename T>(T& alternative) {
        if constexpr (std::is_same_v<T, Text>) alternative.text += "b";
      },
      thing);
  const auto size = [](const auto& alternative) { return sizeof alternative; };
  CHECK(visit(size, std::as_const(thing)) == sizeof(Text));
  CHECK(visit(size, Thing()) == sizeof(Nothing));
  CHECK(get<Text>(thing).text == "ab");
}

TEST_CASE("variants are equal where the same alternative is, with the same value") {
  CHECK(Thing() == Thing(Nothing{}));
  CHECK(Thing(Text{"a"}) == Thing(Text{"a"}));
  CHECK_FALSE(Thing(Text{"a"}) == Thing(Text{"b"}));
  CHECK_FALSE(Thing(Text{""}) == Thing());
  CHECK(Thing(Counted(3)) == Thing(Counted(3)));
}

}  // namespace
}  // namespace troupe
