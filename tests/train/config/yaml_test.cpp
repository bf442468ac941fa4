#include "train/config/yaml.h"
#include "tests/support/text.h"

#include <doctest/doctest.h>

#include "train/config/source.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;

std::string parsed(std::string_view text) {
  const auto value = parse_yaml(text, "x.yaml");
  REQUIRE_MESSAGE(value.ok(), value.status().to_string());
  return json::write(*value);
}

std::string refused_yaml(std::string_view text) {
  const auto value = parse_yaml(text, "x.yaml");
  REQUIRE_FALSE(value.ok());
  CHECK(value.status().code() == Code::kInvalidArgument);
  return value.status().message();
}

TEST_CASE("scalars have the types that PyYAML gives, and 1e-4 is a number") {
  CHECK(parsed("a: 8") == R"({"a":8})");
  CHECK(parsed("a: -1") == R"({"a":-1})");
  CHECK(parsed("a: 1_000") == R"({"a":1000})");
  CHECK(parsed("a: 0x10") == R"({"a":16})");
  CHECK(parsed("a: 010") == R"({"a":8})");
  CHECK(parse_yaml("1e-4", "x")->as_double() == 1e-4);
  CHECK(parse_yaml("1.0e-4", "x")->as_double() == 1e-4);
  CHECK(parse_yaml("5e8", "x")->as_double() == 5e8);
  CHECK(parse_yaml(".5", "x")->as_double() == 0.5);
  CHECK(parsed("[yes, no, On, OFF, true, False]") == "[true,false,true,false,true,false]");
  CHECK(parsed("[~, null, , Null]") == "[null,null,null,null]");
  CHECK(parsed("a:") == R"({"a":null})");
  CHECK(parsed("[\"8\", '1e-4', 'no']") == R"(["8","1e-4","no"])");
  CHECK(parsed("[1.2.3, 1:30, e5, 0.1.2, 08:00, +, -, 1_, _1, 1e, 0x]") ==
        R"(["1.2.3","1:30","e5","0.1.2","08:00","+","-","1_","_1","1e","0x"])");
  CHECK(parsed("a: 99999999999999999999")[0] == '{');
  CHECK(parsed("") == "null");
  CHECK(parsed("# only a comment\n") == "null");
  CHECK(parsed("a: !!str 8") == R"({"a":"8"})");
}

TEST_CASE("anchors, aliases and merge keys") {
  CHECK(parsed("a: &x [1, 2]\nb: *x\n") == R"({"a":[1,2],"b":[1,2]})");
  CHECK(parsed("base: &b {x: 1, y: 2}\nc:\n  <<: *b\n  y: 3\n") ==
        R"({"base":{"x":1,"y":2},"c":{"y":3,"x":1}})");
}

TEST_CASE("what is broken is named with its line and column") {
  CHECK(contains(refused_yaml("a: 1\nb: [1, 2\nc: 3\n"), "x.yaml:3:"));
  CHECK(contains(refused_yaml("a: 1\nb: 2\na: 3\n"), "x.yaml:3:1: the key 'a' stands twice"));
  CHECK(contains(refused_yaml("a: {b: 1, b: 2}"), "the key 'b' stands twice"));
  CHECK(contains(refused_yaml("a:\n\tb: 1\n"), "x.yaml:2:1: a tab in the indentation"));
  CHECK(contains(refused_yaml("? [a]\n: 1\n"), "a key must be a plain word"));
  CHECK(contains(refused_yaml("a: 1\n---\nb: 2\n"), "more than one document"));
  CHECK(contains(refused_yaml("a: 1\nb: \xff\n"), "x.yaml:2:4: the byte 0xff"));
  CHECK(contains(refused_yaml(std::string_view("a: \0b", 5)), "x.yaml:1:4: the byte 0x00"));
  CHECK(contains(refused_yaml("a: *nobody"), "x.yaml:1:4"));
  CHECK(contains(refused_yaml("a: !!python/object:os.system x"), "tag"));
  CHECK(contains(refused_yaml("a: b: c"), "x.yaml:1:5: not valid YAML"));
}

TEST_CASE("tabs inside block texts are no indentation") {
  CHECK(parsed("a: |\n  x\n  \ty\n") == R"({"a":"x\n\ty\n"})");
}

TEST_CASE("hostile texts end quickly in an error") {
  CHECK(contains(refused_yaml(std::string(10'000, '[')), "x.yaml:1:"));
  CHECK(contains(refused_yaml(std::string(10'000, '[') + std::string(10'000, ']')), "x.yaml:1:"));
  CHECK(refused_yaml("a:\n  " + std::string(100, '[') + std::string(100, ']')) ==
        "x.yaml:2:66: nested deeper than 64");
  CHECK(contains(refused_yaml(std::string(1'000'000, '[')), "x.yaml:1:"));
  std::string lines;
  for (int i = 0; i < 100'000; ++i) lines += "[\n";
  CHECK(contains(refused_yaml(lines), "x.yaml:"));
  CHECK(contains(refused_yaml(std::string(100'000, '{')), "x.yaml:1:"));
  std::string block;
  for (int i = 0; i < 500; ++i) block += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  CHECK(contains(refused_yaml(block), "nested deeper than 64"));
  std::string dashes;
  for (int i = 0; i < 5000; ++i) dashes += "- ";
  CHECK(contains(refused_yaml(dashes), "nested deeper than 64"));
  CHECK(contains(refused_yaml(std::string(10u << 20, 'x')), "the limit is 1048576"));
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k ? ", *a" : "*a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  CHECK(contains(refused_yaml(bomb), "more than 50000 values"));
  CHECK(contains(refused_yaml("a: &a [*a]"), "inside its own anchor"));
  std::string deep = "a0: &a0 [x]\n";
  for (int i = 1; i < 100; ++i) {
    deep += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) +
            "]\n";
  }
  CHECK(contains(refused_yaml(deep), "nested deeper than 64"));
}

TEST_CASE("documents know the line of every key, in YAML and in JSON") {
  const auto yaml = parse_document("a: 1\nb:\n  c: 2\n  d: {e: 3}\n", "x.yaml");
  REQUIRE(yaml.ok());
  CHECK(yaml->origin_of("a").line == 1);
  CHECK(yaml->origin_of("b.c").to_string() == "x.yaml:3");
  CHECK(yaml->origin_of("b.d.e").column == 7);
  CHECK(yaml->origin_of("b.unknown").line == 2);
  CHECK(yaml->origin_of("zzz").kind == OriginKind::kDefault);

  const auto file = parse_document(
      "{\n\t\"a\": 1,\n\t\"b\": {\"c\\u0041\": [{\"x\": 1}],\n \"d\": \"a:1\"}\n}", "x.json");
  REQUIRE(file.ok());
  CHECK(file->origin_of("a").to_string() == "x.json:2");
  CHECK(file->origin_of("b.cA").line == 3);
  CHECK(file->origin_of("b.d").line == 4);
  CHECK(file->origins.size() == 4);

  const auto broken = parse_document("{\"a\": 1,\n \"b\" 2}", "x.json");
  REQUIRE_FALSE(broken.ok());
  CHECK(contains(broken.status().message(), "x.json:2:"));
  CHECK_FALSE(parse_document("{\"a\": 1, \"a\": 2}", "x.json").ok());
  CHECK_FALSE(parse_document("- a\n- b\n", "x.yaml").ok());
  CHECK_FALSE(parse_document("just words", "x.yaml").ok());
}

}  // namespace
}  // namespace troupe::train
