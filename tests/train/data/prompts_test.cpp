// Prompts with the answers that are expected: what is kept, what is cut, what need not be there.

#include "train/data/prompts.h"

#include <doctest/doctest.h>

#include "tests/support/text.h"
#include "tests/train/data/support.h"
#include "train/data/numpy_random.h"

namespace troupe::train {
namespace {

constexpr TokenId kEnd = 0;

Tokenizer tokenizer_with_end() {
  return byte_tokenizer({"<end>"}, R"({"eos_token": "<end>", "pad_token": "<end>"})");
}

// As the template `default` writes them.
std::vector<TokenId> asked(const std::string& text) {
  return join({byte_ids("Human: " + text, 1), {kEnd}, byte_ids("\nAssistant:", 1)});
}
std::vector<TokenId> answered(const std::string& text) {
  return join({byte_ids(text, 1), {kEnd}, byte_ids("\n", 1)});
}

DataOptions prompt_options(const DataFolder& folder, std::vector<std::string> names) {
  DataOptions options = folder.options(DataOptions::Stage::kSupervised, {});
  options.eval_dataset = std::move(names);
  options.template_name = "default";
  return options;
}

TEST_CASE("all turns but the last are the prompt; an answer need not be there") {
  DataFolder folder;
  folder.write("dataset_info.json", R"({
    "a": {"file_name": "a.json", "columns": {"prompt": "q", "response": "a", "history": "h"}},
    "open": {"file_name": "open.json", "columns": {"prompt": "q"}},
    "talk": {"file_name": "talk.json", "formatting": "sharegpt"}})");
  folder.write("a.json", R"([{"q": "two", "a": "B", "h": [["one", "A"]]}, {"q": "x", "a": null}])");
  folder.write("open.json", R"([{"q": "open"}])");
  folder.write("talk.json", R"([
    {"conversations": [{"from": "gpt", "value": "x"}, {"from": "human", "value": "y"}]},
    {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}])");
  const auto made = build_prompts(folder.files, prompt_options(folder, {"a", "open", "talk"}),
                                  tokenizer_with_end());
  REQUIRE_MESSAGE(made.ok(), made.status().to_string());
  REQUIRE(made->rows.size() == 4);
  CHECK(made->rows[0].prompt == join({asked("one"), answered("A"), asked("two")}));
  CHECK(made->rows[0].expected == answered("B"));
  CHECK(made->rows[1].prompt == asked("x"));
  CHECK(made->rows[1].expected == answered(""));
  CHECK(made->rows[2].prompt == asked("open"));
  CHECK(made->rows[3].prompt == asked("x"));
  CHECK(made->report.records_dropped == 1);
  CHECK(tests::contains(made->notes.at(0), "1 of 5 rows were dropped"));
  CHECK(made->stop_ids == std::vector<TokenId>{kEnd});
}

TEST_CASE("prompts and answers are cut at their ends to cutoff_len together") {
  DataFolder folder;
  folder.write("dataset_info.json",
               R"({"a": {"file_name": "a.json", "columns": {"prompt": "q", "response": "a"}}})");
  folder.write("a.json", R"([{"q": "a long question", "a": "a long answer"}])");
  auto options = prompt_options(folder, {"a"});
  options.cutoff_len = 12;
  const auto made = build_prompts(folder.files, options, tokenizer_with_end());
  REQUIRE(made.ok());
  const auto prompt = asked("a long question"), expected = answered("a long answer");
  const auto [kept, kept_of_answer] =
      infer_lengths(std::ssize(prompt), std::ssize(expected), options.cutoff_len);
  CHECK(kept + kept_of_answer == 12);
  CHECK(made->rows[0].prompt == std::vector(prompt.begin(), prompt.begin() + kept));
  CHECK(made->rows[0].expected == std::vector(expected.begin(), expected.begin() + kept_of_answer));
}

TEST_CASE("num_samples draws behind those of the data that are trained on") {
  DataFolder folder;
  folder.write("dataset_info.json", R"({
    "a": {"file_name": "a.json", "num_samples": 3, "columns": {"prompt": "q"}}})");
  folder.write("a.json", R"([{"q": "0"}, {"q": "1"}, {"q": "2"}, {"q": "3"}, {"q": "4"}])");
  const auto drawn = [&](const std::vector<std::string>& trained) {
    auto options = prompt_options(folder, {"a"});
    options.answers_optional = true;
    options.dataset = trained;
    std::vector<std::vector<TokenId>> out;
    for (auto& row : build_prompts(folder.files, options, tokenizer_with_end()).value().rows)
      out.push_back(std::move(row.prompt));
    return out;
  };
  NumpyGlobal random(42);
  const auto named = [&](const std::vector<std::uint32_t>& order) {
    std::vector<std::vector<TokenId>> out;
    for (std::size_t i = 0; i < 3; ++i) out.push_back(asked(std::to_string(order[i])));
    return out;
  };
  std::vector<std::uint32_t> order(5);
  for (const std::vector<std::string>& trained : {std::vector<std::string>(), {"a"}}) {
    random.permute(order);
    CHECK(drawn(trained) == named(order));
  }
}

}  // namespace
}  // namespace troupe::train
