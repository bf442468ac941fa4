// Texts that users, other programs and the network's tools write.

#include "runtime/base/check.h"
#include "runtime/base/ids.h"
#include "runtime/base/json.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/token.h"
#include "scheduler/policy/resources.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/train/config/memory_files.h"
#include "train/adapters/adapter_targets.h"
#include "train/chaos/fault.h"
#include "train/chaos/point_lines.h"
#include "train/chaos/scenario.h"
#include "train/config/load.h"
#include "train/data/dataset_info.h"
#include "train/data/file_text.h"
#include "train/data/records.h"
#include "train/model/model_config.h"
#include "train/report/format.h"
#include "train/report/run_event.h"
#include "train/report/step_log.h"
#include "train/report/trainer_state.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::tests {
namespace {

using namespace train;

std::vector<FuzzBytes> texts_of(std::initializer_list<std::string_view> texts) {
  std::vector<FuzzBytes> seeds;
  for (const std::string_view text : texts) seeds.push_back(fuzz_bytes(text));
  return seeds;
}
// The same behind a control byte: each text for each of the values below `controls`.
std::vector<FuzzBytes> chosen_texts(std::uint8_t controls,
                                    std::initializer_list<std::string_view> texts) {
  std::vector<FuzzBytes> seeds;
  for (const std::string_view text : texts) {
    for (std::uint8_t control = 0; control < controls; ++control) {
      seeds.push_back(FuzzSeed().u8(control).rest(bytes_of(text)).take());
    }
  }
  return seeds;
}

// --- JSON ----------------------------------------------------------------------------------------

void run_json(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint8_t control = in.u8();
  const json::ParseOptions options{.bytes_max = 1u << 16,
                                   .depth_max = 16,
                                   .relaxed = (control & 1) != 0,
                                   .reject_duplicate_keys = (control & 2) != 0};
  const auto value = json::parse(fuzz_text(in.rest()), "t", options);
  if (!value.ok()) {
    TROUPE_CHECK(value.status().code() == Code::kInvalidArgument);
    return;
  }
  const auto again = json::parse(json::write(*value), "again");
  TROUPE_CHECK(again.ok() && again->kind() == value->kind(), "{}", again.status().to_string());
  TROUPE_CHECK(json::parse(json::write_indented(*value, true), "again").ok());
}

std::vector<FuzzBytes> json_seeds() {
  return chosen_texts(
      4, {R"({"a": [1, -2.5, 1e-5, true, null, "\u00e9\n\ud83d\ude00"], "b": {"a": {}}})",
          "[[[[[[]]]]]]", "// c\n{\"a\": 1, /* d */ \"a\": 2,}", "18446744073709551615", "1e400"});
}

// --- configuration -------------------------------------------------------------------------------

void run_config(std::span<const std::byte> input) {
  FuzzInput in(input);
  const char* name = (in.u8() & 1) != 0 ? "x.json" : "x.yaml";
  auto files = train::tests::good_files();
  LoadOptions options;
  options.check_paths = false;
  const auto loaded =
      load_train_config_text(fuzz_text(in.rest()), name, {}, MapEnvironment(), files, options);
  if (!loaded.ok()) {
    TROUPE_CHECK(!loaded.status().message().empty());
    return;
  }
  const auto value = to_json(loaded->config);
  const auto again = train_config_from_json(value);
  TROUPE_CHECK(again.ok(), "{}", again.status().to_string());
}

std::vector<FuzzBytes> config_seeds() {
  auto seeds = chosen_texts(
      2,
      {train::tests::kGoodYaml,
       R"({"model_name_or_path": "tiny", "stage": "sft", "dataset": ["a", "b"], "template": "qwen",
  "output_dir": "o", "troupe": {"workers": 2, "strategy": "zero3", "mesh": "2,2"}, "lora_rank": 8})",
       "a: &x {b: 1}\nc: *x\n<<: *x\nd: [1, 2, yes, ~, 1e-4]\n", "? [a]\n: b\n", "--- \n...\n"});
  const std::string more = std::string(train::tests::kGoodYaml) +
                           "deepspeed: {zero_optimization: {stage: 2}, bf16: {enabled: auto}}\n"
                           "fsdp: full_shard auto_wrap\n"
                           "fsdp_config: {min_num_params: 1}\n"
                           "troupe: {workers: 2, chaos: kill@step=2, hang_timeout_ms: 3000}\n";
  seeds.push_back(FuzzSeed().u8(0).rest(bytes_of(more)).take());
  return seeds;
}

