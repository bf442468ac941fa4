// Wrong keys and damaged files: each a failure that says what and where, never a crash.

#include <doctest/doctest.h>

#include "tests/train/data/support.h"

namespace troupe::train {
namespace {

constexpr auto kBadInputStage = DataOptions::Stage::kSupervised;

Tokenizer tokenizer() {
  return byte_tokenizer({"<e>", "<p>"}, R"({"eos_token": "<e>", "pad_token": "<p>"})");
}

std::string failure(DataFolder& folder, const DataOptions& options) {
  const auto result = build_dataset(folder.files, options, tokenizer());
  CHECK_FALSE(result.ok());
  return result.status().to_string();
}

bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE(text);
  return found;
}

TEST_CASE("data keys that contradict each other") {
  DataOptions options;
  CHECK(check_data_options(options).message() == "Please specify dataset for training.");
  options.dataset = {"x"};
  CHECK(check_data_options(options).ok());
  auto neat = options;
  neat.stage = DataOptions::Stage::kPretrain;
  neat.neat_packing = true;
  CHECK(check_data_options(neat).message() == "`neat_packing` cannot be set as True except SFT.");
  auto both = options;
  both.train_on_prompt = both.mask_history = true;
  CHECK_FALSE(check_data_options(both).ok());
  auto val = options;
  val.val_size = 0.1;
  val.eval_dataset = {"y"};
  CHECK_FALSE(check_data_options(val).ok());
  auto mix = options;
  mix.mix_strategy = "shuffle";
  CHECK_FALSE(check_data_options(mix).ok());
  auto probs = options;
  probs.interleave_probs = {"0.5", "0.5"};
  CHECK(check_data_options(probs).code() == Code::kInvalidArgument);
  probs.mix_strategy = "interleave_over";
  CHECK(check_data_options(probs).ok());
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"0.5", "0.4"}, {"1", "0"}, {"0.5", "half"}, {"0.5", "nan"}}) {
    probs.interleave_probs = wrong;
    CHECK(check_data_options(probs).code() == Code::kInvalidArgument);
  }
  for (const std::int64_t cutoff : {0, -1, 1 << 30}) {
    auto wrong = options;
    wrong.cutoff_len = cutoff;
    CHECK_FALSE(check_data_options(wrong).ok());
  }
}

TEST_CASE("dataset_info.json") {
  DataFolder folder;
  auto options = folder.options(kBadInputStage, {"a"});
  CHECK(has(failure(folder, options), "dataset_info.json"));
  folder.write("dataset_info.json", "{\n \"a\": ");
  CHECK(has(failure(folder, options), "dataset_info.json:2:"));
  folder.write("dataset_info.json", R"({"b": {"file_name": "a.json"}})");
  CHECK(has(failure(folder, options), "Undefined dataset a in dataset_info.json."));
  folder.write("dataset_info.json", R"({"a": {"hf_hub_url": "x/y"}})");
  CHECK(has(failure(folder, options), "download it and give file_name"));
  folder.write("dataset_info.json", R"({"a": {"file_name": "a.json", "ranking": true}})");
  CHECK(has(failure(folder, options),
            "The dataset is not applicable in the current training stage."));
  folder.write("dataset_info.json", R"({"a": {"file_name": "a.json", "formatting": "chatml"}})");
  CHECK(has(failure(folder, options), "none of alpaca, sharegpt, openai"));
  folder.write("dataset_info.json", R"({"a": {"file_name": "a.json"}})");
  CHECK(has(failure(folder, options), "not found"));
  for (const char* text : {"[]", "1", "{\"a\": 1}", "{\"a\": {}}", "{\"a\": {\"file_name\": 7}}",
                           "{\"a\": {\"file_name\": \"a.json\", \"columns\": []}}",
                           "{\"a\": {\"file_name\": \"a.json\", \"columns\": {\"images\": \"i\"}}}",
                           "{\"a\": {\"file_name\": \"a.json\", \"tags\": {\"role_tag\": 1}}}",
                           "{\"a\": {\"file_name\": \"a.json\", \"num_samples\": 0}}"}) {
    folder.write("dataset_info.json", text);
    CAPTURE(text);
    CHECK_FALSE(build_dataset(folder.files, options, tokenizer()).ok());
  }
}

TEST_CASE("entries that do not say how their rows are read") {
  DataFolder folder;
  auto options = folder.options(kBadInputStage, {"m"});
  folder.write("dataset_info.json", R"({
    "m": {"file_name": "a.json", "formatting": "sharegpt", "columns": {"messages": "talk"}},
    "t": {"file_name": "a.json", "formatting": "sharegpt", "tags": {"user_tag": "user"}},
    "a": {"file_name": "a.json"}})");
  folder.write("a.json", R"([{"conversations": [{"from": "human", "value": "x"}]}])");
  CHECK(has(failure(folder, options),
            "no column 'talk', which must be a list of messages; it has: conversations"));
  options.dataset = {"t"};
  CHECK(has(failure(folder, options), "the entry's tags name no role_tag"));
  options.dataset = {"org/name"};
  CHECK(has(failure(folder, options), "It has m, t, a; one of a hub by its name alone is"));
}

