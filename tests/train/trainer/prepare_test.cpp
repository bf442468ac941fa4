#include "train/trainer/prepare.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/test_data.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/safetensors.h"
#include "train/trainer/run_samples.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {
namespace {

// A folder with a model's configuration, whose tokenizer is trained, and a data set of ten rows.
struct Folder {
  Folder() {
    write("dataset_info.json",
          R"({"d": {"file_name": "d.jsonl", "columns": {"prompt": "text"}},
              "e": {"file_name": "e.jsonl", "columns": {"prompt": "text"}}})");
    std::string rows;
    for (int i = 0; i < 10; ++i) rows += fmt::format("{{\"text\": \"row number {} of it\"}}\n", i);
    write("d.jsonl", rows);
    write("e.jsonl", "{\"text\": \"to evaluate on\"}\n{\"text\": \"and another\"}\n");
    write("model/config.json",
          R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
              "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 300})");
    config.model.model_name_or_path = directory.file("model");
    config.model.train_from_scratch = true;
    config.method.stage = TrainingStage::kPretrain;
    config.data.dataset = {"d"};
    config.data.dataset_dir = directory.path();
    config.training.output_dir = directory.file("out");
    config.troupe.train_tokenizer = 280;
  }
  void write(const std::string& name, const std::string& text) {
    REQUIRE(files.create_directories(directory.file("model")).ok());
    REQUIRE(write_file_atomically(files, directory.file(name), text).ok());
  }
  Result<PreparedRun> prepare() {
    return prepare_run(files, config, [](const std::string&) {});
  }
  troupe::tests::TemporaryDirectory directory;
  PosixFileSystem files;
  TrainConfig config;
};

TEST_CASE("an evaluation data set travels with the bundle") {
  Folder folder;
  folder.config.evaluation.eval_dataset = {"e"};
  folder.config.evaluation.strategy = IntervalStrategy::kSteps;
  const auto run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(run->bundle.dataset.size() == 10);
  REQUIRE(run->bundle.eval);
  CHECK(run->bundle.eval->size() == 2);
  auto arrived = decode_bundle(encode_bundle(run->bundle)).value();
  REQUIRE(map_samples(folder.files, arrived).ok());
  REQUIRE(arrived.eval);
  CHECK(arrived.eval->size() == 2);
  CHECK(std::ranges::equal(arrived.eval->ids(1), run->bundle.eval->ids(1)));
  CHECK(arrived.dataset.size() == 10);
  CHECK(arrived.eval_parts.empty());
  folder.config.evaluation.on_each_dataset = true;
  folder.config.training.overwrite_output_dir = true;
  const auto apart = folder.prepare();
  REQUIRE_MESSAGE(apart.ok(), apart.status().to_string());
  CHECK(decode_bundle(encode_bundle(apart->bundle)).value().eval_parts ==
        std::vector<EvalPart>{{"e", 2}});
}

TEST_CASE("rows beyond the positions that a model knows are told, with the key that cuts them") {
  Folder folder;
  const auto told = [&] {
    const auto run = folder.prepare();
    REQUIRE_MESSAGE(run.ok(), run.status().to_string());
    return std::ranges::any_of(run->notes, [](const std::string& note) {
      return note.find("is 4: it may not") != std::string::npos &&
             note.find("cutoff_len: 4") != std::string::npos;
    });
  };
  CHECK_FALSE(told());
  folder.write("model/config.json",
               R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
                   "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 300,
                   "max_position_embeddings": 4})");
  folder.config.data.cutoff_len = 24;
  CHECK(told());
  folder.config.data.cutoff_len = 4;
  CHECK_FALSE(told());
}

TEST_CASE("val_size takes rows from training; without evaluation nothing to evaluate on travels") {
  Folder folder;
  folder.config.evaluation.val_size = 0.25;  // ⌈2.5⌉ rows
  auto run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(run->bundle.dataset.size() == 7);
  CHECK_FALSE(run->bundle.eval);
  CHECK_FALSE(decode_bundle(encode_bundle(run->bundle)).value().eval);
  folder.config.evaluation.do_eval = true;
  folder.config.training.overwrite_output_dir = true;
  run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(run->bundle.dataset.size() == 7);
  CHECK(run->bundle.eval->size() == 3);
}

