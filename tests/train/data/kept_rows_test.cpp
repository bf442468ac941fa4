#include "train/data/kept_rows.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/test_data.h"
#include "tests/train/data/support.h"

namespace troupe::train {
namespace {

bool same(const Message& a, const Message& b) { return a.role == b.role && a.content == b.content; }

bool same(const Conversation& a, const Conversation& b) {
  return std::ranges::equal(a.messages, b.messages,
                            [](const Message& x, const Message& y) { return same(x, y); }) &&
         a.system == b.system && a.tools == b.tools && a.fault == b.fault &&
         a.desirable == b.desirable && a.rejected.has_value() == b.rejected.has_value() &&
         (!a.rejected || same(*a.rejected, *b.rejected));
}

TEST_CASE("rows are kept as they were, on the disk and in memory, and taken in any order") {
  std::vector<Conversation> rows(5);
  rows[0].messages = {{Role::kUser, "a"}, {Role::kAssistant, std::string(70'000, 'b')}};
  rows[1].messages = {{Role::kObservation, ""}, {Role::kFunction, "f\0g"}};
  rows[1].system = "s";
  rows[1].tools = "[]";
  rows[2].fault = "no answer";
  rows[3].messages = {{Role::kUser, "q"}, {Role::kAssistant, "better"}};
  rows[3].rejected = Message{Role::kAssistant, "worse"};
  rows[4].desirable = false;
  const troupe::tests::TemporaryDirectory directory;
  for (const std::string& folder : {directory.path(), std::string()}) {
    auto kept = KeptRows::create(folder).value();
    for (const auto& row : rows) REQUIRE(kept.add(row).ok());
    REQUIRE(kept.size() == 5);
    for (const std::uint32_t i : {4, 0, 3, 1, 2, 0}) {
      CAPTURE(i);
      CHECK(same(kept.row(i), rows[i]));
      CHECK(kept.is_sample(i) == (i != 2));
    }
    CHECK(std::filesystem::is_empty(directory.path()));
  }
}

TEST_CASE("mixed, drawn and split rows are the same ones on the disk and in memory") {
  DataFolder folder;
  std::string a, b;
  for (int i = 0; i < 40; ++i) {
    a += fmt::format("{{\"instruction\": \"a{}\", \"output\": \"x\"}}\n", i);
    if (i < 9) b += fmt::format("{{\"instruction\": \"b{}\", \"output\": \"y\"}}\n", i);
  }
  folder.write("a.jsonl", a).write("b.jsonl", b).write("dataset_info.json", R"({
      "a": {"file_name": "a.jsonl", "split": "train[:50%]+train[-4:]"},
      "b": {"file_name": "b.jsonl", "num_samples": 12}})");
  const auto tokenizer =
      byte_tokenizer({"<e>", "<p>"}, R"({"eos_token": "<e>", "pad_token": "<p>"})");
  auto options = folder.options(DataOptions::Stage::kSupervised, {"a", "b"});
  options.mix_strategy = "interleave_over";
  options.val_size = 0.25;
  const auto memory = build_dataset(folder.files, options, tokenizer).value();
  REQUIRE(memory.train.size() == 36);
  REQUIRE(memory.eval->size() == 12);
  const troupe::tests::TemporaryDirectory scratch;
  std::int64_t train = 0, eval = 0;
  const auto compare = [&](const TokenDataset& all, std::int64_t& at) {
    return [&](const TokenDataset& samples) -> Status {
      for (std::int64_t i = 0; i < samples.size(); ++i, ++at)
        CHECK(ids_of(samples, i) == ids_of(all, at));
      return {};
    };
  };
  REQUIRE(make_samples(folder.files, options, tokenizer,
                       {.train = compare(memory.train, train),
                        .eval = compare(*memory.eval, eval),
                        .held_out = {}},
                       {}, scratch.path())
              .ok());
  CHECK(train == 36);
  CHECK(eval == 12);
  CHECK(std::filesystem::is_empty(scratch.path()));
  CHECK(make_samples(folder.files, options, tokenizer,
                     {.train = compare(memory.train, train),
                      .eval = compare(*memory.eval, eval),
                      .held_out = {}},
                     {}, scratch.file("missing"))
            .status()
            .code() == Code::kNotFound);
}

}  // namespace
}  // namespace troupe::train
