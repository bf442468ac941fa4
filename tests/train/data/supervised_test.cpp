#include <doctest/doctest.h>

#include "tests/train/data/support.h"
#include "train/data/dataset_info.h"

namespace troupe::train {
namespace {

constexpr auto kSupervised = DataOptions::Stage::kSupervised;
const char* kConfig = R"({"eos_token": "<e>", "pad_token": "<p>", "bos_token": "<b>"})";
const std::vector<std::string> kSpecial = {"<e>", "<p>", "<b>"};
using Lengths = std::pair<std::int64_t, std::int64_t>;

std::vector<TokenId> ignored(std::size_t count) {
  return std::vector<TokenId>(count, kIgnoredLabel);
}
std::vector<TokenId> text(const std::string& value) { return byte_ids(value, 3); }

struct Alpaca : DataFolder {
  explicit Alpaca(const std::string& rows) {
    write("dataset_info.json", R"({"a": {"file_name": "a.json"},
      "h": {"file_name": "a.json", "columns": {"prompt": "instruction", "response": "output",
                                               "history": "history", "system": "sys"}}})");
    write("a.json", rows);
  }
};

TEST_CASE("a column that is read only where it is named is told, once") {
  Alpaca folder(R"([{"instruction": "Add", "output": "2", "system": "", "tools": null},
                    {"instruction": "Hi", "output": "Ho", "system": "Be kind.", "history": [["a", "b"]]},
                    {"instruction": "Ho", "output": "Hi", "system": "Be kind."}])");
  auto options = folder.options(kSupervised, {"a"});
  options.template_name = "default";
  const auto module =
      build_dataset(folder.files, options, byte_tokenizer(kSpecial, kConfig)).value();
  const auto& said = module.train_report.warnings;
  REQUIRE(said.size() == 2);
  CHECK(said[0].starts_with("data set 'a': the column 'system' is not read"));
  CHECK(said[0].ends_with("\"system\": \"system\" there does"));
  CHECK(said[1].starts_with("data set 'a': the column 'history' is not read"));
}

TEST_CASE("how much of question and answer stays") {
  CHECK(infer_lengths(10, 10, 100) == Lengths(10, 10));
  CHECK(infer_lengths(1000, 100, 300) == Lengths(200, 100));  // 2t < L: the question is cut
  CHECK(infer_lengths(100, 1000, 300) == Lengths(100, 200));  // 2s < L: the answer
  CHECK(infer_lengths(600, 200, 400) == Lengths(300, 100));   // both, in proportion
  CHECK(infer_lengths(333, 334, 10) == Lengths(5, 5));
  CHECK(infer_lengths(0, 50, 10) == Lengths(0, 10));
  CHECK(infer_lengths(5, 0, 1) == Lengths(1, 0));
}

TEST_CASE("the knapsack takes the largest that fits") {
  using Groups = std::vector<std::vector<std::int64_t>>;
  CHECK(greedy_knapsack({5, 3, 8, 2, 2}, 10) == Groups{{8, 2}, {5, 3, 2}});
  CHECK(greedy_knapsack({10, 10, 1}, 10) == Groups{{10}, {10}, {1}});
  CHECK(greedy_knapsack({}, 10).empty());
}

TEST_CASE("alpaca rows with the default template, slot by slot") {
  Alpaca folder(R"([{"instruction": "Add", "input": "1+1", "output": "2"},
                    {"instruction": "Hi", "input": "", "output": "Ho"}])");
  auto options = folder.options(kSupervised, {"a"});
  options.template_name = "default";
  const auto tokenizer = byte_tokenizer(kSpecial, kConfig);
  const auto module = build_dataset(folder.files, options, tokenizer).value();
  REQUIRE(module.train.size() == 2);
  const auto source = join({text("Human: Add\n1+1"), {0}, text("\nAssistant:")});
  const auto target = join({text("2"), {0}, text("\n")});
  CHECK(ids_of(module.train, 0) == join({source, target}));
  CHECK(labels_of(module.train, 0) == join({ignored(source.size()), target}));

  const std::uint32_t both[] = {0, 1};
  const auto batch = collate(module.train, both);
  CHECK(batch.length == 32);  // 29 tokens, to a multiple of 8
  CHECK(batch.ids[31] == 1);
  CHECK(batch.labels[31] == kIgnoredLabel);
  CHECK(count_target_tokens(batch) == 3 + 4);
  CHECK(batch.position_ids.empty());

  options.train_on_prompt = true;
  const auto prompts = build_dataset(folder.files, options, tokenizer).value();
  CHECK(labels_of(prompts.train, 0) == ids_of(prompts.train, 0));
}