TEST_CASE("data files") {
  DataFolder folder;
  folder.write("dataset_info.json", R"({"a": {"file_name": "a.json"}, "d": {"file_name": "d"},
    "c": {"file_name": "c.csv"}, "p": {"file_name": "p.parquet"}, "x": {"file_name": "x.exe"}})");
  auto options = folder.options(kBadInputStage, {"a"});
  folder.write("a.json", "[{\"instruction\": \"x\",\n \"output\": }]");
  CHECK(has(failure(folder, options), "a.json:2:"));
  folder.write("a.json", "{\"instruction\": \"x\", \"output\": \"y\"}\n{\"instr");
  CHECK(has(failure(folder, options), "a.json:2:8: not valid JSON"));
  folder.write("a.json", "[1]");
  CHECK(has(failure(folder, options), "item 0"));
  folder.write("a.json", "[{\"instruction\": 7, \"output\": \"y\"}]");
  CHECK(has(failure(folder, options), "the column 'instruction' must be a string"));
  folder.write("a.json", "[{\"question\": \"x\", \"answer\": \"y\"}]");
  CHECK(has(failure(folder, options), "no row has the column 'instruction'"));
  for (const char* empty : {"", "[]", "\n", "[{\"instruction\": \"x\"}]"}) {
    folder.write("a.json", empty);
    CAPTURE(empty);
    const bool has_row = std::string(empty).size() > 2;
    CHECK(has(
        failure(folder, options),
        has_row ? "formatting, columns and tags of its entry in dataset_info.json say how rows are"
                : "no row is in"));
  }
  options.dataset = {"p"};
  folder.write("p.parquet", "PAR1");
  // Whether Arrow's library is here, or not.
  CHECK((has(failure(folder, options), "tools/setup --arrow") ||
         has(failure(folder, options), "p.parquet: it cannot be read as a parquet file")));
  options.dataset = {"x"};
  folder.write("x.exe", "x");
  CHECK(has(failure(folder, options), "Allowed file types"));

  REQUIRE(folder.files.create_directories(folder.directory.file("d")).ok());
  options.dataset = {"d"};
  CHECK(has(failure(folder, options), "no files"));
  folder.write("d/1.json", "[]").write("d/2.txt", "x");
  CHECK(has(failure(folder, options), "File types should be identical."));

  options.dataset = {"c"};
  folder.write("c.csv", "instruction,input,output\nq,,\"a, \"\"b\"\"\nc\"\nx,y\n");
  CHECK(has(failure(folder, options), "c.csv line 4: 2 fields, the header has 3"));
  folder.write("c.csv", "instruction,output\nq,\"open\n");
  CHECK(has(failure(folder, options), "not closed"));
  folder.write("c.csv", "instruction,input,output\r\nq,,\"a, \"\"b\"\"\nc\"\r\n");
  const auto module = build_dataset(folder.files, options, tokenizer()).value();
  CHECK(module.tokenizer.decode(module.train.ids(0), true) == "qa, \"b\"\nc");
}

TEST_CASE("samples whose answers are cut off, all of them") {
  DataFolder folder;
  folder.write("dataset_info.json", R"({"a": {"file_name": "a.json"}, "b": {"file_name": "a.json",
    "colums": {}}})");
  folder.write("a.json",
               R"([{"instruction": "a question of forty letters or even more", "output": "y"}])");
  auto options = folder.options(kBadInputStage, {"a"});
  options.template_name = "alpaca";
  CHECK(build_dataset(folder.files, options, tokenizer()).ok());
  options.cutoff_len = 4;
  CHECK(has(failure(folder, options), "no token of 1 sample is trained on with cutoff_len=4"));
  options.dataset = {"b"};
  CHECK(has(failure(folder, options), "'colums' is no key of an entry; did you mean 'columns'?"));
}

TEST_CASE("templates that do not fit the tokenizer") {
  DataFolder folder;
  folder.write("dataset_info.json", R"({"a": {"file_name": "a.json"}})");
  folder.write("a.json", R"([{"instruction": "x", "output": "y"}])");
  auto options = folder.options(kBadInputStage, {"a"});
  options.template_name = "qwen";
  CHECK(has(failure(folder, options), "template qwen needs '<|im_end|>'"));
  options.template_name = "unheard_of";
  CHECK(has(failure(folder, options), "Template unheard_of does not exist."));
  options.template_name.reset();
  CHECK(build_dataset(folder.files, options, tokenizer()).ok());
  const auto jinja =
      byte_tokenizer({"<e>"}, R"({"eos_token": "<e>", "chat_template": "{% if %}"})");
  CHECK(has(build_dataset(folder.files, options, jinja).status().message(), "chat_template"));
  const auto endless = byte_tokenizer({"<x>"}, "{}");
  CHECK(has(build_dataset(folder.files, options, endless).status().message(), "<|endoftext|>"));
  folder.write("a.json", R"([{"instruction": "x", "output": "y"}])");
  folder.write("dataset_info.json",
               R"({"a": {"file_name": "a.json", "columns": {"prompt": "instruction",
                   "response": "output", "tools": "tools"}}})");
  folder.write("a.json", R"([{"instruction": "x", "output": "y", "tools": "[{}]"}])");
  CHECK(has(failure(folder, options), "Invalid JSON format in tool description: [{}]"));
}