void run_model_config(std::span<const std::byte> input) {
  const auto config = ModelConfig::parse(fuzz_text(input), "config.json");
  if (!config.ok()) return;
  const auto again = ModelConfig::from_json(config->to_json(), "again");
  TROUPE_CHECK(again.ok(), "{}", again.status().to_string());
}

std::vector<FuzzBytes> model_config_seeds() {
  return texts_of(
      {R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 40,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 5e5,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "eos_token_id": [1, 2]})",
       R"({"model_type": "qwen2", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "use_sliding_window": true,
  "sliding_window": 4, "max_window_layers": 0, "torch_dtype": "bfloat16"})",
       R"({"model_type": "gpt2", "vocab_size": 10, "n_embd": 8, "n_layer": 1, "n_head": 2,
  "n_positions": 16, "activation_function": "gelu_new"})",
       R"({"model_type": "mistral", "head_dim": 4, "layer_types": ["full_attention"]})"});
}

// --- adapters
// -------------------------------------------------------------------------------------

void run_adapter_config(std::span<const std::byte> input) {
  const auto config = AdapterConfig::parse(fuzz_text(input), "adapter_config.json");
  if (!config.ok()) return;
  const std::string text = config->to_text();
  const auto again = AdapterConfig::parse(text, "again");
  TROUPE_CHECK(again.ok() && again->to_text() == text, "{}", text);
  static const ModelConfig model =
      ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 10, "hidden_size": 8,
        "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2})",
                         "config.json")
          .value();
  const auto trainables = lora_trainables(model, *config);
  if (!trainables.ok()) return;
  TROUPE_CHECK(!trainables->lora.empty());
  for (const LoraModule& lora : trainables->lora) TROUPE_CHECK(lora.rank > 0, "{}", lora.rank);
}

std::vector<FuzzBytes> adapter_config_seeds() {
  return texts_of(
      {R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"],
  "modules_to_save": ["embed_tokens"], "rank_pattern": {"layers.1.mlp.up_proj": 2},
  "alpha_pattern": {"^model.layers.0": 3.5}, "use_rslora": true, "of_tomorrow": null})",
       R"({"peft_type": "LORA", "target_modules": ".*\\.(q|v)_proj", "exclude_modules": ["v_proj"],
  "lora_dropout": 0.1, "init_lora_weights": "pissa_niter_4", "bias": "none"})"});
}

// --- tokenizers ----------------------------------------------------------------------------------

void run_tokenizer(std::span<const std::byte> input) {
  const auto tokenizer = Tokenizer::from_text(fuzz_text(input), "", "", "t");
  if (!tokenizer.ok()) return;
  const auto ids = tokenizer->encode("The c\xc3\xa4t, 12 abc\n\xff <e>", true);
  if (!ids.ok()) return;
  (void)tokenizer->decode(*ids, false);
  (void)tokenizer->byte_count(*ids);
}

std::vector<FuzzBytes> tokenizer_seeds() {
  TrainedBpe trained;
  trained.special_tokens = {"<e>"};
  trained.merges = {{"a", "b"}, {"ab", "c"}};
  std::vector<FuzzBytes> seeds{fuzz_bytes(tokenizer_json_of(trained))};
  const auto more =
      texts_of({R"({"added_tokens": [{"id": 3, "content": "<e>", "special": true, "lstrip": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"},
  {"type": "Replace", "pattern": {"String": " "}, "content": "_"}, {"type": "NFC"}]},
  "pre_tokenizer": null, "post_processor": {"type": "TemplateProcessing",
  "single": [{"SpecialToken": {"id": "<e>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
  "pair": [], "special_tokens": {"<e>": {"id": "<e>", "ids": [3], "tokens": ["<e>"]}}},
  "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"},
  "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ",
  "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "byte_fallback": true, "unk_token": "a", "fuse_unk": true,
  "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})",
                R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split",
  "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"},
  "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false,
  "use_regex": false}, {"type": "Digits", "individual_digits": true}]},
  "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "ignore_merges": true,
  "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})",
                R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled",
  "precompiled_charsmap": "BAAAAAAAAABhAA=="}, {"type": "Nmt"}, {"type": "Lowercase"}]},
  "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"},
  "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true,
  "vocab": [["<unk>", 0], ["_", -1], ["a", -2], ["ab", -2.5], ["_c", -3]]}})",
                R"({"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer":
  {"type": "BertPreTokenizer"}, "post_processor": {"type": "BertProcessing", "sep": ["a", 1],
  "cls": ["b", 2]}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
  "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1, "##b": 2, "the": 3}}})"});
  seeds.insert(seeds.end(), more.begin(), more.end());
  return seeds;
}