TEST_CASE("history, system, mask_history") {
  Alpaca folder(
      R"([{"instruction": "q2", "output": "a2", "sys": "S", "history": [["q1", "a1"]]}])");
  auto options = folder.options(kSupervised, {"h"});
  options.template_name = "alpaca";
  const auto tokenizer = byte_tokenizer(kSpecial, kConfig);
  const auto user = [](const std::string& q) {
    return text("### Instruction:\n" + q + "\n\n### Response:\n");
  };
  const auto answer = [](const std::string& a) { return join({text(a), {0}, text("\n\n")}); };
  const auto ids = join({text("S"), user("q1"), answer("a1"), user("q2"), answer("a2")});
  auto module = build_dataset(folder.files, options, tokenizer).value();
  CHECK(ids_of(module.train, 0) == ids);
  const auto first = 1 + user("q1").size(), second = user("q2").size();
  CHECK(labels_of(module.train, 0) ==
        join({ignored(first), answer("a1"), ignored(second), answer("a2")}));

  options.mask_history = true;
  module = build_dataset(folder.files, options, tokenizer).value();
  CHECK(ids_of(module.train, 0) == ids);
  CHECK(labels_of(module.train, 0) == join({ignored(first + 5), ignored(second), answer("a2")}));

  // Not enough room: the first turns win, with mask_history the last.
  options.cutoff_len = static_cast<std::int64_t>(second) + 5;
  module = build_dataset(folder.files, options, tokenizer).value();
  CHECK(ids_of(module.train, 0) == join({user("q2"), answer("a2")}));
  CHECK(module.train_report.tokens_dropped == static_cast<std::int64_t>(first) + 5);
}

TEST_CASE("templates: qwen, llama3, llama2, qwen3, zephyr") {
  const std::vector<std::string> special = {
      "<|endoftext|>", "<|im_start|>",        "<|im_end|>",       "<|eot_id|>",
      "<b>",           "<|start_header_id|>", "<|end_header_id|>"};
  const char* config = R"({"eos_token": "<|endoftext|>", "bos_token": "<b>"})";
  const Conversation talk{{{Role::kUser, "u"}, {Role::kAssistant, "a"}}, "", ""};
  const auto run = [&](const std::string& name, Tokenizer& tokenizer, const Conversation& turns,
                       bool thinking = true) {
    std::vector<std::string> notes;
    const auto chat = chat_template(name).value();
    REQUIRE(fix_special_tokens(chat, tokenizer, notes).ok());
    EncodeOptions options;
    options.enable_thinking = thinking;
    return encode_conversation(chat, tokenizer, turns, options).value();
  };
  const auto plain = [](const std::string& value) { return byte_ids(value, 7); };

  auto tokenizer = byte_tokenizer(special, config);
  auto turns = run("qwen", tokenizer, talk);
  REQUIRE(turns.size() == 1);
  CHECK(turns[0].source ==
        join({{1},
              plain("system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
                    "assistant."),
              {2},
              plain("\n"),
              {1},
              plain("user\nu"),
              {2},
              plain("\n"),
              {1},
              plain("assistant\n")}));
  CHECK(turns[0].target == join({plain("a"), {2}, plain("\n")}));
  CHECK(tokenizer.eos_id() == 2);
  CHECK(tokenizer.pad_id() == 2);

  tokenizer = byte_tokenizer(special, config);
  turns = run("llama3", tokenizer, talk);
  CHECK(turns[0].source == join({{4, 5},
                                 plain("user"),
                                 {6},
                                 plain("\n\nu"),
                                 {3, 5},
                                 plain("assistant"),
                                 {6},
                                 plain("\n\n")}));
  CHECK(turns[0].target == join({plain("a"), {3}}));

  tokenizer = byte_tokenizer(special, config);
  auto with_system = talk;
  with_system.system = "s";
  turns = run("llama2", tokenizer, with_system);
  CHECK(turns[0].source == join({{4}, plain("[INST] <<SYS>>\ns\n<</SYS>>\n\nu [/INST]")}));
  CHECK(turns[0].target == join({plain("a"), {0}}));

  tokenizer = byte_tokenizer(special, config);
  turns = run("qwen3", tokenizer, talk);
  CHECK(turns[0].target == join({plain("<think>\n\n</think>\n\na"), {2}, plain("\n")}));
  turns = run("qwen3", tokenizer, talk, false);
  CHECK(turns[0].target == join({plain("a"), {2}, plain("\n")}));
  auto thinking = talk;
  thinking.messages[1].content = "<think>\nhm\n</think>\n\na";
  CHECK(run("qwen3", tokenizer, thinking)[0].target ==
        join({plain(thinking.messages[1].content), {2}, plain("\n")}));
  CHECK(run("qwen3", tokenizer, thinking, false)[0].target == turns[0].target);

  tokenizer = byte_tokenizer(special, config);
  turns = run("zephyr", tokenizer, talk);
  CHECK(turns[0].source == join({plain("<|system|>\nYou are Zephyr, a helpful assistant."),
                                 {0},
                                 plain("<|user|>\nu"),
                                 {0},
                                 plain("<|assistant|>\n")}));

  for (const auto& name : chat_template_names()) {
    CAPTURE(name);
    CHECK(chat_template(name).ok());
  }
  CHECK(chat_template("yin").status().message().starts_with("Template yin does not exist."));
}

