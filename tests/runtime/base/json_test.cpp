#include "runtime/base/json.h"

#include <doctest/doctest.h>

namespace troupe::json {
namespace {

TEST_CASE("errors name file, line and column") {
  const auto result = parse("{\n  \"a\": 1,\n  \"b\" 2\n}", "x.json");
  REQUIRE(!result.ok());
  CHECK(result.status().code() == Code::kInvalidArgument);
  CHECK(result.status().message().starts_with("x.json:3:"));
  CHECK(!parse("{\"a\": 1} trailing", "x").ok());
  CHECK(!parse("", "x").ok());
  CHECK(!parse("{\"a\": ", "x").ok());
}

TEST_CASE("depth, size and duplicate keys are bounded") {
  CHECK(!parse(std::string(10'000, '['), "deep").ok());
  CHECK(!parse(std::string(2 << 20, ' ') + "1", "big").ok());
  CHECK(parse(R"({"a":1,"a":2})", "x").ok());
  const auto twice = parse(R"({"b":{"a":1,"a":2}})", "x", {.reject_duplicate_keys = true});
  REQUIRE(!twice.ok());
  CHECK(twice.status().message().find("'a'") != std::string::npos);
  CHECK(parse(R"([{"a":1},{"a":2}])", "x", {.reject_duplicate_keys = true}).ok());
}

TEST_CASE("the first of several values") {
  const std::string first = "{\"a\": [1, \"\xc3\xa9\\u00e9\", -2.5e3, true, null]}";
  const std::string text = first + " {\"b\": 2}";
  std::size_t used = 0;
  CHECK(write(parse_first(text, used, "x").value()) == write(parse(first, "x").value()));
  CHECK(used == first.size());
  // Wherever a text ends in the middle, that is what is said.
  for (std::size_t size = 0; size < first.size(); ++size) {
    CAPTURE(size);
    CHECK(parse_first(first.substr(0, size), used, "x").status().code() == Code::kDataLoss);
  }
  const auto wrong = parse_first("{\"a\":\n !}", used, "x", {.line = 7, .column = 9});
  CHECK(wrong.status().code() == Code::kInvalidArgument);
  CHECK(wrong.status().message().starts_with("x:8:2: "));
  CHECK(parse_first("{!", used, "x", {.line = 7, .column = 9})
            .status()
            .message()
            .starts_with("x:7:"));
  CHECK_FALSE(parse_first(text, used, "x", {.bytes_max = 8}).ok());
  CHECK_FALSE(parse_first(R"({"a":1,"a":2} 3)", used, "x", {.reject_duplicate_keys = true}).ok());
  CHECK_FALSE(parse_first("1e999 ", used, "x").ok());
}

TEST_CASE("a number that no double holds is refused: as infinity it could not be written again") {
  for (const char* text : {"1e400", "-1e400", "[1, {\"a\": 1e309}]"}) {
    CAPTURE(text);
    const auto value = parse(text, "x");
    CHECK(value.status().code() == Code::kInvalidArgument);
    CHECK(value.status().message().find("too large") != std::string::npos);
  }
  // Also behind a key that stands twice, and an empty one may.
  CHECK_FALSE(parse(R"({"a": 1, "a": 2, "b": 1e400})", "x").ok());
  CHECK(parse(R"({"": 1, "": 2})", "x").ok());
  CHECK(parse("1.7976931348623157e308", "x").ok());
}

TEST_CASE("relaxed JSON has comments and trailing commas") {
  const char* text = "{ // note\n \"a\": 1, /* b */ }";
  CHECK(!parse(text, "x").ok());
  CHECK(find_integer(*parse(text, "x", {.relaxed = true}), "a") == 1);
}

TEST_CASE("writes as Python does") {
  CHECK(python_float(1e-5) == "1e-05");
  CHECK(python_float(0.1) == "0.1");
  CHECK(python_float(3) == "3.0");
  CHECK(python_float(5e-5) == "5e-05");
  CHECK(python_float(1e16) == "1e+16");
  CHECK(python_float(123456.789) == "123456.789");
  const auto value = *parse(R"({"b":[1,2.5],"a":{},"c":[]})", "x");
  CHECK(write_indented(value, true) ==
        "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2.5\n  ],\n  \"c\": []\n}");
}

TEST_CASE("text that is not UTF-8 is told as such, with its place") {
  const auto message = [](std::string_view text) {
    return json::parse(text, "rows.json").status().message();
  };
  CHECK(message("{\"a\":\n \"caf\xe9\"}") ==
        "rows.json:2:6: the byte 0xe9 is not part of UTF-8 text, which JSON has to be");
  for (const char* bad : {"\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf5\x80\x80\x80\"",
                          "\"a\xe2\x82\"", "\"\xf0\x80\x80\x80\"", "\"\x80\""}) {
    CHECK(message(bad).find("is not part of UTF-8") != std::string::npos);
  }
  for (const char* good :
       {"\"caf\xc3\xa9\"", "\"\xe2\x82\xac\"", "\"\xf0\x9f\x98\x80\"", "\"\xed\x9f\xbf\""}) {
    CHECK(message(good).empty());
  }
  CHECK(message("{\"a\" 1, \"b\": \"\xe9 far behind the error\"}").find("not valid JSON") !=
        std::string::npos);
}

}  // namespace
}  // namespace troupe::json
