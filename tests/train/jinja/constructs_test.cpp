// Constructs one by one, beside what jinja2 3.1.6 made of them: constructs.json, which
// tools/golden/make_jinja_constructs.py writes.

#include <doctest/doctest.h>

#include "runtime/base/file_system.h"
#include "tests/support/test_data.h"
#include "tests/train/jinja/support.h"

namespace troupe::train::jinja {
namespace {

TEST_CASE("constructs: texts as jinja2 makes them, errors of its classes") {
  PosixFileSystem files;
  const auto path = tests::source_dir() + "/tests/train/jinja/constructs.json";
  const auto root = json::parse(*files.read(path, 1 << 20), "constructs.json").value();
  for (const auto& one : root.at("constructs").as_array()) {
    const auto source = json::find_string(one, "template").value();
    CAPTURE(source);
    const auto out = rendered(source, root.at("context").as_object());
    if (const auto expected = json::find_string(one, "out")) {
      CHECK(out == *expected);
    } else {
      const auto error = json::find_string(one, "error").value();
      CHECK_MESSAGE(out.substr(0, out.find(':')) == error.substr(0, error.find(':')), error, out);
    }
  }
}

TEST_CASE("an error names its line") {
  const auto line_of = [](const char* source) {
    const auto parsed = Template::parse(source);
    const Status status = parsed ? parsed->render({}).status() : parsed.status();
    return std::string(status.context("line").value_or("none"));
  };
  CHECK(line_of("a\nb {{ x.y }}") == "2");
  CHECK(line_of("{% if true %}\n\n{{ 1 + }}{% endif %}") == "3");
  CHECK(line_of("a\n{% for x in [1] %}\n{{ raise_exception('no') }}{% endfor %}") == "3");
  CHECK(line_of("\n{{ 'open }}") == "2");
}

TEST_CASE("generation: the characters it covered, in whatever stands around it") {
  const auto ranges_of = [](const char* source) {
    const auto out = Template::parse(source).value().render({}).value();
    std::string text;
    for (const auto& [begin, end] : out.generation) text += fmt::format("{}-{} ", begin, end);
    return text;
  };
  CHECK(ranges_of("ü{% generation %}öa{% endgeneration %}x"
                  "{% for i in [1, 2] %}-{% generation %}{{ i }}{% endgeneration %}{% endfor %}") ==
        "1-3 5-6 7-8 ");
  CHECK(ranges_of("no") == "");
}

}  // namespace
}  // namespace troupe::train::jinja