TEST_CASE("held_out stays what it was, beside an evaluation data set too, not beside val_size") {
  Folder folder;
  folder.config.troupe.held_out = 0.25;
  folder.config.training.overwrite_output_dir = true;
  auto run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(run->held_out->size() == 3);
  CHECK_FALSE(run->bundle.eval);
  folder.config.evaluation.eval_dataset = {"e"};
  folder.config.evaluation.on_start = true;
  run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(run->held_out->size() == 3);
  CHECK(run->bundle.eval->size() == 2);
  CHECK(run->bundle.dataset.size() == 7);
  folder.config.evaluation.eval_dataset.clear();
  CHECK(folder.prepare().status().message().find("eval_dataset be provided") != std::string::npos);
  folder.config.evaluation.val_size = 2;
  CHECK(folder.prepare().status().message().find("both keep data from training") !=
        std::string::npos);
}

TEST_CASE("a tokenizer is trained on what the model is trained on, not on what is held out") {
  Folder folder;
  // Every row repeats a letter of its own, so that whoever saw it has a token for two of them.
  std::string rows;
  for (char letter = 'a'; letter < 'a' + 10; ++letter)
    rows += fmt::format("{{\"text\": \"{}\"}}\n", std::string(40, letter));
  folder.write("d.jsonl", rows);
  folder.write("model/config.json",
               R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
                   "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 400})");
  folder.config.troupe.train_tokenizer = 380;
  folder.config.troupe.held_out = 3;
  const auto run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  REQUIRE(run->held_out->size() == 3);
  std::string held_out;
  for (std::int64_t i = 0; i < 3; ++i)
    held_out += run->tokenizer.decode(run->held_out->ids(i), true).front();
  for (char letter = 'a'; letter < 'a' + 10; ++letter) {
    CAPTURE(letter);
    const auto ids = run->tokenizer.encode(std::string(2, letter), false).value();
    CHECK(ids.size() == (held_out.find(letter) == std::string::npos ? 1 : 2));
  }
}

TEST_CASE("tokens are added, and the embedding grows") {
  Folder folder;
  auto trained = folder.prepare();  // for its tokenizer
  REQUIRE_MESSAGE(trained.ok(), trained.status().to_string());
  REQUIRE(trained->tokenizer.save(folder.files, folder.directory.file("model")).ok());
  auto& model = folder.config.model;
  folder.config.troupe.train_tokenizer.reset();
  model.split_special_tokens = true;
  const auto before = trained->tokenizer.vocab_size();
  folder.write("model/config.json",
               fmt::format(
                   R"({{"model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
          "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": {}}})",
                   before));
  const auto prepared = [&] {
    auto run = folder.prepare();
    REQUIRE_MESSAGE(run.ok(), run.status().to_string());
    return std::move(*run);
  };
  CHECK(prepared().bundle.model.vocab_size == before);
  model.add_tokens = {" <new> ", "row"};
  folder.write("tokens.yaml", "<told>: a row number\n<other>: of it\n");
  model.new_special_tokens_config = folder.directory.file("tokens.yaml");
  model.init_special_tokens = "desc_init";
  const auto run = prepared();
  const auto added = run.tokenizer.vocab_size() - before;
  CHECK(added >= 3);
  CHECK(run.bundle.model.vocab_size == (before + added + 63) / 64 * 64);
  CHECK_FALSE(run.bundle.grown);  // random weights: all rows are new
  CHECK(run.tokenizer.is_special(*run.tokenizer.token_id("<told>")));
  CHECK(run.tokenizer.encode("<new>", false).value() ==
        std::vector<TokenId>{static_cast<TokenId>(before)});
  CHECK(run.tokenizer.encode("<told>", false).value().size() > 1);
  const auto config = json::parse(run.bundle.companions.at("config.json"), "config.json").value();
  CHECK(json::find_integer(config, "vocab_size") == run.bundle.model.vocab_size);
  CHECK(run.bundle.companions.at("tokenizer.json").find("<other>") != std::string::npos);

  folder.write("tokens.yaml", "<told>: 3\n");
  CHECK(folder.prepare().status().message().find("token: description") != std::string::npos);
  model.new_special_tokens_config.reset();
  model.add_tokens = {""};
  CHECK_FALSE(folder.prepare().ok());
  model.add_tokens = {"<new>"};
  model.quantization_bit = 4;
  CHECK(folder.prepare().status().message() ==
        "Cannot resize embedding layers of a quantized model.");
}

