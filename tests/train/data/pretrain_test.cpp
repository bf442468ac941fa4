#include <doctest/doctest.h>

#include "tests/train/data/support.h"

namespace troupe::train {
namespace {

constexpr auto kPretrain = DataOptions::Stage::kPretrain;
const char* kInfo = R"({"t": {"file_name": "t.txt", "columns": {"prompt": "text"}},
                        "j": {"file_name": "j.jsonl", "columns": {"prompt": "text"}},
                        "d": {"file_name": "d", "columns": {"prompt": "text"}}})";
const char* kPretrainTokens = R"({"eos_token": "<e>", "pad_token": "<p>"})";

TEST_CASE("packing joins texts with the end token, cuts blocks, drops and reports the tail") {
  DataFolder folder;
  folder.write("dataset_info.json", kInfo).write("t.txt", "abc\n\nde\r\nf");
  auto options = folder.options(kPretrain, {"t"});
  options.cutoff_len = 4;
  const auto tokenizer = byte_tokenizer({"<e>", "<p>"}, kPretrainTokens);
  const auto module = build_dataset(folder.files, options, tokenizer).value();
  // "abc"⟨e⟩ ""⟨e⟩ "de"⟨e⟩ "f"⟨e⟩: ten tokens, two blocks, two dropped.
  const TokenId a = 'a' + 2;
  REQUIRE(module.train.size() == 2);
  CHECK(ids_of(module.train, 0) == std::vector<TokenId>{a, a + 1, a + 2, 0});
  CHECK(ids_of(module.train, 1) == std::vector<TokenId>{0, a + 3, a + 4, 0});
  CHECK(module.train_report.tokens == 10);
  CHECK(module.train_report.tokens_dropped == 2);
  CHECK(module.train_report.text_bytes == 6);

  const std::uint32_t both[] = {1, 0};
  const auto batch = collate(module.train, both);
  CHECK(batch.rows == 2);
  CHECK(batch.length == 4);
  CHECK(batch.ids[0] == 0);
  CHECK(batch.labels == batch.ids);  // no padding token in them
  CHECK(batch.position_ids.empty());
  CHECK(count_target_tokens(batch) == 6);
}

TEST_CASE("the packing scope is a preprocessing batch") {
  DataFolder folder;
  folder.write("dataset_info.json", kInfo).write("t.txt", "abc\nde\nf\n");
  auto options = folder.options(kPretrain, {"t"});
  options.cutoff_len = 4;
  options.preprocessing_batch_size = 2;
  const auto module =
      build_dataset(folder.files, options, byte_tokenizer({"<e>", "<p>"}, kPretrainTokens)).value();
  CHECK(module.train.size() == 1);
  CHECK(module.train_report.tokens_dropped == 3 + 2);
}

TEST_CASE("add_bos_token: the first id of every block, or in front of every text") {
  DataFolder folder;
  folder.write("dataset_info.json", kInfo).write("t.txt", "abcdefg\n");
  auto options = folder.options(kPretrain, {"t"});
  options.cutoff_len = 4;
  const auto tokenizer = byte_tokenizer(
      {"<e>", "<b>"}, R"({"eos_token": "<e>", "bos_token": "<b>", "add_bos_token": true})");
  auto module = build_dataset(folder.files, options, tokenizer).value();
  REQUIRE(module.train.size() == 2);
  CHECK(module.train.ids(0)[0] == 1);
  CHECK(module.train.ids(1)[0] == 1);
  CHECK(module.train.ids(1)[1] == 'f' + 2);

  options.packing = false;
  module = build_dataset(folder.files, options, tokenizer).value();
  REQUIRE(module.train.size() == 1);
  CHECK(ids_of(module.train, 0) == join({{1}, byte_ids("abc", 2)}));
  CHECK(module.train_report.tokens_dropped == 5);
}

