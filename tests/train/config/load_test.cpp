#include "train/config/load.h"

#include <doctest/doctest.h>

#include <random>

#include "tests/train/config/load_helpers.h"
#include "train/config/explain.h"

namespace troupe::train {
namespace {

using namespace tests;
using troupe::tests::contains;

Result<LoadedConfig> load(std::string_view text, std::vector<std::string> arguments = {},
                          std::map<std::string, std::string, std::less<>> environment = {}) {
  auto files = good_files();
  files.put("ds0.json",
            R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})");
  files.put("ds3.json", R"({"zero_optimization": {"stage": 3}})");
  return load_train_config_text(text, "x.yaml", arguments, MapEnvironment(std::move(environment)),
                                files);
}

std::string with_line(std::string_view line) {
  return std::string(kGoodYaml) + std::string(line) + "\n";
}

std::string refused(std::string_view text, std::vector<std::string> arguments = {}) {
  const auto loaded = load(text, std::move(arguments));
  REQUIRE_FALSE(loaded.ok());
  return loaded.status().message();
}

TEST_CASE("a good configuration becomes typed fields") {
  const auto loaded = load(kGoodYaml);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  const auto& config = loaded->config;
  CHECK(config.model.model_name_or_path == "tiny");
  CHECK(config.model.train_from_scratch);
  CHECK(config.method.stage == TrainingStage::kPretrain);
  CHECK(config.data.dataset == std::vector<std::string>{"text"});
  CHECK(config.data.dataset_dir == "data");
  CHECK(config.data.packing);
  CHECK(config.data.cutoff_len == 2048);
  CHECK(config.training.learning_rate == 1e-4);
  CHECK(config.training.lr_scheduler_type == "cosine");
  CHECK(config.training.max_steps == 100);
  CHECK(config.training.order_seed() == 42);
  CHECK(config.training.resume_from_checkpoint.mode == ResumeFrom::Mode::kAuto);
  CHECK(loaded->world_size.value == 1);
  CHECK(loaded->warnings.empty());
}

TEST_CASE("overrides win, the environment gives the world size") {
  const auto loaded = load(kGoodYaml,
                           {"learning_rate=3e-4", "troupe.workers=2", "packing=false",
                            "resume_from_checkpoint=true", "lr_scheduler_type=cosine_with_min_lr",
                            "lr_scheduler_kwargs.min_lr=1e-5", "troupe.chaos=kill@step=4,rank=1"},
                           {{"NNODES", "4"}});
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  CHECK(loaded->config.training.learning_rate == 3e-4);
  CHECK(loaded->world_size.value == 2);
  CHECK_FALSE(loaded->config.data.packing);
  CHECK(loaded->config.training.resume_from_checkpoint.mode == ResumeFrom::Mode::kLatest);
  CHECK(loaded->config.training.lr_scheduler_kwargs.at("min_lr").as_double() == 1e-5);
  REQUIRE(loaded->config.troupe.chaos.size() == 1);
  CHECK(loaded->config.troupe.chaos[0].step == 4);
  CHECK(load(kGoodYaml, {}, {{"NNODES", "4"}})->world_size.value == 4);
}

TEST_CASE("a file, or flags alone") {
  auto files = good_files();
  const MapEnvironment environment;
  const std::vector<std::string> file = {"x.yaml", "seed=7", "--plot_loss"};
  const auto loaded = load_train_config(file, environment, files);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  CHECK(loaded->config.training.seed == 7);
  CHECK(loaded->config.method.plot_loss);

  const std::vector<std::string> flags = {"--stage",
                                          "sft",
                                          "--model_name_or_path",
                                          "tiny",
                                          "--do_train",
                                          "--dataset",
                                          "text",
                                          "--finetuning_type=full",
                                          "--overwrite_cache",
                                          "--template",
                                          "llama3"};
  const auto flagged = load_train_config(flags, environment, files);
  REQUIRE_MESSAGE(flagged.ok(), flagged.status().to_string());
  CHECK(flagged->config.data.template_name == "llama3");
  CHECK_FALSE(flagged->config.data.packing);
  CHECK(flagged->config.training.output_dir == "trainer_output");

  const std::vector<std::string> missing = {"none.yaml"};
  CHECK(load_train_config(missing, environment, files).status().code() == Code::kNotFound);
  CHECK_FALSE(load_train_config({}, environment, files).ok());
}

TEST_CASE("all that is wrong is reported at once, by place and key") {
  const auto loaded = load(with_line("learning_rat: 3\nuse_mca: true\nlr_scheduler_type2: x"),
                           {"seed=x", "stage=stf"});
  REQUIRE_FALSE(loaded.ok());
  const auto text = loaded.status().message();
  CHECK(contains(text, "x.yaml:14: learning_rat: unknown key; did you mean 'learning_rate'?"));
  CHECK(contains(text,
                 "x.yaml:15: use_mca=true is not supported: tensor, pipeline and context "
                 "parallelism come later; leave use_mca out"));
  CHECK(contains(text, "x.yaml:16: lr_scheduler_type2: unknown key"));
  CHECK(contains(text, "command line: seed: expected a whole number, found \"x\""));
  CHECK(contains(text, "command line: stage: 'stf' is no valid value"));
  CHECK(loaded.status().code() == Code::kInvalidArgument);
  // Behind the last line it would be taken for that one's.
  CHECK_FALSE(loaded.status().context("key"));
}

TEST_CASE("refusals alone have their own code") {
  const auto loaded = load(with_line("use_mca: true"));
  REQUIRE_FALSE(loaded.ok());
  CHECK(loaded.status().code() == Code::kUnsupported);
}

TEST_CASE("lora is the default") {
  const auto loaded = load("model_name_or_path: tiny\ndataset: text\n");
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  CHECK(loaded->config.finetuning.type == FinetuningType::kLora);
}

TEST_CASE("what keys must say together") {
  CHECK(contains(refused("finetuning_type: full\ndataset: text\n"),
                 "Please provide `model_name_or_path`."));
  CHECK(contains(refused("finetuning_type: full\nmodel_name_or_path: tiny\n"),
                 "Please specify dataset for training."));
  CHECK(contains(refused(with_line("streaming: true"), {"max_steps=-1"}),
                 "Please specify `max_steps` in streaming mode."));
  CHECK(contains(refused(with_line("use_dft_loss: true")), "a loss of stage=sft"));
  CHECK(contains(refused(with_line("use_eaft_loss: true")), "a loss of stage=sft"));
  CHECK(contains(refused(with_line("neat_packing: true")),
                 "`neat_packing` cannot be set as True except SFT."));
  CHECK(contains(refused(with_line("train_on_prompt: true\nmask_history: true")), "mask_history"));
  CHECK(contains(refused(with_line("adapter_name_or_path: saves/x")),
                 "Adapter is only valid for the LoRA method."));
  CHECK(contains(refused(with_line("quantization_bit: 4")),
                 "Quantization is only compatible with the LoRA or OFT method."));
  CHECK(contains(refused(with_line("interleave_probs: 0.5,0.5")), "interleave_probs"));
  CHECK(contains(refused(with_line("lr_scheduler_kwargs: {min_lr: 1e-5}")),
                 "lr_scheduler_kwargs.min_lr: the scheduler cosine has no such setting"));
  CHECK(contains(refused(kGoodYaml, {"lr_scheduler_type=cosine_with_min_lr"}),
                 "exactly one of min_lr and min_lr_rate"));
  CHECK(contains(refused(with_line("max_steps2: 1")), "did you mean 'max_steps'?"));
  CHECK(contains(refused(kGoodYaml, {"max_steps=0"}), "0 steps train nothing"));
  CHECK(contains(refused(kGoodYaml, {"save_steps=10.5"}), "neither a whole number"));
  CHECK(contains(refused(with_line("evaluation_strategy: no\neval_strategy: no")), "the same as"));
}

TEST_CASE("our own keys") {
  CHECK(contains(refused(with_line("troupe:\n  worker: 2")),
                 "x.yaml:15: troupe.worker: unknown key; did you mean 'troupe.workers'?"));
  CHECK(contains(refused(with_line("troupe: 2")), "troupe: expected settings"));
  CHECK(contains(refused(with_line("troupe: {strategy: zero4}")), "did you mean 'zero"));
  CHECK(contains(refused(with_line("troupe: {chaos: 'kill@stp=1'}")), "did you mean 'step'?"));
  CHECK(contains(refused(with_line("troupe: {workers: 0}")), "too small"));
}

TEST_CASE("a model's folder that cannot be read is named with its key, why, and what to do") {
  const auto refused = [](MemoryFiles files, const std::string& model = "tiny") {
    const std::vector<std::string> words = {"model_name_or_path=" + model};
    return refusal(
        load_train_config_text(kGoodYaml, "x.yaml", words, MapEnvironment(Variables{}), files));
  };
  const auto check = [](const std::string& text, const char* why, const char* way_out) {
    CAPTURE(text);
    CHECK(contains(text, "model_name_or_path: "));
    CHECK(contains(text, why));
    CHECK(contains(text, way_out));
  };
  check(refused(good_files(), "nowhere"), "'nowhere' is no folder on this machine",
        "give the model's folder, or its name on a hub");
  check(refused(good_files(), "data"), "the folder 'data' has no config.json", "name one with");
  for (const char* denied : {"tiny", "tiny/config.json"}) {
    auto files = good_files();
    files.deny(denied);
    check(refused(files), (std::string(denied) + ": Permission denied").c_str(),
          "Give this user the right to read it");
  }
}

TEST_CASE("paths that do not exist") {
  CHECK(contains(refused(kGoodYaml, {"model_name_or_path=Qwen/Qwen3-4B"}),
                 "give the model's folder, or its name on a hub"));
  CHECK(
      contains(refused(kGoodYaml, {"dataset_dir=nowhere"}), "dataset_dir: 'nowhere' is no folder"));
  CHECK(contains(refused(kGoodYaml, {"resume_from_checkpoint=nowhere"}), "resume_from_checkpoint"));
  CHECK(contains(refused(kGoodYaml, {"output_dir=x.yaml"}), "output_dir: 'x.yaml' exists"));
}

TEST_CASE("deepspeed gives the strategy, and problems have their place") {
  const auto loaded = load(with_line("deepspeed: ds0.json"), {"workers=2"});
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  CHECK(loaded->config.deepspeed.at("train_batch_size").as_int64() == 16);
  CHECK(loaded->config.sharding.strategy == "ddp");
  CHECK(
      contains(refused(with_line("deepspeed: ds3.json")),
               "x.yaml:14: deepspeed: Either train_batch_size or train_micro_batch_size_per_gpu"));
  CHECK(contains(refused(with_line("deepspeed: {train_batch_size: 7}")),
                 "Check batch related parameters") == false);
  CHECK(contains(refused(with_line("deepspeed: {train_batch_size: 7}")),
                 "- ds train_batch_size=7 vs hf train_batch_size (calculated)=8"));
  CHECK(contains(refused(with_line("deepspeed: none.json")), "none.json"));
  CHECK(load(with_line("deepspeed: null")).ok());
}

TEST_CASE("ALLOW_EXTRA_ARGS lets unknown keys through with a warning") {
  const auto loaded = load(with_line("my_own_key: 1"), {}, {{"ALLOW_EXTRA_ARGS", "1"}});
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  REQUIRE(loaded->warnings.size() == 1);
  CHECK(contains(loaded->warnings[0], "my_own_key"));
}

TEST_CASE("broken texts name their line") {
  CHECK(contains(refused("stage: pt\nmodel: [1\n"), "x.yaml:"));
  CHECK(contains(refused("stage: pt\nstage: sft\n"), "x.yaml:2:1: the key 'stage' stands twice"));
  CHECK(contains(refused("- a\n"), "x.yaml:1: the file must hold settings"));
  CHECK(contains(refused(""), "model_name_or_path"));
}

TEST_CASE("damaged texts and arguments never crash") {
  std::mt19937 random(20);
  const std::string bytes = "\n\t :[]{}\"'&*!|>%@`#,-?0x1e.~<\xff\xc3\\=";
  const std::string start =
      with_line("troupe: {workers: 2}\nbase: &b [1]\nlr_scheduler_kwargs: {a: *b}");
  for (int round = 0; round < 3000; ++round) {
    std::string text = start;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const auto at = random() % text.size();
      const char byte = bytes[random() % bytes.size()];
      if (random() % 3 == 0) {
        text.insert(at, 1 + random() % 70, byte);
      } else {
        text[at] = byte;
      }
    }
    const auto loaded = load(text, {text.substr(random() % text.size(), random() % 40)});
    if (!loaded.ok()) CHECK_FALSE(loaded.status().message().empty());
  }
}

