#include "train/data/sample_stream.h"

#include <doctest/doctest.h>

#include "tests/support/test_data.h"

namespace troupe::train {
namespace {

struct Data {
  Data() {
    write("dataset_info.json",
          R"({"a": {"file_name": "a.json", "columns": {"prompt": "q", "response": "r"}},
              "b": {"file_name": "b.json"}})");
    write("a.json", R"([{"q": "1", "r": "2"}])");
    write("b.json", R"([{"instruction": "3", "output": "4"}])");
    options.dataset = {"a", "b"};
    options.dataset_dir = directory.path();
    options.template_name = "default";
    dataset.append(std::vector<TokenId>{1, 2, 3}, std::vector<std::int32_t>{-100, 2, 3});
  }
  void write(const std::string& name, const std::string& text) {
    REQUIRE(write_file_atomically(files, directory.file(name), text).ok());
  }
  SampleStream stream(std::span<const StreamFile> known = {}) {
    return describe_stream(files, options, origin, dataset, known).value();
  }
  std::vector<std::string> since(const SampleStream& before) {
    return differences(before, stream());
  }
  troupe::tests::TemporaryDirectory directory;
  PosixFileSystem files;
  DataOptions options;
  StreamOrigin origin{.tokenizer = "tokens", .order_seed = 42};
  TokenDataset dataset{TokenDataset::Kind::kSupervised, 0};
};
using Differences = std::vector<std::string>;

TEST_CASE("a stream and its text") {
  Data data;
  const SampleStream stream = data.stream();
  REQUIRE(stream.files.size() == 2);
  CHECK(stream.files[0].path == data.directory.file("a.json"));
  CHECK(stream.files[0].stamp == file_stamp(stream.files[0].path).value());
  const auto back = SampleStream::parse(stream.to_text(), "x").value();
  CHECK(back.files == stream.files);
  CHECK(back.xxh3 == stream.xxh3);
  CHECK(differences(back, stream).empty());
  CHECK(back.to_text() == stream.to_text());
  for (const char* text : {"{", "[]", "{\"files\": [1], \"samples\": {}, \"settings\": {}}",
                           "{\"files\": [], \"samples\": {}, \"settings\": {}}"}) {
    CHECK_FALSE(SampleStream::parse(text, "x").ok());
  }
}

TEST_CASE("each thing that decides the samples is named") {
  Data data;
  const SampleStream before = data.stream();
  data.options.cutoff_len = 64;
  data.options.template_name = "qwen";
  data.options.max_samples = 5;
  data.options.packing = true;
  CHECK(data.since(before) ==
        Differences{"template was \"default\" and is \"qwen\"", "cutoff_len was 2048 and is 64",
                    "packing was false and is true", "max_samples was null and is 5"});
  data.options = Data().options;
  data.options.dataset_dir = data.directory.path();
  data.origin.order_seed = 43;
  CHECK(data.since(before) == Differences{"data_seed (else seed) was 42 and is 43"});
  data.origin.shuffle = false;
  CHECK(data.since(before) == Differences{"disable_shuffling was false and is true"});
  data.origin = {.tokenizer = "others", .order_seed = 42};
  CHECK(data.since(before).front().starts_with("the tokenizer is another one"));
  data.origin.tokenizer = "tokens";
  CHECK(data.since(before).empty());
  data.write("dataset_info.json",
             R"({"a": {"file_name": "a.json", "columns": {"prompt": "r", "response": "q"}},
                 "b": {"file_name": "b.json"}})");
  REQUIRE(data.since(before).size() == 1);
  CHECK(data.since(before).front().starts_with("columns and tags in dataset_info.json are others"));
}

TEST_CASE("files: changed, gone, new, in another order, moved") {
  Data data;
  const std::string a = data.directory.file("a.json"), b = data.directory.file("b.json");
  const SampleStream before = data.stream();
  data.dataset.append(std::vector<TokenId>{4}, std::vector<std::int32_t>{4});
  data.options.dataset = {"b"};
  CHECK(data.since(before).front() == a + " is not among the data any more");
  SampleStream fewer = data.stream();
  fewer.xxh3 = before.xxh3;
  data.options.dataset = {"a", "b"};
  CHECK(data.since(fewer).front() == a + " was not among the data");
  SampleStream turned = before;
  std::swap(turned.files[0], turned.files[1]);
  turned.xxh3 += 1;
  CHECK(differences(turned, before) == Differences{"the data files come in another order"});
  SampleStream moved = before;
  moved.files[0].path = "elsewhere/a.json";
  CHECK(differences(moved, before).empty());
  data.write("b.json", R"([{"instruction": "3", "output": "5"}])");
  REQUIRE(data.since(before).size() == 1);
  CHECK(data.since(before).front().starts_with(b + " is not what it was"));
}

TEST_CASE("files that changed where no sample is made of them are no difference") {
  Data data;
  const SampleStream before = data.stream();
  data.write("a.json", R"([ {"q": "1", "r": "2"} ])");
  CHECK(data.since(before).empty());
  data.dataset.append(std::vector<TokenId>{4}, std::vector<std::int32_t>{4});
  CHECK(data.since(before).size() == 1);
}

TEST_CASE("what a stranger's checkpoint says neither steers the terminal nor fills it") {
  Data data;
  SampleStream before = data.stream();
  before.xxh3 += 1;
  before.files[0].path = "x\x1b[2J\ny";
  before.files[0].xxh3 += 1;
  before.files[1].path = std::string(199, 'x') + "é and more";
  before.files[1].xxh3 += 1;
  before.settings["template"] = std::string(100'000, 'z');
  const auto found = data.since(before);
  REQUIRE(found.size() == 5);
  CHECK(found[0] == "x?[2J?y is not among the data any more");
  CHECK(found[1] == std::string(199, 'x') + "... is not among the data any more");
  CHECK(found[4].size() < 300);
  before.settings["template"] = json::Object{{"a", 1}};
  CHECK(data.since(before)[4].find('\n') == std::string::npos);
}

TEST_CASE("samples that another version makes of the same files are others") {
  Data data;
  const SampleStream before = data.stream();
  data.dataset.append(std::vector<TokenId>{4}, std::vector<std::int32_t>{4});
  REQUIRE(data.since(before).size() == 1);
  CHECK(data.since(before).front().find("2 samples of 4 tokens where they gave 1 of 3") !=
        std::string::npos);
}

TEST_CASE("a file that has not changed is not read again") {
  Data data;
  SampleStream before = data.stream();
  // A hash that no bytes have: whoever finds it has not read the file.
  before.files[0].xxh3 = 1;
  before.files[1].xxh3 = 2;
  SampleStream now = data.stream(before.files);
  CHECK(now.files == before.files);
  // Replaced by a file of the same size.
  data.write("b.json", R"([{"instruction": "3", "output": "5"}])");
  now = data.stream(before.files);
  CHECK(now.files[0].xxh3 == 1);
  CHECK(now.files[1].xxh3 != 2);
}

}  // namespace
}  // namespace troupe::train