TEST_CASE("a run writes over no model that it, or somebody else, reads") {
  Folder folder;
  const TrainConfig good = folder.config;
  const auto refusal = [&](const std::function<void(TrainConfig&)>& change) {
    folder.config = good;
    change(folder.config);
    return folder.prepare().status().message();
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string model = good.model.model_name_or_path;
  CHECK(has(refusal([&](auto& c) { c.training.output_dir = model + "/../model/"; }),
            "output_dir is the folder of model_name_or_path"));
  CHECK(has(refusal([&](auto& c) {
              c.training.output_dir = folder.directory.file("own");
              c.training.overwrite_output_dir = true;
              c.model.model_name_or_path = folder.directory.file("own/checkpoint-4");
            }),
            "overwrite_output_dir removes those"));
  CHECK(
      has(refusal([&](auto& c) { c.training.output_dir = "~/out"; }), "write the home directory"));
  folder.write("file", "");
  REQUIRE(folder.files.create_directories(folder.directory.file("trained")).ok());
  folder.write("trained/model.safetensors", "");
  const std::pair<std::string, const char*> seconds[] = {
      {"", "it names no folder"},
      {folder.directory.file("file"), "it is no folder"},
      {good.training.output_dir, "it is output_dir"},
      {folder.directory.file("trained"), "it holds a model"}};
  for (const auto& [second, why] : seconds) {
    CAPTURE(second);
    CHECK(has(refusal([&](auto& c) { c.troupe.second_output_dir = second; }), why));
  }
}

TEST_CASE(
    "weights that config.json does not fit, and a cache in a file's place, are found at once") {
  Folder folder;
  folder.config.model.train_from_scratch = false;
  const std::vector<std::byte> element(4);
  REQUIRE(write_safetensors(folder.files, folder.directory.file("model/model.safetensors"),
                            {{"a", DType::kF32, {1}, element}}, {})
              .ok());
  folder.config.data.tokenized_path = folder.directory.file("d.jsonl");
  std::vector<ContentProblem> problems;
  (void)read_contents(folder.files, folder.config, problems);
  const auto told = [&](std::string_view key, std::string_view words) {
    return std::ranges::any_of(problems, [&](const ContentProblem& problem) {
      return problem.key == key && problem.status.message().find(words) != std::string_view::npos;
    });
  };
  CHECK(told("model_name_or_path", "the weights do not fit the model's configuration"));
  CHECK(told("tokenized_path", "is there and is no folder"));
  CHECK(folder.files.exists(folder.directory.file("d.jsonl")));
}

TEST_CASE("what is saved says in which type: the base's own is no reason") {
  Folder folder;
  folder.write("model/config.json",
               R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
                   "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 300,
                   "torch_dtype": "bfloat16"})");
  const auto dtype_said = [&] {
    const auto run = folder.prepare();
    REQUIRE_MESSAGE(run.ok(), run.status().to_string());
    const auto config = json::parse(run->bundle.companions.at("config.json"), "config.json");
    return json::find_string(*config, "torch_dtype").value_or("");
  };
  CHECK(dtype_said() == "float32");
  folder.config.model.state = Precision::kBfloat16;
  CHECK(dtype_said() == "bfloat16");
}

// A checkpoint that says of its samples what `run` does.
std::string checkpoint_of(Folder& folder, const PreparedRun& run) {
  const std::string path = folder.directory.file("checkpoint-3");
  REQUIRE(folder.files.create_directories(path).ok());
  folder.write("checkpoint-3/config.json", "{}");
  folder.write("checkpoint-3/sample_stream.json", run.bundle.sample_stream);
  const std::vector<std::byte> element(4);
  REQUIRE(write_safetensors(folder.files, path + "/model.safetensors",
                            {{"a", DType::kF32, {1}, element}}, {})
              .ok());
  return path;
}

