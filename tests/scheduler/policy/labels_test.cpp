#include "scheduler/policy/labels.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::scheduler;

namespace {

bool holds(const std::string& condition, const Labels& labels) {
  const auto term = parse_label_term("zone", condition);
  REQUIRE_MESSAGE(term.ok(), condition);
  return matches(*term, labels);
}

}  // namespace

TEST_CASE("conditions as Ray writes them") {
  const Labels a{{"zone", "a"}};
  const Labels none;
  CHECK(holds("a", a));
  CHECK_FALSE(holds("b", a));
  CHECK_FALSE(holds("a", none));
  CHECK_FALSE(holds("!a", a));
  CHECK(holds("!b", a));
  CHECK(holds("!a", none));
  CHECK(holds("in(a,b)", a));
  CHECK(holds("in(b, a)", a));
  CHECK_FALSE(holds("in(b,c)", a));
  CHECK_FALSE(holds("!in(a,b)", a));
  CHECK(holds("!in(a,b)", none));
  CHECK(holds("exists()", a));
  CHECK_FALSE(holds("exists()", none));
  CHECK(holds("!exists()", none));
}

TEST_CASE("what is no condition is refused with the label and the forms") {
  for (const char* bad : {"", "!", "in()", "in(a", "in(a,)", "in(a,!b)", "!!a", "a,b", "(a)"}) {
    const auto term = parse_label_term("zone", bad);
    REQUIRE_MESSAGE(!term.ok(), bad);
    CHECK(term.status().code() == Code::kInvalidArgument);
    CHECK(term.status().message().find("'zone'") != std::string::npos);
  }
  CHECK_FALSE(parse_label_term("", "a").ok());
}

TEST_CASE("all conditions of a selector hold") {
  const auto selector = parse_label_selector({{"zone", "a"}, {"disk", "!hdd"}});
  REQUIRE(selector.ok());
  CHECK(matches(*selector, {{"zone", "a"}}));
  CHECK(matches(*selector, {{"zone", "a"}, {"disk", "ssd"}}));
  CHECK_FALSE(matches(*selector, {{"zone", "a"}, {"disk", "hdd"}}));
  CHECK(matches(wire::LabelSelector(), Labels()));
  CHECK(format_selector(*selector) == "disk!=hdd, zone=a");
}

TEST_CASE("selectors and labels have limits") {
  wire::LabelSelector many(33, wire::LabelTerm{"a", false, {"b"}});
  CHECK(validate(many).code() == Code::kInvalidArgument);
  CHECK(validate(wire::LabelSelector{{"", false, {"b"}}}).code() == Code::kInvalidArgument);
  CHECK(validate(wire::LabelSelector{{"a", false, std::vector<std::string>(1'025, "b")}}).code() ==
        Code::kInvalidArgument);
  Labels labels;
  for (int i = 0; i < 257; ++i) labels[std::to_string(i)] = "x";
  CHECK(check_labels(labels).code() == Code::kInvalidArgument);
  CHECK(check_labels({{"", "x"}}).code() == Code::kInvalidArgument);
}
