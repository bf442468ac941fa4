// Scores beside LLaMA-Factory's own (lf_data_golden/metrics.json), and what that file does not
// have: values here were computed by rouge_chinese 1.0.3, NLTK 3.10.4 and NumPy.

#include "train/scores/text_scores.h"

#include <doctest/doctest.h>

#include "runtime/base/json.h"
#include "tests/support/test_data.h"

namespace troupe::train {
namespace {

std::string text_at(const json::Value& value, std::size_t i) {
  return std::string(value.as_array().at(i).as_string());
}

TEST_CASE("scores are LLaMA-Factory's") {
  const auto path = tests::test_data("lf_data_golden/metrics.json");
  if (!path) return;
  PosixFileSystem files;
  const auto text = files.read(*path, std::uint64_t{1} << 20).value();
  const auto golden = json::parse(text, *path).value();
  const WordCutter cutter;
  int compared = 0;
  for (const auto& row : golden.at("rows").as_array()) {
    const auto& decoded = row.at("decoded");
    const auto answer = text_at(decoded, 0), expected = text_at(decoded, 1);
    CAPTURE(answer);
    CAPTURE(expected);
    const auto& scores = row.at("scores");
    const auto score = [&](const char* name) { return json::find_number(scores, name).value(); };
    const RougeScores rouge = rouge_scores(cutter, answer, expected);
    CHECK(rouge.rouge_1 == score("rouge-1"));
    CHECK(rouge.rouge_2 == score("rouge-2"));
    CHECK(rouge.rouge_l == score("rouge-l"));
    CHECK(bleu_score(answer, expected) == score("bleu-4"));
    for (std::size_t side = 0; side < 2; ++side) {
      std::vector<std::u32string> words;
      for (const auto& word : row.at("words").as_array().at(side).as_array())
        words.push_back(characters_of(std::string(word.as_string())));
      const auto characters = characters_of(text_at(decoded, side));
      std::vector<std::u32string> cut;
      for (const auto word : cutter.cut(characters)) cut.emplace_back(word);
      CHECK(cut == words);
    }
    ++compared;
  }
  CHECK(compared >= 20);
}

TEST_CASE("sentences end at question marks, dots and lines, and blank ones leave an empty word") {
  const WordCutter cutter;
  const auto rouge = rouge_scores(cutter, "Is it? Yes. \n \n No......well", "Is it?  Yes\n\nNo");
  CHECK(rouge.rouge_1 == 80.0);
  CHECK(rouge.rouge_2 == 61.5385);
  CHECK(rouge.rouge_l == 80.0);
}

TEST_CASE("an answer without a word scores nothing") {
  const WordCutter cutter;
  const auto rouge = rouge_scores(cutter, " \n", "word");
  CHECK(rouge.rouge_1 == 0);
  CHECK(rouge.rouge_l == 0);
  CHECK(bleu_score("", "") == 0);
  CHECK(bleu_score("xyz", "abc") == 0);
}

TEST_CASE("BLEU goes by characters, not bytes") {
  CHECK(bleu_score("émile Zola à Paris", "émile Zola a Paris") == 83.9433);
  CHECK(bleu_score("清华大学在北京", "北京的清华大学") == 48.8923);
}

TEST_CASE("a mean is NumPy's to the last bit") {
  std::vector<double> values;
  for (int i = 0; i < 1000; ++i) values.push_back(1.0 / (i + 1));
  CHECK(numpy_mean(std::span(values).first(5)) == 0.45666666666666667);
  CHECK(numpy_mean(std::span(values).first(100)) == 0.05187377517639621);
  CHECK(numpy_mean(values) == 0.007485470860550345);
}

}  // namespace
}  // namespace troupe::train