TEST_CASE("a checkpoint is gone on from with its own samples only, unless a key allows others") {
  Folder folder;
  const auto first = folder.prepare();
  REQUIRE_MESSAGE(first.ok(), first.status().to_string());
  const std::string checkpoint = checkpoint_of(folder, *first);
  folder.config.training.resume_from_checkpoint = {.mode = ResumeFrom::Mode::kPath,
                                                   .path = checkpoint};
  const TrainConfig same = folder.config;
  const auto refusal = [&] { return folder.prepare().status(); };
  CHECK_MESSAGE(refusal().ok(), refusal().to_string());
  // What trains the same samples in other steps is no difference.
  folder.config.training.per_device_train_batch_size = 3;
  folder.config.training.learning_rate = 1;
  folder.config.troupe.workers = 7;
  CHECK_MESSAGE(refusal().ok(), refusal().to_string());

  folder.config = same;
  folder.config.training.seed = 43;
  folder.config.data.cutoff_len = 8;
  CHECK(refusal().code() == Code::kFailedPrecondition);
  std::string text = refusal().message();
  CHECK_MESSAGE(text.starts_with(checkpoint + " was trained on other samples"), text);
  CHECK_MESSAGE(text.find("cutoff_len was 2048 and is 8") != std::string::npos, text);
  CHECK_MESSAGE(text.find("data_seed (else seed) was 42 and is 43") != std::string::npos, text);
  CHECK_MESSAGE(text.find("troupe.allow_data_change=true") != std::string::npos, text);
  // The refused run has not replaced the token cache of the run that it would have gone on with.
  const TrainConfig other = std::exchange(folder.config, same);
  const auto before = folder.prepare();
  REQUIRE(before.ok());
  CHECK(std::ranges::any_of(
      before->notes, [](const std::string& note) { return note.starts_with("tokenised before"); }));
  folder.config = other;
  folder.config.troupe.allow_data_change = true;
  const auto allowed = folder.prepare();
  REQUIRE_MESSAGE(allowed.ok(), allowed.status().to_string());
  CHECK(std::ranges::any_of(allowed->notes, [](const std::string& note) {
    return note.starts_with("warning: going on with other samples") &&
           note.find("cutoff_len was 2048 and is 8") != std::string::npos;
  }));

  folder.config = same;
  const std::string rows = folder.files.read(folder.directory.file("d.jsonl"), 1 << 20).value();
  folder.write("d.jsonl", rows + "{\"text\": \"one more\"}\n");
  text = refusal().message();
  CHECK_MESSAGE(
      text.find(folder.directory.file("d.jsonl") + " is not what it was") != std::string::npos,
      text);
  // A tokenizer that is trained on other data reads the checkpoint's ids as other words.
  folder.write("d.jsonl", rows + "{\"text\": \"" + std::string(400, 'z') + "\"}\n");
  folder.config.troupe.allow_data_change = true;
  CHECK(refusal().message().find("troupe.train_tokenizer") != std::string::npos);
  folder.config = same;
  // The same bytes in another file of that name, or under another name, are the same data.
  folder.write("d.jsonl", rows);
  CHECK_MESSAGE(refusal().ok(), refusal().to_string());
  folder.write("moved.jsonl", rows);
  folder.write("dataset_info.json",
               R"({"d": {"file_name": "moved.jsonl", "columns": {"prompt": "text"}}})");
  CHECK_MESSAGE(refusal().ok(), refusal().to_string());
}