TEST_CASE("compressed files, and JSON over several lines") {
  // gzip of {"instruction": "x", "output": "y"} and a line end.
  const unsigned char kPacked[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xff, 0xab,
                                   0x56, 0xca, 0xcc, 0x2b, 0x2e, 0x29, 0x2a, 0x4d, 0x2e, 0xc9, 0xcc,
                                   0xcf, 0x53, 0xb2, 0x52, 0x50, 0xaa, 0x50, 0xd2, 0x51, 0x50, 0xca,
                                   0x2f, 0x2d, 0x29, 0x28, 0x2d, 0x01, 0x71, 0x2b, 0x95, 0x6a, 0xb9,
                                   0x00, 0x32, 0x30, 0xf8, 0x82, 0x24, 0x00, 0x00, 0x00};
  const std::string packed(reinterpret_cast<const char*>(kPacked), sizeof kPacked);
  DataFolder folder;
  folder.write("dataset_info.json",
               R"({"a": {"file_name": "a.jsonl.gz"}, "p": {"file_name": "p.json"}})");
  const auto rows = [&](const std::string& content) {
    folder.write("a.jsonl.gz", content);
    const auto made =
        build_dataset(folder.files, folder.options(kBadInputStage, {"a"}), tokenizer());
    REQUIRE_MESSAGE(made.ok(), made.status().to_string());
    return made->train.size();
  };
  CHECK(rows(packed) == 1);
  CHECK(rows(packed + packed) == 2);                           // joined by cat
  CHECK(rows(R"({"instruction": "x", "output": "y"})") == 1);  // what is in it decides
  // The same by zstd.
  const unsigned char kZstd[] = {0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x21, 0x01, 0x00, 0x7b,
                                 0x22, 0x69, 0x6e, 0x73, 0x74, 0x72, 0x75, 0x63, 0x74, 0x69,
                                 0x6f, 0x6e, 0x22, 0x3a, 0x20, 0x22, 0x78, 0x22, 0x2c, 0x20,
                                 0x22, 0x6f, 0x75, 0x74, 0x70, 0x75, 0x74, 0x22, 0x3a, 0x20,
                                 0x22, 0x79, 0x22, 0x7d, 0x0a, 0x20, 0x2d, 0xb9, 0x61};
  const std::string zstd(reinterpret_cast<const char*>(kZstd), sizeof kZstd);
  CHECK(rows(zstd) == 1);
  CHECK(rows(zstd + zstd) == 2);
  const auto options = folder.options(kBadInputStage, {"a"});
  auto damaged = packed;
  damaged[30] ^= 0x55;
  for (const auto& [content, said] : {std::pair(damaged, "damaged gzip data"),
                                      {packed.substr(0, 40), "the gzip data end in the middle"},
                                      {"\x28\xb5\x2f\xfd and so on", "damaged zstd data"},
                                      {zstd.substr(0, 20), "the zstd data end in the middle"},
                                      {"BZh9", "bzip2 -d"}}) {
    folder.write("a.jsonl.gz", content);
    CHECK(has(failure(folder, options), said));
  }
  folder.write("p.json", "{\n  \"instruction\": \"x\",\n  \"output\": \"y\"\n}\n");
  const auto pretty =
      build_dataset(folder.files, folder.options(kBadInputStage, {"p"}), tokenizer());
  CHECK(pretty.value().train.size() == 1);
}

TEST_CASE("truncated and garbled data files never crash") {
  DataFolder folder;
  folder.write("dataset_info.json",
               R"({"a": {"file_name": "a.json"}, "c": {"file_name": "c.csv"},
    "s": {"file_name": "s.json", "formatting": "sharegpt"}})");
  const std::string texts[] = {
      R"([{"instruction": "ab", "input": "c", "output": "d"}, {"instruction": "é", "output": "f"}])",
      R"([{"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]}])",
      "instruction,input,output\n\"a\"\"b\",c,d\ne,f,\"g\nh\"\n"};
  const char* names[] = {"a", "s", "c"};
  const char* paths[] = {"a.json", "s.json", "c.csv"};
  std::uint32_t noise = 1;
  for (int kind = 0; kind < 3; ++kind) {
    const auto options = folder.options(kBadInputStage, {names[kind]});
    for (std::size_t cut = 0; cut <= texts[kind].size(); ++cut) {
      auto garbled = texts[kind];
      garbled[cut % garbled.size()] = static_cast<char>(noise = noise * 1664525 + 1013904223);
      for (const auto& text : {texts[kind].substr(0, cut), garbled}) {
        PosixFileSystem().create(folder.directory.file(paths[kind])).value()->append(text).ok();
        const auto result = build_dataset(folder.files, options, tokenizer());
        if (!result.ok()) CHECK_FALSE(result.status().message().empty());
      }
    }
  }
}

}  // namespace
}  // namespace troupe::train
