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

TEST_CASE("the template that has written a tokenizer's Jinja text is known by it") {
  const auto behind = [](const std::string& name, const std::optional<std::string>& system) {
    Tokenizer tokenizer =
        byte_tokenizer({"<e>", "<|im_start|>", "<|im_end|>"}, R"({"eos_token": "<e>"})");
    std::vector<std::string> notes;
    ChatTemplate chat = chat_template(name).value();
    REQUIRE(fix_special_tokens(chat, tokenizer, notes).ok());
    tokenizer.set_chat_template(jinja_template(chat, tokenizer, system).value());
    return template_behind_jinja(tokenizer);
  };
  CHECK(behind("alpaca", std::nullopt).value().name == "alpaca");
  CHECK(behind("alpaca", std::nullopt).value().default_system ==
        chat_template("alpaca").value().default_system);
  CHECK(behind("alpaca", "It's a \\ day").value().default_system == "It's a \\ day");
  CHECK(behind("alpaca", "").value().default_system.empty());
  // The same text from templates that treat thoughts differently, or that stop at other words,
  // whatever system text they have of their own.
  CHECK_FALSE(behind("qwen3", std::nullopt));
  CHECK_FALSE(behind("qwen", std::nullopt));
  CHECK_FALSE(behind("chatml", "You are a helpful assistant."));
  CHECK_FALSE(behind("chatml", "You are a helpful AI assistant."));

  // Beside a base's tokenizer, which has no end token: a training gave it one.
  Tokenizer trained = byte_tokenizer({"<|endoftext|>"}, R"({"eos_token": "<|endoftext|>"})");
  Tokenizer base = byte_tokenizer({"<|endoftext|>"}, "{}");
  base.set_chat_template(
      jinja_template(chat_template("alpaca").value(), trained, std::nullopt).value());
  CHECK(template_behind_jinja(base).value().name == "alpaca");

  Tokenizer tokenizer = byte_tokenizer({"<e>"}, R"({"eos_token": "<e>"})");
  CHECK_FALSE(template_behind_jinja(tokenizer));
  tokenizer.set_chat_template("{% set system_message = '");
  CHECK_FALSE(template_behind_jinja(tokenizer));
}

}  // namespace
}  // namespace troupe::train