TEST_CASE("explain has a row for every key, and credentials are hidden") {
  const auto loaded =
      load(with_line("hf_hub_token: sesame\ntrust_remote_code: true"), {"troupe.workers=2"});
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  const auto rows = explain(*loaded);
  CHECK(rows.size() == key_table().size() + 2);
  const auto row = [&](std::string_view key) {
    for (const auto& candidate : rows) {
      if (candidate.key == key) return candidate;
    }
    FAIL("no row");
    return ExplainRow();
  };
  CHECK(row("learning_rate").value == "0.0001");
  CHECK(row("learning_rate").origin == "x.yaml:10");
  CHECK(row("seed").origin == "default");
  CHECK_FALSE(row("seed").given);
  CHECK(row("troupe.workers").origin == "command line");
  CHECK(row("trust_remote_code").treatment == Treatment::kInert);
  CHECK(row("hf_hub_token").value == "(hidden)");
  CHECK(row("(world size)").value == "2");
  const auto from_environment = load(kGoodYaml, {}, {{"NNODES", "3"}, {"NODE_RANK", "1"}});
  CHECK(contains(explain_table(explain(*from_environment), false), "NODE_RANK"));
  CHECK(contains(explain_table(rows, true), "dataloader_num_workers"));
  CHECK_FALSE(contains(explain_table(rows, false), "dataloader_num_workers"));
  CHECK_FALSE(contains(explain_table(rows, true) + json::write(explain_json(rows)), "sesame"));
  CHECK_FALSE(contains(json::write(to_json(loaded->config)), "sesame"));
}