TEST_CASE("the padding token is no target, also where it is the end token") {
  DataFolder folder;
  folder.write("dataset_info.json", kInfo).write("t.txt", "abc\n");
  auto options = folder.options(kPretrain, {"t"});
  options.cutoff_len = 4;
  const auto module =
      build_dataset(folder.files, options, byte_tokenizer({"<e>"}, R"({"eos_token": "<e>"})"))
          .value();
  CHECK(module.tokenizer.pad_id() == 0);
  const std::uint32_t first[] = {0};
  const auto batch = collate(module.train, first);
  CHECK(batch.labels[2] == 'c' + 1);
  CHECK(batch.labels[3] == kIgnoredLabel);
  CHECK(count_target_tokens(batch) == 2);
}

TEST_CASE("directories of files, max_samples, val_size, evaluation sets") {
  DataFolder folder;
  folder.write("dataset_info.json", kInfo).write("j.jsonl", "{\"text\": \"xyz\"}\n\n");
  REQUIRE(folder.files.create_directories(folder.directory.file("d")).ok());
  folder.write("d/2.txt", "cccc\ndddd").write("d/1.txt", "aaaa\nbbbb\n");
  const auto tokenizer = byte_tokenizer({"<e>", "<p>"}, kPretrainTokens);
  auto options = folder.options(kPretrain, {"d"});
  options.packing = false;
  auto module = build_dataset(folder.files, options, tokenizer).value();
  REQUIRE(module.train.size() == 4);
  CHECK(module.train.ids(2)[0] == 'c' + 2);  // files by name

  options.max_samples = 3;
  options.eval_dataset = {"j"};
  module = build_dataset(folder.files, options, tokenizer).value();
  CHECK(module.train.size() == 3);
  REQUIRE(module.eval);
  CHECK(module.eval->size() == 1);

  options.eval_dataset.clear();
  options.max_samples.reset();
  options.val_size = 0.3;  // ⌈0.3 · 4⌉ = 2
  module = build_dataset(folder.files, options, tokenizer).value();
  CHECK(module.train.size() == 2);
  CHECK(module.eval->size() == 2);
  options.val_size = 3;
  CHECK(build_dataset(folder.files, options, tokenizer).value().train.size() == 1);
  options.val_size = 4;
  CHECK(build_dataset(folder.files, options, tokenizer).status().message() ==
        "val_size=4 takes 4 of 4 rows: none is left to train on");

  options.val_size = 0;
  options.held_out = 0.3;  // as many as val_size would take
  options.eval_dataset = {"j"};
  const auto held = build_dataset(folder.files, options, tokenizer).value();
  CHECK(held.train.size() == 2);
  REQUIRE(held.held_out);
  CHECK(held.held_out->size() == 2);
  CHECK(held.eval->size() == 1);
  options.eval_dataset.clear();
  CHECK_FALSE(build_dataset(folder.files, options, tokenizer).value().eval);
  options.held_out = 4;
  CHECK(build_dataset(folder.files, options, tokenizer).status().message() ==
        "troupe.held_out=4 takes 4 of 4 rows: none is left to train on");
  options.held_out = 0;
  options.dataset = {"d", "j"};
  options.mix_strategy = "interleave_over";
  CHECK(build_dataset(folder.files, options, tokenizer).value().train.size() == 8);
  options.mix_strategy = "interleave_under";
  CHECK(build_dataset(folder.files, options, tokenizer).value().train.size() == 2);
  options.mix_strategy = "interleave_once";
  CHECK(build_dataset(folder.files, options, tokenizer).value().train.size() == 5);
}

TEST_CASE("llama3 ends texts with its end-of-text token") {
  DataFolder folder;
  folder.write("dataset_info.json", kInfo).write("t.txt", "ab\n");
  auto options = folder.options(kPretrain, {"t"});
  options.template_name = "llama3";
  options.packing = false;
  const auto tokenizer =
      byte_tokenizer({"<|end_of_text|>", "<|eot_id|>"}, R"({"eos_token": "<|end_of_text|>"})");
  const auto module = build_dataset(folder.files, options, tokenizer).value();
  CHECK(module.train.ids(0).back() == 0);
  CHECK(module.tokenizer.eos_id() == 1);
}

}  // namespace
}  // namespace troupe::train
