// What jinja2 itself makes of the same templates, in transformers' environment.

#include <doctest/doctest.h>

#include <map>
#include <sstream>

#include "runtime/base/file_system.h"
#include "tests/support/command.h"
#include "tests/support/test_data.h"
#include "tests/train/jinja/support.h"

namespace troupe::train::jinja {
namespace {

std::string unpacked(const std::string& path) {
  const auto out = tests::run_command({"gzip", "-dc", path});
  REQUIRE(out.exit_code == 0);
  return out.out;
}

std::string class_of(std::string_view error) {
  return std::string(error.substr(0, error.find(':')));
}

// The words are those of jinja2, too, but for a few.
void check_same(const json::Value& expected, const std::string& found, int& words_differ) {
  if (const auto out = json::find_string(expected, "out")) {
    CHECK(found == *out);
    return;
  }
  const auto error = json::find_string(expected, "error").value();
  CHECK(class_of(found) == class_of(error));
  words_differ += found != error;
}

TEST_CASE("constructs render as in jinja2") {
  const auto path = tests::test_data("lf_data_golden/jinja_constructs.json");
  if (!path) return;
  PosixFileSystem files;
  const auto all = json::parse(*files.read(*path, 1 << 20), "constructs").value();
  int words_differ = 0;
  for (const auto& one : all.as_array()) {
    const auto source = json::find_string(one, "template").value();
    CAPTURE(source);
    check_same(one, rendered(source, one.at("context").as_object()), words_differ);
  }
  CHECK(all.as_array().size() == 104);
  CHECK(words_differ <= 12);
}

TEST_CASE("real chat templates render all conversations as in jinja2") {
  const auto folder = tests::test_data("lf_data_golden");
  if (!folder) return;
  PosixFileSystem files;
  const json::ParseOptions large{.bytes_max = 64 << 20};
  std::map<std::string, Result<Template>> templates;
  const auto sources =
      json::parse(unpacked(*folder + "/jinja_templates.json.gz"), "templates", large).value();
  for (const auto& one : sources.as_array()) {
    const auto name = json::find_string(one, "name").value();
    templates.emplace(name, Template::parse(json::find_string(one, "text").value()));
  }
  const auto conversations =
      json::parse(*files.read(*folder + "/inputs/jinja_conversations.json", 1 << 20), "c").value();
  std::istringstream lines(unpacked(*folder + "/jinja_outputs.jsonl.gz"));
  int count = 0, words_differ = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto expected = json::parse(line, "output", large).value();
    const auto name = json::find_string(expected, "template").value();
    const auto conversation = json::find_string(expected, "conv").value();
    CAPTURE(name);
    CAPTURE(conversation);
    json::Object context = conversations.at(conversation).as_object();
    context.emplace("tools", nullptr);
    context.emplace("documents", nullptr);
    context["add_generation_prompt"] = expected.at("add_generation_prompt");
    for (const auto& [token, word] : {std::pair("bos_token", "<s>"),
                                      {"eos_token", "</s>"},
                                      {"pad_token", "<pad>"},
                                      {"unk_token", "<unk>"}})
      context.emplace(token, word);
    const auto& chat = templates.at(name);
    const auto out = chat ? chat->render(context, fixed_clock()) : Result<Rendered>(chat.status());
    check_same(expected, out ? out->text : error_text(out.status()), words_differ);
    const auto* ranges = json::find(expected, "generation");
    if (ranges == nullptr || !out) continue;
    json::Array found;
    for (const auto& range : out->generation) found.push_back(json::Array{range.begin, range.end});
    CHECK(json::write(found) == json::write(*ranges));
  }
  CHECK(count == 2944);
  CHECK(words_differ <= 40);
}

}  // namespace
}  // namespace troupe::train::jinja