TEST_CASE("packing: positions restart, neat packing has segments, room for one padding") {
  Alpaca folder(R"([{"instruction": "q", "output": ""}, {"instruction": "qq", "output": "aaa"},
                    {"instruction": "z", "output": "bb"}])");
  auto options = folder.options(kSupervised, {"a"});
  options.cutoff_len = 9;
  options.packing = true;
  const auto tokenizer = byte_tokenizer(kSpecial, kConfig);
  // The template empty adds nothing: lengths 1, 5, 3; capacity 8: {5, 3}, {1}.
  auto module = build_dataset(folder.files, options, tokenizer).value();
  REQUIRE(module.train.size() == 2);
  CHECK(ids_of(module.train, 0) == join({text("qqaaa"), text("zbb"), {1}}));
  CHECK(labels_of(module.train, 0) ==
        join({ignored(2), text("aaa"), ignored(1), text("bb"), ignored(1)}));
  const std::uint32_t rows[] = {0, 1};
  auto batch = collate(module.train, rows);
  CHECK(batch.length == 9);
  using Ints = std::vector<std::int32_t>;
  CHECK(Ints(batch.position_ids.begin(), batch.position_ids.begin() + 9) ==
        Ints{0, 1, 2, 3, 4, 0, 1, 2, 0});
  CHECK(batch.segment_ids.empty());

  options.neat_packing = true;
  module = build_dataset(folder.files, options, tokenizer).value();
  batch = collate(module.train, rows);
  CHECK(batch.segment_ids == Ints{1, 1, 1, 1, 1, 2, 2, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(count_target_tokens(batch) == 5);
}

TEST_CASE("sharegpt: roles, system, broken rows are dropped with their reason") {
  DataFolder folder;
  folder.write("dataset_info.json", R"({"s": {"file_name": "s.jsonl", "formatting": "sharegpt"},
    "o": {"file_name": "o.json", "formatting": "openai", "columns": {"messages": "messages"},
          "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user",
                   "assistant_tag": "assistant", "observation_tag": "tool",
                   "system_tag": "system"}}})");
  folder.write(
      "s.jsonl",
      R"({"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]}
{"conversations": [{"from": "gpt", "value": "a"}, {"from": "human", "value": "u"}]}
{"conversations": [{"from": "human", "value": "u"}]}
{"conversations": []}
)");
  folder.write("o.json", R"([{"messages": [{"role": "system", "content": "S"},
                                           {"role": "user", "content": "u"},
                                           {"role": "assistant", "content": "a"}]}])");
  const auto tokenizer = byte_tokenizer(kSpecial, kConfig);
  auto options = folder.options(kSupervised, {"s"});
  auto module = build_dataset(folder.files, options, tokenizer).value();
  REQUIRE(module.train.size() == 1);
  CHECK(ids_of(module.train, 0) == text("Sua"));
  CHECK(module.train_report.records == 4);
  CHECK(module.train_report.records_dropped == 3);
  CHECK(module.train_report.warnings.size() == 3);
  options.dataset = {"o"};
  module = build_dataset(folder.files, options, tokenizer).value();
  CHECK(ids_of(module.train, 0) == text("S\ndetailed thinking offua"));
  REQUIRE(module.train_report.warnings.size() == 1);
  CHECK(module.train_report.warnings[0].find("formatting sharegpt") != std::string::npos);
}

TEST_CASE("parts of splits of data sets that came from a hub") {
  DataFolder folder;
  folder.write("dataset_info.json", R"({"far": {"hf_hub_url": "a/rows", "split": "test[1:3]"},
    "mixed": {"hf_hub_url": "a/rows", "split": "test[:1]+train[:1]"}})");
  folder.write("test.jsonl", R"({"instruction": "p", "output": "0"}
{"instruction": "q", "output": "1"}
{"instruction": "r", "output": "2"}
{"instruction": "s", "output": "3"}
)");
  const auto tokenizer = byte_tokenizer(kSpecial, kConfig);
  auto options = folder.options(kSupervised, {"far"});
  for (const char* name : {"far", "mixed"})
    options.hub_files[name] = {join_path(options.dataset_dir, "test.jsonl")};
  const auto module = build_dataset(folder.files, options, tokenizer).value();
  REQUIRE(module.train.size() == 2);
  CHECK(ids_of(module.train, 0) == text("q1"));
  CHECK(ids_of(module.train, 1) == text("r2"));
  options.dataset = {"mixed"};
  const auto mixed = build_dataset(folder.files, options, tokenizer);
  CHECK(mixed.status().to_string().find("Unknown split \"train\". Should be one of ['test']") !=
        std::string::npos);
  // Files of both splits, as the hub gave them.
  folder.write("train.jsonl", R"({"instruction": "x", "output": "4"}
{"instruction": "y", "output": "5"}
)");
  options.hub_files[hub_key("mixed", "train", false)] = {
      join_path(options.dataset_dir, "train.jsonl")};
  const auto both = build_dataset(folder.files, options, tokenizer).value();
  REQUIRE(both.train.size() == 2);
  CHECK(ids_of(both.train, 0) == text("p0"));
  CHECK(ids_of(both.train, 1) == text("x4"));
}

}  // namespace
}  // namespace troupe::train
