// The Jinja texts of the built-in templates are those that LLaMA-Factory writes.

#include <doctest/doctest.h>

#include "runtime/base/json.h"
#include "tests/train/data/support.h"
#include "train/data/chat_template.h"

namespace troupe::train {
namespace {

TEST_CASE(
    "Jinja texts equal LLaMA-Factory's, for each template and tokenizer that it was made with") {
  const auto golden = tests::test_data("lf_data_golden/templates.json");
  if (!golden) return;
  PosixFileSystem files;
  const auto root = json::parse(*files.read(*golden, 64 << 20), "templates.json").value();
  int compared = 0;
  for (const auto& name : chat_template_names()) {
    const json::Value* told = json::find(root.at("text"), name);
    if (told == nullptr) continue;
    const auto chat = chat_template(name).value();
    for (const auto& [folder, made] : told->at("tokenizers").as_object()) {
      CAPTURE(name);
      const std::string tokenizer_name(folder);
      CAPTURE(tokenizer_name);
      // Some came with a configuration of their own; the golden values' makers wrote that of
      // others.
      const bool complete = !tokenizer_name.starts_with("tok_");
      const auto main =
          tests::test_data(tokenizer_name == "stories260K" ? "stories260K/hf" : tokenizer_name);
      const auto config =
          complete ? main : tests::test_data("lf_data_golden/tokenizers/" + tokenizer_name);
      if (!main || !config) continue;
      auto tokenizer =
          Tokenizer::from_text(*files.read(*main + "/tokenizer.json", 64 << 20),
                               *files.read(*config + "/tokenizer_config.json", 1 << 20), "",
                               tokenizer_name)
              .value();
      std::vector<std::string> notes;
      // Tokens that the vocabulary lacks are refused; LLaMA-Factory adds them.
      if (!fix_special_tokens(chat, tokenizer, notes).ok()) continue;
      const auto expected = json::find_string(made, "chat_template");
      if (!expected) continue;
      CHECK(jinja_template(chat, tokenizer, std::nullopt) == *expected);
      CHECK((json::find_bool(*told, "replace_jinja_template") == chat.replace_jinja));
      ++compared;
    }
  }
  CHECK(compared >= 10);
}

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
