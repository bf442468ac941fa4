// Data sets of troupe.datasets: ids and labels written by hand, by Axolotl's rules.
#include "train/data/row_dataset.h"

#include <doctest/doctest.h>

#include "tests/support/text.h"
#include "tests/train/data/support.h"
#include "train/data/conversation_encoder.h"
#include "train/data/numpy_random.h"
#include "train/data/row_encoder.h"
#include "train/data/row_source.h"
#include "train/data/tokenizer_template.h"

namespace troupe::train::row_dataset_tests {
namespace {

using tests::contains;

// Ids: <e> 0, <p> 1, <b> 2, the turns' words 3 to 7, bytes from 8 on.
const std::vector<std::string> kSpecial = {"<e>",
                                           "<p>",
                                           "<b>",
                                           "<|im_start|>",
                                           "<|im_end|>",
                                           "<|eot_id|>",
                                           "<|start_header_id|>",
                                           "<|end_header_id|>"};
constexpr TokenId kSpecials = 8;
constexpr TokenId kEos = 0, kBos = 2, kImStart = 3, kImEnd = 4, kEot = 5, kHeader = 6,
                  kHeaderEnd = 7;
const char* kConfig = R"({"eos_token": "<e>", "pad_token": "<p>", "bos_token": "<b>"})";

std::vector<TokenId> text(const std::string& value) { return byte_ids(value, kSpecials); }
std::vector<TokenId> ignored(std::size_t count) {
  return std::vector<TokenId>(count, kIgnoredLabel);
}

// A tokenizer without and with a begin token in front of texts.
Tokenizer plain() { return byte_tokenizer(kSpecial, kConfig); }
Tokenizer with_bos() {
  TrainedBpe trained;
  trained.special_tokens = kSpecial;
  auto file = json::parse(tokenizer_json_of(trained), "t").value();
  file.as_object()["post_processor"] = json::parse(R"({
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<b>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<b>": {"id": "<b>", "ids": [2], "tokens": ["<b>"]}}})",
                                                   "p")
                                           .value();
  return Tokenizer::from_text(json::write(file), kConfig, "", "t").value();
}

RowSource source(const std::string& entry) {
  const auto parsed = parse_row_source(json::parse(entry, "entry").value(), false);
  REQUIRE_MESSAGE(parsed.ok(), parsed.status().to_string());
  return *parsed;
}

std::vector<TokenRow> rows_of(const std::string& entry, const std::string& row,
                              const Tokenizer& tokenizer, std::int64_t length = 4096) {
  std::vector<std::string> notes;
  const auto encoder = make_row_encoder(source(entry), tokenizer, length, notes);
  REQUIRE_MESSAGE(encoder.ok(), encoder.status().to_string());
  std::vector<TokenRow> out;
  const Status encoded = (*encoder)->encode(json::parse(row, "row")->get_object(), out);
  REQUIRE_MESSAGE(encoded.ok(), encoded.to_string());
  return out;
}
std::string refusal_of(const std::string& entry, const std::string& row = "{}") {
  const auto parsed = parse_row_source(json::parse(entry, "entry").value(), false);
  if (!parsed.ok()) return parsed.status().message();
  std::vector<std::string> notes;
  const auto encoder = make_row_encoder(*parsed, plain(), 64, notes);
  if (!encoder.ok()) return encoder.status().message();
  std::vector<TokenRow> out;
  return (*encoder)->encode(json::parse(row, "row")->get_object(), out).message();
}

TEST_CASE("NumPy's permutations") {
  // numpy 2.3: numpy.random.default_rng(42).permutation(10)
  CHECK(numpy_permutation(10, 42) == std::vector<std::uint32_t>{5, 6, 0, 7, 3, 2, 4, 9, 1, 8});
  CHECK(numpy_permutation(7, 3) == std::vector<std::uint32_t>{5, 6, 2, 1, 4, 3, 0});
  CHECK(numpy_permutation(20, (1ull << 40) + 5)[0] == 12);
  CHECK(numpy_permutation(100, 7)[11] == 10);
  CHECK(numpy_permutation(1, 42) == std::vector<std::uint32_t>{0});
  CHECK(numpy_permutation(0, 42).empty());
}

TEST_CASE("alpaca: prompt and answer are tokenised apart") {
  const std::string with_input =
      "Below is an instruction that describes a task, paired with an input that provides further "
      "context. Write a response that appropriately completes the request.\n\n"
      "### Instruction:\nAdd\n\n### Input:\n1+1\n\n### Response:\n";
  const auto rows = rows_of(R"({"path": "x", "type": "alpaca"})",
                            R"({"instruction": "Add", "input": "1+1", "output": "2"})", with_bos());
  REQUIRE(rows.size() == 1);
  const auto prompt = join({{kBos}, text(with_input)});
  const auto answer = join({text("2"), {kEos}});
  CHECK(rows[0].ids == join({prompt, answer}));
  CHECK(rows[0].labels == join({ignored(prompt.size()), answer}));

  const auto trained =
      rows_of(R"({"path": "x", "type": "alpaca", "train_on_inputs": true})",
              R"({"instruction": "Add", "input": "1+1", "output": "2"})", with_bos());
  CHECK(trained[0].labels == trained[0].ids);

  const std::string without =
      "Below is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n### Instruction:\nHi\n\n### Response:\n";
  const auto plain_row = rows_of(R"({"path": "x", "type": "alpaca"})",
                                 R"({"instruction": "Hi", "output": "Ho"})", plain());
  CHECK(plain_row[0].ids == join({text(without), text("Ho"), {kEos}}));
}

TEST_CASE("alpaca: each part is cut, and the end token needs room") {
  const auto rows = rows_of(R"({"path": "x", "type": "alpaca"})",
                            R"({"instruction": "Hi", "output": "0123456789"})", with_bos(), 8);
  // Begin token and seven bytes of the prompt; of the answer begin token and seven bytes, less the
  // begin token, and no end token.
  CHECK(rows[0].ids == join({{kBos}, text("Below i"), text("0123456")}));
  const auto room = rows_of(R"({"path": "x", "type": "alpaca"})",
                            R"({"instruction": "Hi", "output": "012345"})", with_bos(), 8);
  CHECK(room[0].ids == join({{kBos}, text("Below i"), text("012345"), {kEos}}));
}

TEST_CASE("alpaca's other prompts") {
  const std::string system =
      "Below is an instruction that describes a task. Write a response that appropriately "
      "completes the request.";
  const std::string row = R"({"instruction": "Hi", "output": "Ho"})";
  const auto ids = [&](const char* style) {
    return rows_of(fmt::format(R"({{"path": "x", "type": "alpaca:{}"}})", style), row, plain())[0]
        .ids;
  };
  CHECK(ids("chat") == join({text("SYSTEM: " + system + "\nUSER: Hi\nASSISTANT:Ho"), {kEos}}));
  CHECK(ids("chatml") == join({{kImStart},
                               text("system\n" + system),
                               {kImEnd},
                               text("\n"),
                               {kImStart},
                               text("user\nHi"),
                               {kImEnd},
                               text("\n"),
                               {kImStart},
                               text("assistant\nHo"),
                               {kEos}}));
  CHECK(ids("phi") ==
        join({text("<|system|>\n" + system + "<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHo"),
              {kEos}}));
}

TEST_CASE("completion: pieces of sequence_len, all of it trained") {
  const auto rows = rows_of(R"({"path": "x", "type": "completion", "field": "chapter"})",
                            R"({"chapter": "abcdefg"})", with_bos(), 4);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].ids == join({{kBos}, text("abc")}));
  CHECK(rows[1].ids == text("defg"));
  CHECK(rows[2].ids == std::vector<TokenId>{kEos});
  for (const auto& row : rows) CHECK(row.labels == row.ids);
}