// A field of a protobuf message: a text, or a small number.
std::string proto_field(int number, std::string_view text) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(text.size())} +
         std::string(text);
}
std::string proto_field(int number, int value) {
  const std::string tag = number < 16 ? std::string{static_cast<char>(number << 3)}
                                      : std::string{static_cast<char>((number << 3 & 0x7f) | 0x80),
                                                    static_cast<char>(number >> 4)};
  return tag + static_cast<char>(value);
}

// tokenizer.model; the first byte says what stands beside it.
void run_sentence_piece(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint8_t control = in.u8() % 4;
  FaultyFileSystem files;
  if (control == 1)
    put_file(files, "d/tokenizer_config.json",
             R"({"tokenizer_class": "T", "legacy": false, "add_eos_token": true, "pad_token": "p",
                 "added_tokens_decoder": {"1": {"content": "<b>", "special": true}}})");
  if (control == 2) put_file(files, "d/added_tokens.json", R"({"<more>": 9, "a": 1})");
  put_file(files, "d/tokenizer.model", fuzz_text(in.rest()));
  const auto tokenizer = Tokenizer::load(files, "d");
  if (!tokenizer.ok()) return;
  const auto ids = tokenizer->encode(" The  c\xc3\xa4t, 12 ab<b>\n\xff", true);
  if (!ids.ok()) return;
  (void)tokenizer->decode(*ids, false);
  TROUPE_CHECK(tokenizer->save(files, "e").ok());
  const auto again = Tokenizer::load(files, "e");
  TROUPE_CHECK(again.ok(), "{}", again.status().to_string());
  TROUPE_CHECK(again->encode(" The  c\xc3\xa4t, 12 ab<b>\n\xff", true).value() == *ids);
}

std::vector<FuzzBytes> sentence_piece_seeds() {
  std::vector<FuzzBytes> seeds;
  for (const int kind : {1, 2}) {
    std::string model;
    const std::tuple<std::string, float, int> pieces[] = {
        {"<unk>", 0.0f, 2},   {"<s>", 0.0f, 3},     {"</s>", 0.0f, 3}, {"<0x0A>", 0.0f, 6},
        {"\u2581", -1.0f, 1}, {"a", -2.0f, 1},      {"b", -3.0f, 1},   {"ab", -4.0f, 1},
        {"12", 0.0f, 4},      {"\u2581a", -5.0f, 5}};
    for (const auto& [text, score, type] : pieces) {
      std::string number(4, '\0');
      std::memcpy(number.data(), &score, 4);
      model += proto_field(1, proto_field(1, text) + "\x15" + number + proto_field(3, type));
    }
    // A map with an empty array: nothing changes.
    const std::string charsmap("\4\0\0\0\0\0\0\0a\0", 10);
    model += proto_field(2, proto_field(3, kind) + proto_field(35, 1) + proto_field(40, 0)) +
             proto_field(3, (kind == 1 ? proto_field(2, charsmap) : "") + proto_field(3, 1) +
                                proto_field(4, kind - 1) + proto_field(5, 1));
    for (const char control : {0, 1, 2}) seeds.push_back(fuzz_bytes(control + model));
  }
  return seeds;
}

// --- data sets -----------------------------------------------------------------------------------

// Whether so much comes out of a compressed file that reading it says nothing of how the time goes
// with the input's size.
bool expands(FileSystem& files, const std::string& path) {
  constexpr std::size_t kExpandedMax = std::size_t{16} << 10;
  auto text = FileText::open(files, path, kExpandedMax);
  while (text.ok() && text->window().size() <= kExpandedMax) {
    const auto more = text->more();
    if (!more.ok() || !*more) break;  // what came before damage counts, too
  }
  return text.ok() && text->window().size() > kExpandedMax;
}

