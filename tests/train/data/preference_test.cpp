// Data sets of pairs and of judged answers: samples, and the batches that are made of them.

#include <doctest/doctest.h>

#include "tests/train/data/support.h"

namespace troupe::train {
namespace {

const char* kJudgedConfig = R"({"eos_token": "<e>", "pad_token": "<p>", "bos_token": "<b>"})";
const std::vector<std::string> kJudgedSpecial = {"<e>", "<p>", "<b>"};
std::vector<TokenId> of_text(const std::string& value) { return byte_ids(value, 3); }

struct Judged : DataFolder {
  Judged() {
    write("dataset_info.json", R"({
      "pairs": {"file_name": "pairs.json", "ranking": true,
                "columns": {"prompt": "q", "chosen": "c", "rejected": "r"}},
      "judged": {"file_name": "judged.json",
                 "columns": {"prompt": "q", "response": "a", "kto_tag": "good"}},
      "plain": {"file_name": "judged.json", "columns": {"prompt": "q", "response": "a"}}})");
    write("pairs.json", R"([{"q": "ab", "c": "good", "r": "no"}, {"q": "cd", "c": "x"},
                            {"q": "e", "c": "y", "r": "longer"}])");
    write("judged.json", R"([{"q": "ab", "a": "one", "good": true},
                             {"q": "cd", "a": "two", "good": false},
                             {"q": "e", "a": "three", "good": true}])");
  }
  Result<DatasetModule> build(DataOptions::Stage stage, const std::string& name) {
    return build_dataset(files, options(stage, {name}),
                         byte_tokenizer(kJudgedSpecial, kJudgedConfig));
  }
};

TEST_CASE("pairs: both answers behind their question, apart from each other") {
  Judged folder;
  const auto module = folder.build(DataOptions::Stage::kPairs, "pairs").value();
  CHECK(module.train_report.records_dropped == 1);
  REQUIRE(module.train.size() == 2);
  CHECK(ids_of(module.train, 0) ==
        join({of_text("ab"), of_text("good"), of_text("ab"), of_text("no")}));
  CHECK(std::ranges::equal(module.train.part_lengths(0), std::vector{6, 4}));
  CHECK(labels_of(module.train, 0) ==
        join({{-100, -100}, of_text("good"), {-100, -100}, of_text("no")}));
  CHECK(longest_sequence(module.train) == 7);
  const std::uint32_t both[] = {0, 1};
  const TokenBatch batch = collate_ragged(module.train, both);
  CHECK(batch.rows == 1);
  // Numbers that differ keep sequences apart.
  const std::vector<std::int32_t> segments{1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 5, 5, 5, 5, 5, 5, 5};
  CHECK(batch.segment_ids == segments);
  CHECK(batch.position_ids ==
        std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("judged answers: each with the answer of the row in front") {
  Judged folder;
  const auto module = folder.build(DataOptions::Stage::kFeedback, "judged").value();
  REQUIRE(module.train.size() == 3);
  CHECK(ids_of(module.train, 0) ==
        join({of_text("ab"), of_text("one"), of_text("ab"), of_text("three")}));
  CHECK(ids_of(module.train, 1) ==
        join({of_text("cd"), of_text("two"), of_text("cd"), of_text("one")}));
  const std::uint32_t all[] = {0, 1, 2};
  const TokenBatch own = collate_answers(module.train, all, Answers::kOwn);
  CHECK(own.ids == join({of_text("ab"), of_text("one"), of_text("cd"), of_text("two"), of_text("e"),
                         of_text("three")}));
  CHECK(own.desirable == std::vector<std::uint8_t>{1, 0, 1});
  CHECK(own.segment_ids.back() == 3);
  const TokenBatch others = collate_answers(module.train, all, Answers::kOfOthers);
  CHECK(others.ids == join({of_text("ab"), of_text("three"), of_text("cd"), of_text("one"),
                            of_text("e"), of_text("two")}));
  CHECK(others.labels.size() == others.ids.size());
}

TEST_CASE("a data set of another stage is refused in LLaMA-Factory's words") {
  Judged folder;
  using Stage = DataOptions::Stage;
  for (const auto& [stage, name] :
       {std::pair(Stage::kSupervised, "pairs"), std::pair(Stage::kSupervised, "judged"),
        std::pair(Stage::kPairs, "judged"), std::pair(Stage::kPairs, "plain"),
        std::pair(Stage::kFeedback, "pairs"), std::pair(Stage::kFeedback, "plain")}) {
    CAPTURE(name);
    const auto refused = folder.build(stage, name);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().message().find(
              "The dataset is not applicable in the current training stage.") != std::string::npos);
  }
}

}  // namespace
}  // namespace troupe::train
