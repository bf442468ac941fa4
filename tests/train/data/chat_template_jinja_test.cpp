// Where the Jinja texts of the built-in templates go; what they are: template_golden_test.cpp.

#include <doctest/doctest.h>

#include "tests/train/data/support.h"

namespace troupe::train {
namespace {

TEST_CASE(
    "a data set's tokenizer carries its template's Jinja text, unless it has one of its own") {
  DataFolder folder;
  folder.write("dataset_info.json", R"({"a": {"file_name": "a.json"}})");
  folder.write("a.json", R"([{"instruction": "q", "output": "a"}])");
  const auto jinja_of = [&](const std::string& name, const char* config) {
    auto options = folder.options(DataOptions::Stage::kSupervised, {"a"});
    options.template_name = name;
    const auto module = build_dataset(folder.files, options, byte_tokenizer({"<e>"}, config));
    REQUIRE_MESSAGE(module.ok(), module.status().to_string());
    return module->tokenizer.chat_template().value();
  };
  const char* own = R"({"eos_token": "<e>", "chat_template": "{{ messages }}"})";
  CHECK(jinja_of("empty", own) == "{{ messages }}");
  CHECK(jinja_of("default", own).find("'Human: ' + content") != std::string::npos);
  CHECK(jinja_of("empty", R"({"eos_token": "<e>"})").find("{{ content }}") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train