TEST_CASE("pretrain: windows that overlap, each with begin and end token") {
  const auto rows =
      rows_of(R"({"path": "x", "type": "pretrain"})", R"({"text": "abcdefghi"})", with_bos(), 8);
  // Seven places: the begin token and six bytes; three of them again in the next window.
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].ids == join({{kBos}, text("abcdef"), {kEos}}));
  CHECK(rows[1].ids == join({{kBos}, text("defghi"), {kEos}}));
  CHECK(rows[1].labels == rows[1].ids);
}

TEST_CASE("input_output: segments say themselves what is trained") {
  const std::string row =
      R"({"segments": [{"label": true, "text": "<b>a"}, {"label": false, "text": "bc"},
                       {"label": true, "text": "d<e>"}]})";
  const auto rows = rows_of(R"({"path": "x", "type": "input_output"})", row, with_bos());
  CHECK(rows[0].ids == join({{kBos}, text("abcd"), {kEos}}));
  CHECK(rows[0].labels == join({{kBos}, text("a"), ignored(2), text("d"), {kEos}}));
  CHECK(contains(
      refusal_of(R"({"path": "x", "type": "input_output"})", R"({"segments": [{"text": "a"}]})"),
      "a segment must have text and label"));
}

const std::string kTalk =
    R"({"messages": [{"role": "system", "content": "Be"}, {"role": "user", "content": "Hi"},
                     {"role": "assistant", "content": "Ho"}, {"role": "user", "content": "A"},
                     {"role": "assistant", "content": "B"}]})";

