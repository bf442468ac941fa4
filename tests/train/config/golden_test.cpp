// Configurations that exist: each must come to a definite verdict, accepted or refused by a key.

#include <doctest/doctest.h>

#include <iostream>

#include "tests/support/test_data.h"
#include "tests/train/config/memory_files.h"
#include "train/config/load.h"

namespace troupe::train {
namespace {

// Every file below a folder that ends in .yaml, .yml or .json.
void find_configs(FileSystem& files, const std::string& folder, std::vector<std::string>& out) {
  const auto entries = files.list(folder);
  REQUIRE(entries.ok());
  for (const auto& entry : *entries) {
    const auto path = join_path(folder, entry.name);
    if (entry.is_directory) {
      find_configs(files, path, out);
    } else if (path.ends_with(".yaml") || path.ends_with(".yml") || path.ends_with(".json")) {
      out.push_back(path);
    }
  }
}

LoadOptions settings_only() {
  LoadOptions options;
  options.check_paths = false;
  return options;
}

// The verdict in one line; fails where a refusal names no key.
std::string verdict(const std::string& path, std::vector<std::string> arguments = {}) {
  PosixFileSystem files;
  arguments.insert(arguments.begin(), path);
  const auto loaded = load_train_config(arguments, MapEnvironment(), files, settings_only());
  if (loaded.ok()) return "accepted";
  const auto status = loaded.status();
  const auto key = status.context("key");
  // What is no valid YAML has no key, but a line.
  CHECK_MESSAGE((key.has_value() || status.message().starts_with(path + ":")), status.to_string());
  const auto& message = status.message();
  return fmt::format("refused by {}: {}", key.value_or("its form"),
                     message.substr(0, message.find('\n')));
}

TEST_CASE("every published example has a verdict") {
  for (const auto* folder : {"llamafactory/examples", "axolotl", "accelerate", "deepspeed"}) {
    const auto data = troupe::tests::test_data(folder);
    if (!data) continue;
    PosixFileSystem files;
    std::vector<std::string> paths;
    find_configs(files, *data, paths);
    CHECK(paths.size() > 5);
    for (const auto& path : paths) {
      const auto text = verdict(path);
      std::cout << path.substr(data->size() + 1) << ": " << text << "\n";
      if (std::string(folder) != "llamafactory/examples") {
        CHECK(text.find("refused by") == 0);
      } else if (path.find("/examples/v1/") == std::string::npos &&
                 path.find("/extras/multi_tokens/") == std::string::npos) {
        // Every key of LLaMA-Factory's own stable examples is known.
        CHECK_MESSAGE(text.find("unknown key") == std::string::npos, path, ": ", text);
      }
    }
  }
}

TEST_CASE("a published example runs with the overrides that its refusals ask for") {
  const auto data = troupe::tests::test_data("llamafactory/examples");
  if (!data) return;
  CHECK(verdict(*data + "/train_full/qwen3_full_sft.yaml",
                {"bf16=false", "deepspeed=" + *data + "/deepspeed/ds_z0_config.json"}) ==
        "accepted");
  CHECK(verdict(*data + "/train_lora/qwen3_lora_pretrain.yaml",
                {"bf16=false", "finetuning_type=full"}) == "accepted");
  CHECK(verdict(*data + "/train_lora/qwen3_lora_sft.yaml",
                {"bf16=false", "finetuning_type=full"}) == "accepted");
  CHECK(verdict(*data + "/train_full/qwen3_full_sft.yaml",
                {"bf16=false", "deepspeed=" + *data + "/deepspeed/ds_z3_config.json"})
            .find("stage=3") != std::string::npos);
}

std::string text_verdict(std::string_view text, std::vector<std::string> arguments = {}) {
  tests::MemoryFiles files;
  const auto loaded =
      load_train_config_text(text, "x.yaml", arguments, MapEnvironment(), files, settings_only());
  return loaded.ok() ? "accepted" : loaded.status().to_string();
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("the command lines of the guides") {
  const std::vector<std::string> torchrun = {"--stage",
                                             "sft",
                                             "--model_name_or_path",
                                             "meta-llama/Meta-Llama-3-8B-Instruct",
                                             "--do_train",
                                             "--dataset",
                                             "alpaca_en_demo",
                                             "--template",
                                             "llama3",
                                             "--finetuning_type",
                                             "lora",
                                             "--output_dir",
                                             "saves/llama3-8b/lora/",
                                             "--overwrite_cache",
                                             "--per_device_train_batch_size",
                                             "1",
                                             "--gradient_accumulation_steps",
                                             "8",
                                             "--lr_scheduler_type",
                                             "cosine",
                                             "--logging_steps",
                                             "100",
                                             "--save_steps",
                                             "500",
                                             "--learning_rate",
                                             "1e-4",
                                             "--num_train_epochs",
                                             "2.0",
                                             "--plot_loss",
                                             "--bf16"};
  tests::MemoryFiles files;
  const auto loaded = load_train_config(torchrun, MapEnvironment(), files, settings_only());
  REQUIRE_FALSE(loaded.ok());
  CHECK(loaded.status().code() == Code::kUnsupported);
  CHECK(contains(loaded.status().message(), "flag: finetuning_type=lora is not supported"));
  auto full = torchrun;
  full[10] = "full";
  const auto accepted = load_train_config(full, MapEnvironment(), files, settings_only());
  REQUIRE_MESSAGE(accepted.ok(), accepted.status().to_string());
  CHECK(accepted->config.model.compute == Precision::kBfloat16);
}

TEST_CASE("accelerate's files of the guides are known for what they are") {
  const char* single = R"(compute_environment: LOCAL_MACHINE
debug: true
distributed_type: MULTI_GPU
downcast_bf16: 'no'
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: fp16
num_machines: 1
num_processes: 8
rdzv_backend: static
)";
  CHECK(contains(text_verdict(single), "x.yaml:3: distributed_type: this is an accelerate"));
  CHECK(contains(text_verdict("compute_environment: LOCAL_MACHINE\ndebug: false\n"
                              "distributed_type: FSDP\ndowncast_bf16: 'no'\n"),
                 "accelerate"));
  CHECK(contains(text_verdict("compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n"
                              "    zero_stage: 3\ndistributed_type: DEEPSPEED\n"),
                 "accelerate"));
}

TEST_CASE("AITraining's and Axolotl's files are known for what they are") {
  CHECK(contains(text_verdict("task: llm-sft\nbackend: local\nbase_model: meta-llama/Llama-3.2-3B\n"
                              "project_name: distributed-model\nparams:\n  epochs: 3\n"),
                 "AITraining"));
  CHECK(contains(text_verdict("base_model: NousResearch/Meta-Llama-3-8B\nmicro_batch_size: 1\n"),
                 "Axolotl"));
}

TEST_CASE("DeepSpeed files of the guide: stage 0 runs, the others are refused by stage") {
  const std::string start =
      "model_name_or_path: m\ndataset: d\nfinetuning_type: full\ndeepspeed:\n"
      "  train_batch_size: auto\n  train_micro_batch_size_per_gpu: auto\n"
      "  gradient_accumulation_steps: auto\n  gradient_clipping: auto\n"
      "  zero_allow_untested_optimizer: true\n"
      "  fp16: {enabled: auto, loss_scale: 0, loss_scale_window: 1000, initial_scale_power: 16,"
      " hysteresis: 2, min_loss_scale: 1}\n  bf16: {enabled: auto}\n  zero_optimization:\n";
  CHECK(text_verdict(start +
                     "    {stage: 0, allgather_partitions: true, allgather_bucket_size: 5e8,"
                     " overlap_comm: true, reduce_scatter: true, reduce_bucket_size: 5e8,"
                     " contiguous_gradients: true, round_robin_gradients: true}\n") == "accepted");
  CHECK(contains(text_verdict(start + "    stage: 2\n"), "zero_optimization.stage=2"));
  CHECK(contains(text_verdict(start + "    stage: 2\n    offload_optimizer: {device: cpu}\n"),
                 "zero_optimization.stage=2"));
  CHECK(contains(
      text_verdict(start + "    stage: 3\n    overlap_comm: true\n    sub_group_size: 1e9\n"),
      "zero_optimization.stage=3"));
}

}  // namespace
}  // namespace troupe::train