void run_data_files(std::span<const std::byte> input) {
  FuzzInput in(input);
  constexpr const char* kNames[] = {"d/f.json", "d/f.jsonl", "d/f.csv", "d/f.txt",
                                    "d/dataset_info.json"};
  const std::string name = kNames[in.u8() % std::size(kNames)];
  FaultyFileSystem files;
  const std::string text(fuzz_text(in.rest()));
  const bool compressed = text.starts_with("\x1f\x8b") || text.starts_with("\x28\xb5\x2f\xfd");
  put_file(files, name, text);
  if (compressed && expands(files, name)) return;
  if (name.ends_with("info.json")) {
    (void)read_dataset_info(files, "d", {"a"});
    return;
  }
  const auto data = find_data_files(files, name);
  if (!data.ok()) return;
  // The rows do not depend on how much is read at a time.
  const auto read = [&](std::size_t piece_bytes) {
    std::string said;
    const Status done = read_records(
        files, *data, 100,
        [&](const Record& record, const std::string& where) {
          TROUPE_CHECK(!where.empty());
          said += where + json::write(record) + "\n";
          return Status();
        },
        piece_bytes);
    return said + std::string(code_name(done.code()));
  };
  const std::string whole = read(std::size_t{1} << 20), pieces = read(7);
  // Of what is damaged and no rows either, one fault or the other is seen first.
  if (compressed && !whole.ends_with("OK") && !pieces.ends_with("OK")) return;
  TROUPE_CHECK(whole == pieces, "{}\nin pieces: {}", whole, pieces);
}

std::vector<FuzzBytes> data_seeds() {
  return chosen_texts(
      5, {"[{\"text\": \"a\"}, {\"text\": \"b\", \"n\": [1]}]",
          "{\"text\": \"a\"}\n\n{\"text\": \"b\"}", "text,label\n\"a, \"\"b\"\"\nc\",1\r\nd,2\n",
          R"({"a": {"file_name": "a.json", "formatting": "sharegpt", "num_samples": 5,
  "columns": {"messages": "m", "prompt": "p"}, "tags": {"role_tag": "r"}}})"});
}

// --- reports of runs, faults ---------------------------------------------------------------------

void run_reports(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint8_t control = in.u8() % 5;
  const std::string_view text = fuzz_text(in.rest());
  FaultyFileSystem files;
  if (control == 0) {
    const auto event = parse_event_line(text, "e", 1);
    if (!event.ok()) return;
    const auto again = parse_event_line(event_line(*event, event->unix_time_us), "e", 1);
    TROUPE_CHECK(again.ok(), "{}", again.status().to_string());
  } else if (control == 1) {
    const auto state = parse_trainer_state(text, "t");
    if (state.ok()) TROUPE_CHECK(parse_trainer_state(trainer_state_text(*state), "t").ok());
  } else if (control == 2) {
    const auto value = parse_python_json(text, "p");
    if (value.ok()) TROUPE_CHECK(parse_python_json(python_json(*value), "p").ok());
  } else if (control == 3) {
    put_file(files, "s", text);
    (void)read_steps(files, "s");
  } else {
    put_file(files, "e", text);
    (void)read_events(files, "e");
  }
}