TEST_CASE("graphs of launches: a word or a boolean") {
  CHECK(accepted(load_with("")).config.troupe.cuda_graphs == "auto");
  CHECK(accepted(load_with("troupe: {cuda_graphs: true}")).config.troupe.cuda_graphs == "true");
  CHECK(accepted(load_with("troupe: {cuda_graphs: False}")).config.troupe.cuda_graphs == "false");
  CHECK(contains(refusal(load_with("troupe: {cuda_graphs: sometimes}")), "auto, true, false"));
  CHECK(contains(refusal(load_with("troupe: {cuda_graphs: true, operator_times: true}")),
                 "use troupe.cuda_graphs=false, or leave troupe.operator_times out"));
  accepted(load_with("troupe: {operator_times: true}"));
}

TEST_CASE(
    "all problems are listed together, those of the command line and of the environment too") {
  const auto message =
      refusal(load_with("use_mca: true\nlearning_rat: 1\n",
                        {"nonsense", "seed=3", "=x", "model_name_or_path=org/model"},
                        {{"NNODES", "x"}, {"ACCELERATE_MIXED_PRECISION", "fp8"}}, {}));
  for (const char* what : {"use_mca=true", "unknown key", "'nonsense' is no setting", "'=x' is no",
                           "environment NNODES", "environment ACCELERATE_MIXED_PRECISION=fp8",
                           "'org/model' is no folder"}) {
    CAPTURE(message);
    CHECK(contains(message, what));
  }
  // What is not there yet does not stand in the way of the rest.
  CHECK(message.find("'org/model'") > message.find("environment ACCELERATE"));
}