TEST_CASE("chat_template: only contents of trained turns and the ends behind them") {
  // The words of chatml's turns: role, content and line ends.
  const auto turn = [](const std::string& role, const std::string& content) {
    return join({{kImStart}, text(role + "\n" + content), {kImEnd}, text("\n")});
  };
  const auto ids = join({turn("system", "Be"), turn("user", "Hi"), turn("assistant", "Ho"),
                         turn("user", "A"), turn("assistant", "B")});
  const auto head = 1 + std::string("assistant\n").size();
  const auto before = turn("system", "Be").size() + turn("user", "Hi").size() + head;
  const auto between = 1 + turn("user", "A").size() + head;
  const std::string chatml = R"({"path": "x", "type": "chat_template", "chat_template": "chatml")";
  const auto labels = [&](const std::string& more) {
    const auto rows = rows_of(chatml + more + "}", kTalk, plain());
    CHECK(rows[0].ids == ids);
    return rows[0].labels;
  };
  // chatml's turns do not end with the end token, so their ends are trained only if named.
  CHECK(labels("") ==
        join({ignored(before), text("Ho"), ignored(1 + between), text("B"), ignored(2)}));
  CHECK(labels(R"(, "eot_tokens": ["<|im_end|>"])") == join({ignored(before),
                                                             text("Ho"),
                                                             {kImEnd},
                                                             ignored(between),
                                                             text("B"),
                                                             {kImEnd},
                                                             ignored(1)}));
  CHECK(labels(R"(, "eot_tokens": ["<|im_end|>"], "train_on_eot": "last")") ==
        join({ignored(before), text("Ho"), ignored(1 + between), text("B"), {kImEnd}, ignored(1)}));
  CHECK(labels(R"(, "eot_tokens": ["<|im_end|>"], "train_on_eot": "none")") == labels(""));
  // Ends of all turns, of which only the assistant's contents are trained.
  const auto all = labels(R"(, "eot_tokens": ["<|im_end|>"], "train_on_eot": "all")");
  for (std::size_t i = 0; i < ids.size(); ++i) CHECK((ids[i] == kImEnd) == (all[i] == kImEnd));
  // Both roles.
  const auto users = labels(R"(, "roles_to_train": ["human", "gpt"])");
  const auto user_at = turn("system", "Be").size() + 1 + std::string("user\n").size();
  CHECK(users[user_at] == text("H")[0]);
  CHECK(users[user_at - 1] == kIgnoredLabel);
}