TEST_CASE("a run of a model that sees pictures saves its language model's configuration") {
  Folder folder;
  folder.write("model/config.json",
               R"({"model_type": "gemma3", "torch_dtype": "float32", "vision_config": {},
                   "architectures": ["Gemma3ForConditionalGeneration"],
                   "text_config": {"hidden_size": 16, "intermediate_size": 16,
                   "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                   "head_dim": 8, "vocab_size": 300}})");
  const auto run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  const auto saved = json::parse(run->bundle.companions.at("config.json"), "saved").value();
  CHECK(json::find_string(saved, "model_type") == "gemma3_text");
  CHECK(saved.at("architectures") == json::Value(json::Array{"Gemma3ForCausalLM"}));
  CHECK(!json::find(saved, "text_config"));
}

TEST_CASE("adapters of a quantised base are not gone on with beside another") {
  Folder folder;
  const auto first = folder.prepare();
  REQUIRE(first.ok());
  const std::string checkpoint = checkpoint_of(folder, *first);
  REQUIRE(folder.files
              .rename(checkpoint + "/model.safetensors", checkpoint + "/adapter_model.safetensors")
              .ok());
  folder.config.finetuning.type = FinetuningType::kLora;
  folder.config.training.resume_from_checkpoint = {.mode = ResumeFrom::Mode::kPath,
                                                   .path = checkpoint};
  const auto refused = [&](const std::string& arguments) {
    REQUIRE(
        write_file_atomically(folder.files, checkpoint + "/training_args.json", arguments).ok());
    return folder.prepare().status().message().find("was trained beside a base with") !=
           std::string::npos;
  };
  const std::string nf4 =
      R"({"quantization_bit": 4, "quantization_type": "nf4", "double_quantization": true})";
  CHECK(refused(nf4));
  CHECK(!refused(R"({"quantization_bit": null, "quantization_type": "fp4"})"));
  CHECK(!refused("{}"));  // of a version that knew no quantisation
  folder.config.model.quantization_bit = 4;
  CHECK(!refused(nf4));
  CHECK(refused(R"({"quantization_bit": null})"));
  folder.config.model.double_quantization = false;
  CHECK(refused(nf4));
}

TEST_CASE("an optimizer's state is not gone on with by settings that give it another meaning") {
  Folder folder;
  const GoodCheckpoint good{.path = folder.directory.path(), .has_optimizer = true};
  const auto refused = [&](const std::string& arguments) {
    REQUIRE(write_file_atomically(folder.files, good.path + "/training_args.json", arguments).ok());
    return check_optimizer_settings(folder.files, good, folder.config).message();
  };
  const std::string badam = R"({"use_badam": true, "badam_switch_interval": 50})";
  CHECK(refused("{}").empty());
  CHECK(refused(badam).find("use_badam: true, and this run has false") != std::string::npos);
  folder.config.optimizer.use_badam = true;
  CHECK(refused(badam).empty());
  folder.config.optimizer.badam_switch_interval = 20;
  CHECK(refused(badam).find("badam_switch_interval: 50, and this run has 20") != std::string::npos);
  folder.config.optimizer = {.use_galore = true, .galore_rank = 8};
  CHECK(refused(R"({"use_galore": true, "galore_rank": 16})").find("galore_rank: 16") !=
        std::string::npos);
  CHECK(refused(R"({"use_apollo": true})").find("use_apollo: true") != std::string::npos);
}

TEST_CASE("a checkpoint that does not know its samples is gone on from, and that is said") {
  Folder folder;
  const auto first = folder.prepare();
  REQUIRE(first.ok());
  const std::string checkpoint = checkpoint_of(folder, *first);
  REQUIRE(folder.files.remove(checkpoint + "/sample_stream.json").ok());
  folder.config.training.resume_from_checkpoint = {.mode = ResumeFrom::Mode::kPath,
                                                   .path = checkpoint};
  const auto run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(std::ranges::any_of(run->notes, [](const std::string& note) {
    return note.find("has no sample_stream.json") != std::string::npos;
  }));
}

TEST_CASE("a checkpoint of another data source of a program's own is refused") {
  troupe::tests::TemporaryDirectory dir;
  PosixFileSystem files;
  const TokenDataset none(TokenDataset::Kind::kSupervised, 0);
  const std::string checkpoint = dir.file("checkpoint-1");
  REQUIRE(files.create_directories(checkpoint).ok());
  REQUIRE(write_file_atomically(files, checkpoint + "/" + kSampleStreamFile,
                                own_stream("counts", 40, none, 42, true).to_text())
              .ok());
  TrainConfig config;
  std::vector<std::string> notes;
  const auto check = [&](const char* source) {
    return check_checkpoint_stream(files, config, checkpoint,
                                   own_stream(source, 40, none, 42, true), notes);
  };
  CHECK(check("counts").ok());
  CHECK(notes.empty());
  CHECK(check("letters").message().find("data source was \"counts\" and is \"letters\"") !=
        std::string::npos);
  config.troupe.allow_data_change = true;
  CHECK(check("letters").ok());
  CHECK(notes.size() == 1);
}

TEST_CASE("a start that came to nothing leaves a folder that the next one accepts") {
  Folder folder;
  REQUIRE(folder.prepare().ok());
  CHECK(folder.files.exists(folder.directory.file("out/sample_stream.json")));
  CHECK(folder.prepare().ok());
}

bool has_note(const PreparedRun& run, const std::string& text) {
  return std::ranges::any_of(
      run.notes, [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST_CASE("a start that came to nothing keeps the next one from nothing") {
  Folder folder;
  for (const bool streaming : {false, true}) {
    folder.config.data.streaming = streaming;
    folder.config.training.max_steps = 3;
    for (const char* name : {"out/token_cache.building-1", "out/token_cache.lock"})
      REQUIRE(folder.files.create_directories(folder.directory.file(name)).ok());
    REQUIRE(folder.files.remove_tree(folder.directory.file("out/token_cache.lock")).ok());
    for (int start = 0; start < 2; ++start) {
      const auto run = folder.prepare();
      REQUIRE_MESSAGE(run.ok(), run.status().to_string());
    }
  }
}

TEST_CASE("a second start takes the tokenised data of the first, also without their files") {
  Folder folder;
  folder.config.training.overwrite_output_dir = true;
  auto run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(
      has_note(*run, "Tokenized dataset is saved at " + folder.directory.file("out/token_cache")));
  const std::string stream = run->bundle.sample_stream;
  run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(has_note(*run, "tokenised before: "));
  CHECK(run->bundle.sample_stream == stream);
  folder.config.data.overwrite_cache = true;
  CHECK(has_note(folder.prepare().value(), "Tokenized dataset is saved"));

  // A folder of the user's, with a tokenizer that is not trained on the data.
  const std::string model = folder.directory.file("model");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    folder.write(std::string("model/") + name, run->bundle.companions.at(name));
  folder.config.troupe.train_tokenizer.reset();
  folder.config.data.overwrite_cache = false;
  folder.config.data.tokenized_path = folder.directory.file("tokens/");
  run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(run->bundle.token_cache == folder.directory.file("tokens"));
  const auto count = run->bundle.dataset.token_count();
  REQUIRE(folder.files.remove(folder.directory.file("d.jsonl")).ok());
  run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(run->bundle.dataset.token_count() == count);
  folder.config.data.dataset.clear();
  run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(run->bundle.dataset.token_count() == count);
  folder.config.data.tokenized_path = folder.directory.file("none");
  CHECK(folder.prepare().status().message().find("no dataset is named") != std::string::npos);
}

TEST_CASE("a stream reads nothing before it is trained on but what is evaluated on") {
  Folder folder;
  folder.config.troupe.train_tokenizer = 280;
  folder.config.training.overwrite_output_dir = true;
  auto run = folder.prepare();
  REQUIRE(run.ok());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    folder.write(std::string("model/") + name, run->bundle.companions.at(name));
  folder.config.troupe.train_tokenizer.reset();
  folder.config.training.output_dir = folder.directory.file("streamed");
  folder.config.training.max_steps = 3;
  folder.config.data.streaming = true;
  folder.config.evaluation.val_size = 4;
  folder.config.evaluation.do_eval = true;
  run = folder.prepare();
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  CHECK(run->bundle.dataset.size() == 0);
  CHECK(run->bundle.token_cache.empty());
  CHECK(decode_bundle(encode_bundle(run->bundle)).value().eval->size() == 4);
  CHECK(run->bundle.stream_tokenizer.contains("tokenizer.json"));
  CHECK(run->bundle.sample_stream.find("\"buffer_size\": 16384") != std::string::npos);
  folder.config.evaluation.val_size = 11;
  CHECK(folder.prepare().status().message().find("none is left to train on") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train
