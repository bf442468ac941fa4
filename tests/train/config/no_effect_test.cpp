// No key is accepted and then passed over without a word: it is obeyed, refused, or said to have no
// effect. The tables' own rows are gone through one by one.
#include <algorithm>

#include "tests/train/config/load_helpers.h"
#include "train/config/aitraining.h"
#include "train/config/axolotl.h"
#include "train/config/deepspeed_keys.h"
#include "train/config/explain.h"
#include "train/config/keys.h"

namespace troupe::train::no_effect_tests {
namespace {

using namespace tests;

constexpr const char* kAitraining = R"(task: llm-sft
backend: local
base_model: tiny
project_name: out
log: none
data: {path: ./data, train_split: train, chat_template: none}
params:
  epochs: 3
)";

MemoryFiles files_here() {
  auto files = good_files();
  files.put("rows.json", "[]");
  files.put("./data/train.jsonl", "{}");
  files.put("hub/en/train.jsonl", "{}");
  return files;
}
Result<LoadedConfig> load_text(const std::string& text, std::vector<std::string> arguments = {}) {
  auto files = files_here();
  return load_train_config_text(text, "x.yaml", arguments, MapEnvironment(), files);
}
Result<LoadedConfig> axolotl(const std::string& lines, std::vector<std::string> arguments = {}) {
  return load_text(kAxolotlFile + lines + "\n", std::move(arguments));
}
Result<LoadedConfig> aitraining(const std::string& line) {
  return load_text(std::string(kAitraining) + "  " + line + "\n");
}
bool said(const LoadedConfig& loaded, std::string_view part) {
  const auto has = [&](const std::string& text) { return contains(text, part); };
  return std::ranges::any_of(loaded.notices, has) || std::ranges::any_of(loaded.warnings, has);
}

// Whether one of some values of a key is wrong, refused, said, or makes another run of it.
template <typename Load>
bool is_heard(const std::string& key, const Load& load) {
  const auto before = to_json(accepted(load("")).config);
  for (const char* value : {"7", "0.25", "true", "false", "some-word", "[q_proj]", "{x: 1}", "tiny",
                            "cosine", "full"}) {
    const auto loaded = load(fmt::format("{}: {}", key, value));
    // A value of another type says nothing about values of the right one.
    if (!loaded.ok()) {
      if (loaded.status().code() == Code::kUnsupported) return true;
      if (!contains(loaded.status().message(), "expected")) return true;
      continue;
    }
    if (said(*loaded, key) || to_json(loaded->config) != before) return true;
  }
  return false;
}

TEST_CASE("every key that Axolotl obeys is heard where it stands alone") {
  for (const auto& key : axolotl_keys().paths()) {
    if (axolotl_keys().treated(key).treatment != Treatment::kImplemented ||
        contains(kAxolotlFile, key + ":") || contains(key, "."))
      continue;
    // The one makes other keys count, and one trainer is what there is without them; of the other
    // some words are refused and all others mean what is done here.
    if (key == "use_ray" || key == "model_type") continue;
    CHECK_MESSAGE(is_heard(key, [](const std::string& line) { return axolotl(line); }), key);
  }
}

TEST_CASE("every key that AITraining obeys is heard where it stands alone") {
  for (const auto& key : aitraining_keys().paths()) {
    if (aitraining_keys().treated(key).treatment != Treatment::kImplemented ||
        contains(kAitraining, key + ":"))
      continue;
    // In params they take the place of what stands outside.
    if (key == "model" || key == "project_name" || key == "data_path") continue;
    CHECK_MESSAGE(is_heard(key, [](const std::string& line) { return aitraining(line); }), key);
  }
}

TEST_CASE("every key of an Axolotl data set that is obeyed is heard for a type it is not of") {
  for (const auto& key : axolotl_dataset_keys().paths()) {
    if (axolotl_dataset_keys().treated(key).treatment != Treatment::kImplemented || key == "path" ||
        key == "type")
      continue;
    const auto load = [](const std::string& line) {
      return load_text(
          std::string(kAxolotlFile)
              .replace(std::string_view(kAxolotlFile).find("    type: alpaca\n"), 17,
                       "    type: alpaca\n" + (line.empty() ? "" : "    " + line + "\n")));
    };
    CHECK_MESSAGE(is_heard(key, load), key);
  }
}

TEST_CASE("keys of an adapter without one") {
  const auto loaded = accepted(
      axolotl("lora_r: 8\nlora_alpha: 16\nlora_target_linear: true\npeft_use_dora: false"));
  CHECK(said(loaded,
             "lora_r, lora_alpha, lora_target_linear have no effect: no adapter is trained "
             "without adapter: lora"));
  CHECK_FALSE(said(loaded, "peft_use_dora"));
  CHECK(loaded.config.finetuning.type == FinetuningType::kFull);
  for (const auto& row : explain(loaded))
    if (row.key == "lora_r" || row.key == "lora_alpha") {
      CHECK(row.treatment == Treatment::kInert);
      CHECK(row.note == "no adapter is trained without adapter: lora");
      CHECK(row.value != "null");
    }
  const auto with =
      accepted(axolotl("adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true"));
  CHECK_FALSE(said(with, "lora_r"));
  CHECK(with.config.finetuning.lora_rank == 8);

  const auto plain = accepted(aitraining("lora_r: 8"));
  CHECK(said(plain, "params.lora_r has no effect: no adapter is trained without peft: true"));
  CHECK(said(accepted(load_with("lora_rank: 16")),
             "lora_rank has no effect: it belongs to a new adapter"));
  // Said where it is not what counts anyway.
  CHECK_FALSE(said(accepted(load_with("lora_rank: 8")), "lora_rank"));
}

TEST_CASE("the best checkpoint and early stopping without data to evaluate on") {
  CHECK(
      contains(refusal(axolotl("early_stopping_patience: 3")),
               "x.yaml:10: early_stopping_patience: `early_stopping_patience` requires save_steps "
               "and eval_steps to be set"));
  const auto loaded =
      accepted(axolotl("load_best_model_at_end: true\nmetric_for_best_model: loss"));
  CHECK(said(loaded,
             "load_best_model_at_end, metric_for_best_model have no effect: there is nothing "
             "to evaluate on without val_set_size or test_datasets"));
  CHECK_FALSE(loaded.config.evaluation.load_best_model_at_end);
  for (const auto& row : explain(loaded))
    if (row.key == "load_best_model_at_end") CHECK(row.treatment == Treatment::kInert);
  CHECK(contains(refusal(load_with("load_best_model_at_end: true")),
                 "requires the save and eval strategy to match"));
  CHECK(contains(refusal(load_with("early_stopping_steps: 2")), "it counts evaluations"));
  const auto never = accepted(load_with("greater_is_better: true\neval_steps: 5\neval_dataset: a"));
  CHECK(said(never, "eval_dataset, greater_is_better have no effect: nothing is evaluated"));
  CHECK(said(never, "eval_steps has no effect: it belongs to eval_strategy: steps"));
  CHECK(contains(refusal(axolotl("val_set_size: 0.1\nevals_per_epoch: 2\neval_strategy: epoch")),
                 "eval_strategy must be empty or set to `steps` when used with evals_per_epoch."));
}

TEST_CASE("which data set of a folder, and how its files are read") {
  const auto load = [](const std::string& entry) {
    return axolotl("", {"datasets=[{type: alpaca, " + entry + "}]"});
  };
  // A folder of several data sets.
  CHECK(accepted(load("path: hub, name: en")).config.data.rows.datasets[0].at("path") == "hub/en");
  CHECK(contains(
      refusal(load("path: hub, name: de")),
      "command line: datasets[0].name=de is not supported: hub has no folder of that name"));
  // A file is one data set, whatever it is called; Axolotl passes over it, too.
  const auto file = accepted(
      load("path: rows.json, name: en, revision: abc, data_dir: sub, trust_remote_code: true"));
  CHECK(said(file, "datasets[0].name has no effect: rows.json is one file"));
  CHECK(said(file, "datasets[0].revision has no effect: rows.json is on this machine"));
  CHECK(
      said(file, "datasets[0].trust_remote_code has no effect: no code of a data set is ever run"));
  CHECK(said(file, "datasets[0].data_dir has no effect: Axolotl passes over it, too"));
  CHECK(file.config.data.rows.datasets[0].as_object().size() == 2);
  CHECK(
      accepted(load("path: rows.json, ds_type: csv")).config.data.rows.datasets[0].at("ds_type") ==
      "csv");
  CHECK(contains(refusal(load("path: rows.json, ds_type: xml")), "one of json, csv, text"));
  CHECK(contains(refusal(load("path: hub, name: [en]")), "datasets[0].name: expected a text"));
  CHECK(said(accepted(load("path: rows.json, field_messages: turns, field: body")),
             "datasets[0].field_messages has no effect: it belongs to type: chat_template"));
  const auto read = [](const std::string& entry) {
    return accepted(axolotl("", {"datasets=[{path: rows.json, " + entry + "}]"}))
        .config.data.rows.datasets[0];
  };
  CHECK(read("type: chat_template, chat_template: chatml, field_messages: turns")
            .at("field_messages") == "turns");
  CHECK(read("type: completion, field: body").at("field") == "body");
}

TEST_CASE("a key that became several settings has an effect where one of them has") {
  CHECK_FALSE(said(accepted(axolotl("")), "micro_batch_size"));
  CHECK_FALSE(said(accepted(aitraining("batch_size: 3")), "batch_size"));
  CHECK(said(accepted(axolotl("warmup_ratio: 0.5\nlr_scheduler: constant")),
             "warmup_ratio has no effect: "));
}

TEST_CASE("what the other tool passes over, too, is said") {
  CHECK(
      said(accepted(aitraining("seed: 3")), "params.seed has no effect: AITraining does not pass"));
  CHECK_FALSE(said(accepted(aitraining("seed: 42")), "seed"));
  CHECK(said(accepted(axolotl("eta_min: 1e-6")), "eta_min has no effect: Axolotl passes over it"));
  CHECK(said(accepted(axolotl("rl_beta: 0.2")), "rl_beta has no effect: it belongs to rl"));
  CHECK(said(accepted(load_with("pref_beta: 0.2")), "pref_beta has no effect: it belongs to the"));
  CHECK_FALSE(said(accepted(load_with("pref_beta: 0.1")), "pref_beta"));
}

TEST_CASE("what has no effect has a type all the same") {
  CHECK(
      contains(refusal(axolotl("gc_steps: many")), "x.yaml:10: gc_steps: expected a whole number"));
  CHECK(
      contains(refusal(axolotl("flash_attention: 3")), "flash_attention: expected true or false"));
  CHECK(contains(refusal(axolotl("pad_to_sequence_len: [1]")), "expected true or false"));
  CHECK(contains(refusal(aitraining("use_flash_attention_2: [1]")), "expected true or false"));
  CHECK(contains(refusal(axolotl("rl: {enabled: false}")), "rl={\"enabled\":false} is not"));
}

TEST_CASE("settings of packing without it") {
  const auto loaded = accepted(axolotl("sample_packing_bin_size: 7\nmultipack_real_batches: true"));
  CHECK(said(loaded,
             "sample_packing_bin_size, multipack_real_batches have no effect: nothing is "
             "packed without sample_packing: true"));
  CHECK(accepted(axolotl("sample_packing: true\nsample_packing_bin_size: 7"))
            .config.data.sample_packing.bin_size == 7);
}

TEST_CASE("fsdp_version") {
  CHECK(said(accepted(axolotl("fsdp_version: 2")),
             "fsdp_version has no effect: nothing is sharded by FSDP without fsdp or fsdp_config"));
  CHECK(contains(refusal(axolotl("fsdp_version: 2\nfsdp_config: {version: 1}")),
                 "fsdp_version=2 and fsdp_config.version=1 are two names of one setting and "
                 "disagree"));
}

TEST_CASE("sections of another distributed_type, whatever the letters of the type") {
  const auto load = [](const std::string& text) {
    return load_with("", {"troupe.accelerate_config=acc.yaml"}, {},
                     {{"acc.yaml", "num_processes: 2\n" + text}});
  };
  const auto loaded =
      accepted(load("distributed_type: MULTI_CPU\ndeepspeed_config: {zero_stage: 3, other: 1}\n"
                    "fsdp_config: {fsdp_offload_params: true}"));
  CHECK(loaded.config.sharding.strategy == "ddp");
  CHECK(said(loaded,
             "troupe.accelerate_config.deepspeed_config has no effect: it belongs to "
             "distributed_type: DEEPSPEED"));
  CHECK(said(loaded,
             "troupe.accelerate_config.fsdp_config has no effect: it belongs to "
             "distributed_type: FSDP"));
  bool explained = false;
  for (const auto& row : explain(loaded))
    if (contains(row.key, "deepspeed_config.zero_stage"))
      explained = row.treatment == Treatment::kInert;
  CHECK(explained);
  CHECK(contains(refusal(load("distributed_type: MULTI_CPU\ndeepspeed_config: ds.json")),
                 "expected a mapping"));
  // In small letters the section counts, too, and so do its keys.
  CHECK(contains(refusal(load("distributed_type: deepspeed\ndeepspeed_config: {zero_stag: 3}")),
                 "unknown key"));
  CHECK(contains(refusal(load("distributed_type: deepspeed\n"
                              "deepspeed_config: {deepspeed_moe_layer_cls_names: X}")),
                 "is not supported"));
  CHECK(said(accepted(load("distributed_type: DEEPSPEED\n"
                           "deepspeed_config: {zero_stage: 2, offload_param_device: cpu}")),
             "deepspeed_config.offload_param_device has no effect: parameters are offloaded with "
             "ZeRO stage 3"));
  CHECK(contains(refusal(load("distributed_type: MULTI_CPU\ndebug: perhaps")),
                 "troupe.accelerate_config.debug: expected true or false"));
}

TEST_CASE("one rule for logs that go elsewhere, in every file") {
  constexpr const char* kSentence = "no effect: the log is trainer_log.jsonl in output_dir";
  CHECK(said(accepted(load_with("report_to: wandb")), std::string("report_to has ") + kSentence));
  CHECK(said(accepted(load_with("report_to: [tensorboard, wandb]")),
             std::string("report_to: wandb has ") + kSentence));
  CHECK_FALSE(said(accepted(load_with("report_to: [tensorboard]")), "report_to"));
  CHECK(said(accepted(load_with("logging_dir: logs")), "it belongs to report_to: tensorboard"));
  CHECK_FALSE(
      said(accepted(load_with("report_to: tensorboard\nlogging_dir: logs")), "logging_dir"));
  CHECK_FALSE(said(accepted(load_with("report_to: none")), "report_to"));
  CHECK(contains(refusal(load_with("report_to: wandbb")), "did you mean 'wandb'"));
  CHECK(said(accepted(load_with("use_swanlab: true")), kSentence));
  CHECK(said(accepted(axolotl("wandb_project: mine\nuse_tensorboard: true")), kSentence));
  CHECK_FALSE(said(accepted(axolotl("wandb_project:\nuse_tensorboard: false")), kSentence));
  CHECK(said(accepted(load_text(
                 std::string(kAitraining)
                     .replace(std::string_view(kAitraining).find("log: none"), 9, "log: wandb"))),
             kSentence));
  CHECK(said(accepted(load_with("deepspeed: {train_micro_batch_size_per_gpu: auto, "
                                "wandb: {enabled: true}, gradient_accumulation_steps: auto}")),
             kSentence));
}

}  // namespace
}  // namespace troupe::train::no_effect_tests