TEST_CASE("chat_template: Llama 3's turns end with a token of their own") {
  const auto rows = rows_of(
      R"({"path": "x", "type": "chat_template", "chat_template": "llama3",
          "field_messages": "conversations", "eot_tokens": ["<|eot_id|>"],
          "message_property_mappings": {"role": "from", "content": "value"}})",
      R"({"conversations": [{"from": "human", "value": " Hi "}, {"from": "gpt", "value": "Ho"}]})",
      plain());
  const auto head = [](const std::string& role) {
    return join({{kHeader}, text(role), {kHeaderEnd}, text("\n\n")});
  };
  const auto front = join({{kBos}, head("user"), text("Hi"), {kEot}, head("assistant")});
  CHECK(rows[0].ids == join({front, text("Ho"), {kEot}}));
  CHECK(rows[0].labels == join({ignored(front.size()), text("Ho"), {kEot}}));
}

TEST_CASE("chat_template: a token shared with the other text's end is not trained") {
  // Axolotl finds the span by exchanging the content for [[dummy_message]]: a content that ends
  // with ] loses it.
  const auto rows = rows_of(R"({"path": "x", "type": "chat_template", "chat_template": "chatml"})",
                            R"({"messages": [{"role": "assistant", "content": "[1]"}]})", plain());
  const auto head = join({{kImStart}, text("assistant\n")});
  CHECK(rows[0].labels == join({ignored(head.size() + 1), text("1"), ignored(3)}));
}

TEST_CASE("chat_template: the data say which turns are trained, and the system turn") {
  const std::string entry =
      R"({"path": "x", "type": "chat_template", "chat_template": "chatml",
          "message_field_training": "train")";
  const std::string row =
      R"({"system": "S", "messages": [{"role": "user", "content": "U", "train": true},
                                      {"role": "assistant", "content": "A", "train": false}]})";
  const auto rows = rows_of(entry + "}", row, plain());
  std::vector<TokenId> trained;
  for (const auto label : rows[0].labels)
    if (label != kIgnoredLabel) trained.push_back(label);
  CHECK(trained == text("U"));
  CHECK(rows[0].ids[1] == text("s")[0]);  // the column became a first turn
  const auto dropped = rows_of(entry + R"(, "drop_system_message": true})", row, plain());
  CHECK(dropped[0].ids[1] == text("u")[0]);
}

