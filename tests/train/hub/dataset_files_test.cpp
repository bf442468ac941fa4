// Which files of a data set's repository are a split.

#include "train/hub/dataset_files.h"

#include <doctest/doctest.h>

#include "tests/support/text.h"

namespace troupe::train::hub {
namespace {

using tests::contains;
using Names = std::vector<std::string>;

Names chosen(const Names& all, const DatasetSelection& selection = {},
             const std::string& readme = "") {
  const auto found = dataset_files(all, readme, selection);
  REQUIRE_MESSAGE(found.ok(), found.status().to_string());
  return *found;
}

std::string refused(const Names& all, const DatasetSelection& selection = {},
                    const std::string& readme = "") {
  const auto found = dataset_files(all, readme, selection);
  REQUIRE_FALSE(found.ok());
  return found.status().message();
}

TEST_CASE("splits by names: shards, folders, words, else all is train") {
  const Names shards = {"README.md", "data/test-00000-of-00001.parquet",
                        "data/train-00000-of-00002-ab12.parquet",
                        "data/train-00001-of-00002-ab12.parquet"};
  CHECK(chosen(shards) == Names{shards[2], shards[3]});
  CHECK(chosen(shards, {.split = "test"}) == Names{shards[1]});
  CHECK(contains(refused(shards, {.split = "dev"}), "Should be one of test, train"));
  CHECK(chosen({"train/a.json", "train/b.json", "test/c.json"}) ==
        Names{"train/a.json", "train/b.json"});
  CHECK(chosen({"my-train.jsonl", "val.jsonl", "eval-1.jsonl"}) == Names{"my-train.jsonl"});
  CHECK(chosen({"my-train.jsonl", "val.jsonl"}, {.split = "validation"}) == Names{"val.jsonl"});
  CHECK(chosen({"alpaca_data.json", "README.md", "LICENSE"}) == Names{"alpaca_data.json"});
  // A word within another is none; the commonest type counts.
  CHECK(chosen({"trains.csv", "pretrained.csv", "x.txt"}) == Names{"trains.csv", "pretrained.csv"});
  CHECK(chosen({"a.json.gz", "b.json.zst"}) == Names{"a.json.gz", "b.json.zst"});
  CHECK(contains(refused({"README.md", "x.png"}), "no data files"));
  CHECK(contains(refused({"alpaca.py", "data.json"}), "scripts are no longer supported"));
}

TEST_CASE("folder, subset, data_files") {
  const Names all = {"en/train.json", "de/train.json", "de/test.json", "extra/a.json"};
  CHECK(chosen(all, {.folder = "en"}) == Names{"en/train.json"});
  CHECK(chosen(all, {.subset = "de", .split = "test"}) == Names{"de/test.json"});
  CHECK(contains(refused(all, {.subset = "fr"}), "BuilderConfig 'fr' not found"));
  CHECK(chosen(all, {.data_files = {"extra/*.json"}}) == Names{"extra/a.json"});
  CHECK(contains(refused(all, {.data_files = {"x.json"}}), "x.json"));
}

TEST_CASE("configs of README.md") {
  const Names all = {
      "README.md",  "load.py",        "main/test.jsonl", "main/train.jsonl", "socratic/train.jsonl",
      "data/a.csv", "data/deep/b.csv"};
  const std::string readme =
      "---\nlicense: mit\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n"
      "    path: main/train*\n  - split: test\n    path: [main/test.jsonl]\n"
      "- config_name: socratic\n  data_files: socratic/*\n"
      "- config_name: deep\n  data_dir: data\n  data_files: '**/*.csv'\n---\n# Text\n";
  CHECK(contains(refused(all, {}, readme), "Please pick one among the available configs: main"));
  CHECK(chosen(all, {.subset = "main"}, readme) == Names{"main/train.jsonl"});
  CHECK(chosen(all, {.subset = "main", .split = "test"}, readme) == Names{"main/test.jsonl"});
  CHECK(chosen(all, {.subset = "socratic"}, readme) == Names{"socratic/train.jsonl"});
  CHECK(chosen(all, {.subset = "deep"}, readme) == Names{"data/a.csv", "data/deep/b.csv"});
  CHECK(contains(refused(all, {.subset = "mian"}, readme), "did you mean 'main'"));
  const std::string one = "---\nconfigs:\n- config_name: x\n  data_files: main/train.jsonl\n---\n";
  CHECK(chosen(all, {}, one) == Names{"main/train.jsonl"});
  CHECK(chosen(all, {}, "\n  " + one) == Names{"main/train.jsonl"});
  const std::string marked =
      "---\nconfigs:\n- config_name: a\n  data_files: data/a.csv\n"
      "- config_name: b\n  default: true\n  data_files: socratic/*\n---\n";
  CHECK(chosen(all, {}, marked) == Names{"socratic/train.jsonl"});
  // What is no YAML is no description.
  CHECK(chosen({"a.json"}, {}, "---\n: [\n---\n") == Names{"a.json"});
}

}  // namespace
}  // namespace troupe::train::hub