TEST_CASE("all keys of another tool's file that stand in the way are listed together") {
  const auto message = refusal(load_with(
      "deepspeed: {zero_optimization: {stage: 2, mics_shard_size: 4}, nosuch: 1, amp: {enabled: "
      "true}}\n"));
  for (const char* what : {"mics_shard_size=4", "unknown key 'nosuch'", "amp.enabled=true"})
    CHECK(contains(message, what));
}

TEST_CASE("fp16: auto of a DeepSpeed file is what accelerate's file says") {
  const std::string ds =
      R"({"fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
      "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2},
      "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"})";
  for (const char* precision : {"'no'", "bf16", "fp16"}) {
    CAPTURE(precision);
    const auto loaded = accepted(load_with(
        "", {"troupe.accelerate_config=acc.yaml"}, {},
        {{"acc.yaml", fmt::format("distributed_type: DEEPSPEED\nmixed_precision: {}\n"
                                  "deepspeed_config: {{deepspeed_config_file: ds.json}}\n",
                                  precision)},
         {"ds.json", ds}}));
    CHECK(loaded.config.sharding.strategy == "zero2");
    CHECK((loaded.config.model.compute == Precision::kFloat16) ==
          (std::string_view(precision) == "fp16"));
  }
}

}  // namespace
}  // namespace troupe::train