TEST_CASE("templates as Axolotl renders them") {
  const auto tokenizer =
      byte_tokenizer({"<b>", "<e>"}, R"({"bos_token": "<b>", "eos_token": "<e>"})");
  using Turns = std::vector<std::pair<const char*, const char*>>;
  const Turns talk = {{"system", "S"}, {"user", " U "}, {"assistant", "A"}};
  const auto rendered = [&](const char* name, const Turns& turns) -> Result<std::string> {
    json::Array messages;
    for (const auto& [role, content] : turns)
      messages.push_back({{"role", role}, {"content", content}});
    const auto own =
        TROUPE_TRY(TokenizerTemplate::parse(axolotl_template_jinja(name), name, tokenizer));
    return TROUPE_TRY(own.render(messages, false, {})).text;
  };
  const auto text_of = [&](const char* name) { return rendered(name, talk).value(); };
  CHECK(text_of("chatml") ==
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U <|im_end|>\n"
        "<|im_start|>assistant\nA<|im_end|>\n");
  CHECK(text_of("llama3") ==
        "<b><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>");
  CHECK(text_of("gemma3") ==
        "<b><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n");
  CHECK(text_of("phi_3") ==
        "<b><|system|>\nS<|end|>\n<|user|>\n U <|end|>\n<|assistant|>\nA<|end|>\n");
  CHECK(text_of("alpaca") == "<b>S\n\n### Instruction:\n U \n\n### Response:\nA<e>");
  CHECK(text_of("qwen_25") == text_of("chatml"));
  CHECK(rendered("qwen_25", {{"user", "U"}}).value() ==
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\nU<|im_end|>\n");
  CHECK(contains(rendered("gemma", talk).status().message(), "System role not supported"));
  CHECK(
      contains(rendered("gemma", {{"assistant", "A"}}).status().message(), "roles must alternate"));
  CHECK(rendered("qwen_25", {{"user", "U"}, {"tool", "1"}, {"tool", "2"}}).value() ==
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n"
        "</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n");
}

TEST_CASE("what an entry or a row lacks is named") {
  CHECK(contains(refusal_of(R"({"path": "x", "type": "alpaca"})", R"({"instruction": "a"})"),
                 "no text in the column 'output'"));
  CHECK(contains(refusal_of(R"({"path": "x", "type": "alpaca", "splt": "train"})"),
                 "unknown member 'splt'"));
  CHECK(contains(refusal_of(R"({"path": "x", "type": "oasst"})"),
                 "unhandled prompt tokenization strategy: oasst."));
  const auto with_template = [](const char* name) {
    return refusal_of(
        fmt::format(R"({{"path": "x", "type": "chat_template", "chat_template": "{}"}})", name));
  };
  CHECK(contains(with_template("chatlm"), "Template 'chatlm' not found."));
  CHECK(contains(with_template("jamba"), "chat_template=jamba is not supported"));
  CHECK(contains(with_template("tokenizer_default"), "tokenizer's chat_template is null"));
  CHECK(contains(with_template("tokenizer_default_fallback_chatml"), "Messages is null"));
  CHECK(contains(refusal_of(R"({"path": "x", "type": "chat_template", "chat_template": "chatml",
                               "train_on_eos": "never"})"),
                 "train_on_eos: 'never' is none of all, turn, last, none"));
}

TEST_CASE("splits and their parts") {
  DataFolder folder;
  folder.write("train.jsonl", "{}").write("test.jsonl", "{}").write("one.jsonl", "{}");
  const auto part = [&](const std::string& split, std::int64_t count) {
    auto entry = source(R"({"path": "x", "type": "alpaca"})");
    entry.path = folder.directory.file("one.jsonl");
    entry.split = split;
    return find_split(folder.files, entry)->range(count);
  };
  using Range = std::pair<std::int64_t, std::int64_t>;
  CHECK(part("train", 10) == Range(0, 10));
  CHECK(part("train[:20%]", 64) == Range(0, 13));
  CHECK(part("train[95%:]", 64) == Range(61, 64));
  CHECK(part("train[2:4]", 10) == Range(2, 4));
  CHECK(part("train[-3:]", 10) == Range(7, 10));
  CHECK(part("train[:100]", 10) == Range(0, 10));
  auto of_folder = source(R"({"path": "x", "type": "alpaca", "split": "test"})");
  of_folder.path = folder.directory.path();
  CHECK(find_split(folder.files, of_folder)->files.paths ==
        std::vector<std::string>{folder.directory.file("test.jsonl")});
  of_folder.split = "dev";
  CHECK(contains(find_split(folder.files, of_folder).status().message(), "no dev split found"));
  of_folder.split = "train[x:]";
  CHECK(contains(find_split(folder.files, of_folder).status().message(), "expected a part as in"));
}

