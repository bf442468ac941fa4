// AITraining's files and flags, those of its document among them.
#include "train/config/aitraining.h"

#include "tests/train/config/load_helpers.h"

namespace troupe::train::aitraining_tests {
namespace {

using namespace tests;

// The document's file, with a model and data that are there.
constexpr const char* kYaml = R"(task: llm-sft
backend: local
base_model: tiny
project_name: distributed-model

data:
  path: ./data
  train_split: train
  valid_split: null
  chat_template: tokenizer
  column_mapping:
    text_column: text

log: wandb

params:
  distributed_backend: deepspeed  # or null for DDP
  epochs: 3
  batch_size: 2
  gradient_accumulation: 4
  mixed_precision: bf16
  peft: true
  lora_r: 16
)";

MemoryFiles files_here() {
  auto files = good_files();
  files.put("./data/train.jsonl", "{}");
  files.put("ai.yaml", kYaml);
  return files;
}
Result<LoadedConfig> load(std::string_view text, std::vector<std::string> arguments = {}) {
  auto files = files_here();
  return load_train_config_text(text, "ai.yaml", arguments, MapEnvironment(), files);
}
Result<LoadedConfig> run(std::vector<std::string> arguments) {
  auto files = files_here();
  return load_aitraining(arguments, MapEnvironment(), files);
}
bool said(const LoadedConfig& loaded, std::string_view part) {
  for (const auto& notice : loaded.notices)
    if (contains(notice, part)) return true;
  return false;
}
std::string with(std::string_view from, std::string_view to) {
  std::string text(kYaml);
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("the document's file") {
  const auto loaded = accepted(load(kYaml));
  const auto& config = loaded.config;
  CHECK(said(loaded, "ai.yaml is a file of AITraining (base_model, task, project_name"));
  CHECK(said(loaded, "log has no effect: the log is trainer_log.jsonl in output_dir"));
  CHECK(said(loaded, "distributed_backend=deepspeed: ZeRO-3"));
  CHECK(said(loaded, "`troupe export` merges it"));
  CHECK(config.model.model_name_or_path == "tiny");
  CHECK(config.training.output_dir == "distributed-model");
  CHECK(config.training.num_train_epochs == 3);
  CHECK(config.training.per_device_train_batch_size == 2);
  CHECK(config.training.gradient_accumulation_steps == 4);
  CHECK(config.training.learning_rate == 3e-5);
  CHECK(config.training.warmup_ratio == 0.1);
  CHECK(config.training.lr_scheduler_type == "linear");
  CHECK(config.training.save_strategy == IntervalStrategy::kEpoch);
  CHECK(config.training.save_total_limit == 1);
  CHECK(config.training.logging_steps == doctest::Approx(0.2 * 4 / 3));
  CHECK(config.finetuning.is_lora());
  CHECK(config.finetuning.lora_rank == 16);
  CHECK(config.finetuning.lora_alpha == 32);
  CHECK(config.finetuning.lora_dropout == 0.05);
  CHECK(config.model.compute == Precision::kBfloat16);
  CHECK(config.sharding.strategy == "zero3");
  CHECK(config.data.cutoff_len == 1024);
  CHECK(config.data.rows.excess_length == "truncate");
  REQUIRE(config.data.rows.datasets.size() == 1);
  CHECK(config.data.rows.datasets[0].at("path") == "./data");
  CHECK(config.data.rows.datasets[0].at("type") == "text_or_messages");
  CHECK(config.data.rows.eval_datasets.empty());
  CHECK(to_json(*train_config_from_json(to_json(config))) == to_json(config));
}

TEST_CASE("the document's command lines") {
  const std::vector<std::string> first = {"llm",         "--train", "--model",        "tiny",
                                          "--data-path", "./data",  "--project-name", "my-model",
                                          "--trainer",   "sft",     "--peft"};
  auto loaded = accepted(run(first));
  CHECK(loaded.config.sharding.strategy == "ddp");
  CHECK(loaded.config.finetuning.is_lora());
  CHECK(loaded.config.training.output_dir == "my-model");
  CHECK(loaded.config.method.stage == TrainingStage::kSupervised);
  CHECK(said(loaded, "log=wandb"));

  auto second = first;
  second.insert(second.end(), {"--distributed-backend", "deepspeed", "troupe.workers=2"});
  loaded = accepted(run(second));
  CHECK(loaded.config.sharding.strategy == "zero3");
  CHECK(loaded.world_size.value == 2);

  // Without --trainer: plain text.
  loaded =
      accepted(run({"llm", "--train", "--model", "tiny", "--data_path=./data", "--project-name",
                    "my-model", "--distributed-backend", "deepspeed", "--peft"}));
  CHECK(loaded.config.method.stage == TrainingStage::kPretrain);
  CHECK(loaded.config.data.packing);
  CHECK(loaded.config.data.rows.datasets[0].at("type") == "text");
  CHECK(said(loaded, "NODE_RANK and MASTER_ADDR"));

  // "aitraining llm --train ...", as it stands there.
  CHECK(contains(refusal(run({"llm", "--train", "..."})), "the argument '...' belongs to no flag"));

  loaded = accepted(run({"--config", "ai.yaml", "params.epochs=1", "troupe.workers=2"}));
  CHECK(loaded.config.training.num_train_epochs == 1);
  CHECK(loaded.world_size.value == 2);
}

TEST_CASE("what is wrong is said in AITraining's words") {
  CHECK(contains(refusal(load(with("epochs: 3", "epochs: many"))),
                 "ai.yaml:18: params.epochs: expected a number"));
  CHECK(contains(refusal(load(with("batch_size: 2", "batch_siz: 2"))),
                 "ai.yaml:19: params.batch_siz: unknown key"));
  CHECK(contains(refusal(load(with("task: llm-sft", "task: llm-dpo"))),
                 "ai.yaml:1: task=dpo is not supported"));
  CHECK(contains(refusal(load(with("task: llm-sft", "task: text-classification"))),
                 "Task `text-classification` is not supported"));
  CHECK(contains(refusal(load(with("task: llm-sft\n", ""), {"--format=aitraining"})),
                 "Task is required in the configuration file"));
  CHECK(contains(refusal(load(with("backend: local\n", ""))),
                 "Backend is required in the configuration file"));
  CHECK(contains(refusal(load(with("backend: local", "backend: spaces-a10g"))), "backend="));
  CHECK(contains(refusal(load(with("log: wandb\n", ""))), "log: is missing"));
  CHECK(contains(refusal(load(with("  path: ./data\n", ""))), "data: path is missing"));
  CHECK(contains(refusal(load(with("lora_r: 16", "quantization: int2"))),
                 "ai.yaml:23: params.quantization=int2 is not supported: frozen weights are kept"));
  CHECK(contains(refusal(load(with("chat_template: tokenizer", "chat_template: zephyr"))),
                 "ai.yaml:10: data.chat_template=zephyr is not supported"));
  CHECK(contains(refusal(load(with("base_model: tiny", "base_model: nowhere"))),
                 "ai.yaml:3: base_model: 'nowhere' is no folder"));
  CHECK(contains(
      refusal(load(with("distributed_backend: deepspeed", "distributed_backend: horovod"))),
      "Unsupported distributed backend"));
  CHECK(contains(refusal(run({"llm", "--train", "--peft"})), "--model is missing"));
  CHECK(contains(refusal(run({"llm", "--train", "--modle", "x"})), "unknown flag --modle"));
  CHECK(contains(refusal(run({"llm", "--train", "--model", "tiny", "--data-path", "./data",
                              "--project-name", "p", "--trainer", "stf"})),
                 "--trainer: Invalid trainer 'stf'. Valid options: default, distillation"));
  CHECK(contains(refusal(run({"llm", "--train", "--model", "tiny", "--data-path", "./data",
                              "--project-name", "p", "--lr", "fast"})),
                 "flag: --lr: expected a number"));
  CHECK(contains(refusal(run({"chat"})), "'chat' is not supported"));
  CHECK(contains(refusal(run({"llm", "--deploy"})), "Deploy is not implemented yet"));
  CHECK_FALSE(run({"--config"}).ok());
}

TEST_CASE("every field of AITraining's table says what becomes of it") {
  for (const auto& path : aitraining_keys().paths())
    CHECK_MESSAGE(!aitraining_keys().treated(path).note.empty(), path);
}

}  // namespace
}  // namespace troupe::train::aitraining_tests