std::vector<FuzzBytes> report_seeds() {
  RunEvent event;
  event.event = events::kRecovered;
  event.cause = "killed by signal 9";
  event.waited_for_by = {1, 2};
  event.detected_after_ms = 1.5;
  StepRecord step;
  step.step = 5;
  step.loss = 2.5;
  TrainerState state;
  state.global_step = 5;
  state.log_history.push_back(train_log(0.5, 1, 1e-4, 2.5, 5));
  return chosen_texts(
      5, {event_line(event, 1'700'000'000'000'000), step_line(step) + "\n" + step_line(step) + "\n",
          trainer_state_text(state), "{\"a\": NaN, \"b\": [-Infinity, 1e5]}"});
}

void run_faults(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint8_t control = in.u8() % 3;
  const std::string_view text = fuzz_text(in.rest());
  if (control == 0) {
    const auto faults = parse_faults(text);
    if (!faults.ok()) return;
    const auto again = parse_faults(faults_text(*faults));
    TROUPE_CHECK(again.ok() && *again == *faults, "{}", again.status().to_string());
  } else if (control == 1) {
    const auto points = read_points(text);
    if (points.ok()) (void)faults_at_points(*points, {}, 0);
  } else {
    const auto document = parse_document(text, "s.yaml");
    if (document.ok()) (void)scenario_from_json(document->values);
  }
}

std::vector<FuzzBytes> fault_seeds() {
  return chosen_texts(
      3, {"kill@step=40,rank=1,phase=forward;stop@every=1.5;torn_write@file=model,then=fail",
          "nan@step=2,unit=1;delay@delay_ms=20,jitter_ms=3,for_ms=10;kill_daemon@node=1,rate=6",
          "{\"kind\":\"collective\",\"step\":2,\"stage\":\"backward\",\"unit\":-1,\"operation\":"
          "\"all_reduce\",\"number\":7}\n",
          "seed: 7\nfaults:\n  - kill@step=4,rank=1\n  - fault: stop\n    every: 10\n"
          "cluster: loopback\nnodes: 3\n"});
}

// --- small texts ---------------------------------------------------------------------------------

void run_texts(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint8_t control = in.u8() % 5;
  const std::string_view text = fuzz_text(in.rest());
  if (control == 0) {
    const auto token = net::parse_token(text, "t");
    if (token.ok())
      TROUPE_CHECK(net::parse_token(net::token_text(*token).value(), "t").value() == *token);
  } else if (control == 1) {
    (void)net::parse_ipv4_routes(text);
    (void)net::parse_ipv6_routes(text);
  } else if (control == 2) {
    const auto resource = scheduler::parse_resource(text);
    if (!resource.ok()) return;
    TROUPE_CHECK(resource->second >= 0);
    (void)scheduler::format_amount(resource->first, resource->second);
  } else if (control == 3) {
    const auto id = ActorId::parse(text);
    if (id.ok()) TROUPE_CHECK(ActorId::parse(id->to_string()).value() == *id);
  } else {
    net::NetworkState state;
    for (int i = 0; i < 8 && !in.empty(); ++i) {
      const std::string name(fuzz_text(in.piece()));
      state.addresses.push_back({name, std::string(fuzz_text(in.piece())), i % 2 == 1});
      state.default_routes.push_back({name, in.u8(), i % 2 == 1});
    }
    const auto choice = net::choose_address(state);
    if (choice.ok()) TROUPE_CHECK(!choice->notice().empty());
  }
}

std::vector<FuzzBytes> text_seeds() {
  auto seeds = chosen_texts(
      4, {"5a5b5c5d5e5f60616263646566676869\n", "0123456789abcdef0123456789abcdef", "GPU=0.5",
          "memory=4Gi",
          "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
          "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n",
          "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
          "fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n"});
  FuzzSeed interfaces;
  interfaces.u8(4);
  for (const std::string_view text : {"eth0", "10.0.0.2"}) interfaces.piece(bytes_of(text));
  interfaces.u8(100);
  for (const std::string_view text : {"docker0", "fe80::1"}) interfaces.piece(bytes_of(text));
  seeds.push_back(interfaces.take());
  return seeds;
}

}  // namespace

constinit const FuzzTarget kJsonTarget{"json", "JSON of configurations", 4096, &run_json,
                                       &json_seeds};
constinit const FuzzTarget kConfigTarget{"config", "a training's configuration, YAML and JSON",
                                         4096, &run_config, &config_seeds};
constinit const FuzzTarget kModelConfigTarget{"model_config", "config.json of a model", 4096,
                                              &run_model_config, &model_config_seeds};
constinit const FuzzTarget kAdapterConfigTarget{"adapter_config",
                                                "adapter_config.json, and what it trains", 4096,
                                                &run_adapter_config, &adapter_config_seeds};
constinit const FuzzTarget kTokenizerTarget{"tokenizer", "tokenizer.json", 8192, &run_tokenizer,
                                            &tokenizer_seeds};
constinit const FuzzTarget kSentencePieceTarget{"sentence_piece", "SentencePiece's tokenizer.model",
                                                4096, &run_sentence_piece, &sentence_piece_seeds};
constinit const FuzzTarget kDataFilesTarget{"data_files", "data sets and dataset_info.json", 4096,
                                            &run_data_files, &data_seeds};
constinit const FuzzTarget kReportsTarget{"reports", "what runs write about themselves", 4096,
                                          &run_reports, &report_seeds};
constinit const FuzzTarget kFaultsTarget{"faults", "faults, recorded points, scenarios", 4096,
                                         &run_faults, &fault_seeds};
constinit const FuzzTarget kTextsTarget{"texts", "tokens, routes, resources, ids", 2048, &run_texts,
                                        &text_seeds};

}  // namespace troupe::tests