TEST_CASE("ds_type says how files are read, whatever their names say") {
  DataFolder folder;
  folder.write("rows.json", "text,more\na,b\n").write("rows", "{}");
  const auto files_of = [&](const char* name, const std::string& ds_type) {
    auto entry = source(fmt::format(R"({{"path": "x", "type": "pretrain"{}}})", ds_type));
    entry.path = folder.directory.file(name);
    return find_split(folder.files, entry);
  };
  CHECK(files_of("rows.json", "")->files.type == FileType::kJson);
  const auto as_csv = files_of("rows.json", R"(, "ds_type": "csv")");
  REQUIRE(as_csv.ok());
  std::string seen;
  REQUIRE(read_records(folder.files, as_csv->files, -1, [&](const Record& row, const std::string&) {
            seen += json::write(row);
            return Status();
          }).ok());
  CHECK(seen == R"({"text":"a","more":"b"})");
  CHECK_FALSE(files_of("rows", "").ok());
  CHECK(files_of("rows", R"(, "ds_type": "json")")->files.type == FileType::kJson);
  CHECK(contains(refusal_of(R"({"path": "x", "type": "alpaca", "ds_type": "xml"})"),
                 "ds_type: 'xml' is none of json, csv, text"));
}

struct Texts : DataFolder {
  // Ten texts of lengths 1 to 10, with the end token one more.
  Texts() {
    std::string lines;
    for (int i = 1; i <= 10; ++i)
      lines +=
          fmt::format(R"({{"text": "{}"}})", std::string(static_cast<std::size_t>(i), 'a')) + "\n";
    write("t.jsonl", lines);
  }
  DataOptions options() const {
    DataOptions out;
    out.cutoff_len = 64;
    out.rows.datasets = json::parse(fmt::format(R"([{{"path": "{}", "type": "completion"}}])",
                                                directory.file("t.jsonl")),
                                    "d")
                            ->get_array();
    return out;
  }
};

std::vector<std::size_t> lengths_of(const TokenDataset& dataset) {
  std::vector<std::size_t> out;
  for (std::int64_t i = 0; i < dataset.size(); ++i) out.push_back(dataset.ids(i).size() - 1);
  return out;
}

TEST_CASE("joined, shuffled once, the last ones kept for evaluation") {
  Texts folder;
  auto options = folder.options();
  using Lengths = std::vector<std::size_t>;
  auto module = build_dataset(folder.files, options, plain()).value();
  CHECK(lengths_of(module.train) == Lengths{6, 7, 1, 8, 4, 3, 5, 10, 2, 9});
  options.val_size = 0.21;  // ⌈2.1⌉
  module = build_dataset(folder.files, options, plain()).value();
  CHECK(lengths_of(module.train) == Lengths{6, 7, 1, 8, 4, 3, 5});
  CHECK(lengths_of(*module.eval) == Lengths{10, 2, 9});
  options.val_size = 2;
  CHECK(lengths_of(*build_dataset(folder.files, options, plain())->eval) == Lengths{2, 9});
  options.rows.shuffle = false;
  CHECK(lengths_of(*build_dataset(folder.files, options, plain())->eval) == Lengths{9, 10});
  options.val_size = 10;
  CHECK_FALSE(build_dataset(folder.files, options, plain()).ok());
}

TEST_CASE("samples of other lengths") {
  Texts folder;
  auto options = folder.options();
  options.rows.datasets[0].as_object()["type"] = "input_output";
  std::string lines;
  for (int i = 1; i <= 5; ++i)
    lines += fmt::format(R"({{"segments": [{{"label": true, "text": "{}"}}]}})",
                         std::string(static_cast<std::size_t>(i), 'a')) +
             "\n";
  folder.write("t.jsonl", lines);
  options.rows.shuffle = false;
  options.cutoff_len = 3;
  using Lengths = std::vector<std::size_t>;
  auto module = build_dataset(folder.files, options, plain()).value();
  CHECK(lengths_of(module.train) == Lengths{1, 2});  // of 2 and 3 ids
  CHECK(module.train_report.samples_too_long == 2);
  options.rows.excess_length = "truncate";
  CHECK(lengths_of(build_dataset(folder.files, options, plain())->train) == Lengths{1, 2, 2, 2});
  options.rows.excess_length = "raise";
  CHECK(contains(build_dataset(folder.files, options, plain()).status().message(),
                 "a sample has 4 tokens, more than 3"));
}

// Axolotl 0.19's order of work: dropped before the last ones are kept, so that the rest are other
// ones.
TEST_CASE("where samples are packed, those without a label are dropped before any is kept") {
  Texts folder;
  auto options = folder.options();
  options.rows.datasets[0].as_object()["type"] = "input_output";
  std::string lines;
  for (int i = 1; i <= 6; ++i)
    lines += fmt::format(R"({{"segments": [{{"label": {}, "text": "{}"}}]}})", i != 2 && i != 6,
                         std::string(static_cast<std::size_t>(i) + 1, 'a')) +
             "\n";
  folder.write("t.jsonl", lines);
  options.rows.shuffle = false;
  options.val_size = 2;
  using Lengths = std::vector<std::size_t>;
  auto module = build_dataset(folder.files, options, plain()).value();
  CHECK(lengths_of(module.train) == Lengths{1, 2, 3, 4});
  options.rows.drop_unlabelled = true;
  module = build_dataset(folder.files, options, plain()).value();
  CHECK(lengths_of(module.train) == Lengths{1, 3});
  CHECK(lengths_of(*module.eval) == Lengths{4, 5});
  CHECK(module.train_report.samples_unlabelled == 2);
  options.val_size = 4;
  CHECK(contains(build_dataset(folder.files, options, plain()).status().message(),
                 "2 without a label): none is left to train on"));
}

TEST_CASE("a sample's first token, which none predicts, does not count in the loss's mean") {
  Texts folder;
  const auto module = build_dataset(folder.files, folder.options(), plain()).value();
  const std::vector<std::uint32_t> samples = {0, 1};
  CHECK(module.train.ids(0).size() + module.train.ids(1).size() == 15);
  CHECK(label_count(module.train, samples) == 13);
  CHECK(count_target_tokens(collate_ragged(module.train, samples)) == 13);
}

// Rows are encoded by several threads: the first bad one is named all the same.
TEST_CASE("of several bad rows the first is named") {
  Texts folder;
  auto options = folder.options();
  options.rows.datasets[0].as_object()["type"] = "completion";
  std::string lines;
  for (int i = 1; i <= 900; ++i)
    lines += i == 301 || i == 302 || i == 850 ? "{\"text\": 7}\n" : "{\"text\": \"a\"}\n";
  folder.write("t.jsonl", lines);
  const auto message = build_dataset(folder.files, options, plain()).status().message();
  CHECK_MESSAGE(contains(message, "line 301"), message);
}

TEST_CASE("special tokens are those of the vocabulary") {
  Texts folder;
  auto options = folder.options();
  options.rows.special_tokens = {{"eos_token", "<|im_end|>"}};
  auto module = build_dataset(folder.files, options, plain()).value();
  CHECK(module.train.ids(0).back() == kImEnd);
  CHECK(module.tokenizer.eos_id() == kImEnd);
  options.rows.special_tokens = {{"pad_token", "<none>"}};
  CHECK(contains(build_dataset(folder.files, options, plain()).status().message(),
                 "special_tokens.pad_token: '<none>' is no token of the vocabulary"));
  options.rows.special_tokens = {};
  options.rows.tokens = {"<none>"};
  CHECK(contains(build_dataset(folder.files, options, plain()).status().message(), "tokens: "));
}

TEST_CASE("rows are looked at before a run: the entry, file and line are named") {
  Texts folder;
  auto options = folder.options();
  CHECK(look_at_row_datasets(folder.files, options, plain(), 3).ok());
  options.rows.datasets[0].as_object()["field"] = "txt";
  const auto message = look_at_row_datasets(folder.files, options, plain(), 3).message();
  CHECK(contains(message, "data set 0 ("));
  CHECK(contains(message, "t.jsonl line 1"));
  CHECK(contains(message, "no text in the column 'txt'"));
}

}  // namespace
}  // namespace troupe::train::row_dataset_tests
