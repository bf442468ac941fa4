// Configurations that exist: each must come to a definite verdict, accepted or refused by a key.

#include <doctest/doctest.h>

#include <iostream>

#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "tests/train/config/memory_files.h"
#include "train/config/load.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;

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

// Where a project's configurations lie below its data.
std::string examples_of(std::string_view project) {
  return project == "llamafactory" ? "/examples" : "";
}

// The machine's files, with relative paths below a folder: examples name each other by paths from
// the root of their repository.
class FilesBelow final : public tests::MemoryFiles {
 public:
  explicit FilesBelow(std::string root) : root_(std::move(root)) {}
  Result<std::string> read(const std::string& path, std::uint64_t bytes_max) override {
    // Paths of the data themselves are given from where the tests run.
    return files_.read(path.starts_with(root_) ? path : join_path(root_, path), bytes_max);
  }

 private:
  PosixFileSystem files_;
  std::string root_;
};

std::string text_of(const Result<LoadedConfig>& loaded, const std::string& name) {
  if (loaded.ok()) {
    const auto& config = loaded->config;
    return fmt::format("accepted: {}{}, {} trainers", config.sharding.strategy,
                       config.model.compute == Precision::kBfloat16 ? " bf16" : "",
                       loaded->world_size.value);
  }
  const auto status = loaded.status();
  const auto key = status.context("key");
  // What is no valid YAML has no key, but a line.
  CHECK_MESSAGE((key.has_value() || status.message().starts_with(name + ":")), status.to_string());
  const auto& message = status.message();
  return fmt::format("refused by {}: {}", key.value_or("its form"),
                     message.substr(0, message.find('\n')));
}

// The verdict in one line; fails where a refusal names no key. `root` is where relative paths
// begin.
std::string verdict(const std::string& root, const std::string& path,
                    std::vector<std::string> arguments = {}) {
  FilesBelow files(root);
  arguments.insert(arguments.begin(), path);
  return text_of(load_train_config(arguments, MapEnvironment(), files, settings_only()), path);
}

// The verdict over a plain training configuration with one more setting.
std::string verdict_with(const std::string& root, const std::string& setting,
                         std::vector<std::string> more = {}) {
  FilesBelow files(root);
  more.push_back(setting);
  return text_of(load_train_config_text("model_name_or_path: m\ndataset: d\nfinetuning_type: full\n"
                                        "per_device_train_batch_size: 1\n",
                                        "x.yaml", more, MapEnvironment(), files, settings_only()),
                 "x.yaml");
}

void say(const std::string& root, const std::string& path, const std::string& text) {
  std::cout << path.substr(root.size() + 1) << ": " << text << "\n";
}

TEST_CASE("every published example has a verdict") {
  for (const auto* folder : {"llamafactory", "accelerate", "deepspeed"}) {
    const auto data = troupe::tests::test_data(folder);
    if (!data) continue;
    PosixFileSystem files;
    std::vector<std::string> paths;
    find_configs(files, *data + examples_of(folder), paths);
    CHECK(paths.size() > 5);
    for (const auto& path : paths) {
      const auto text = verdict(*data, path);
      if (std::string(folder) != "llamafactory") {
        CHECK(text.find("refused by") == 0);
        continue;
      }
      say(*data, path, text);
      if (path.find("/examples/v1/") == std::string::npos &&
          path.find("/extras/multi_tokens/") == std::string::npos) {
        // Every key of LLaMA-Factory's own stable examples is known.
        CHECK_MESSAGE(text.find("unknown key") == std::string::npos, path, ": ", text);
      }
    }
  }
}

TEST_CASE("LLaMA-Factory's examples of full training and of adapters run as they are") {
  const auto data = troupe::tests::test_data("llamafactory");
  if (!data) return;
  PosixFileSystem files;
  std::vector<std::string> paths;
  find_configs(files, *data + "/examples/train_full", paths);
  CHECK(paths.size() >= 3);
  for (const auto& path : paths) {
    CHECK_MESSAGE(verdict(*data, path) == "accepted: zero3 bf16, 1 trainers", path, ": ",
                  verdict(*data, path));
  }
  const auto lora = *data + "/examples/train_lora/";
  for (const auto& [name, strategy] : {std::pair("qwen3_lora_pretrain.yaml", "ddp bf16, 1"),
                                       std::pair("qwen3_lora_sft.yaml", "ddp bf16, 1"),
                                       std::pair("qwen3_lora_sft_ds3.yaml", "zero3 bf16, 1"),
                                       std::pair("qwen3_lora_sft_ray.yaml", "zero3 bf16, 4")}) {
    const auto text = verdict(*data, lora + name);
    if (std::string(name).find("ray") == std::string::npos) {
      CHECK_MESSAGE(text == fmt::format("accepted: {} trainers", strategy), name, ": ", text);
    } else {
      CHECK_MESSAGE(text.find("accepted") == 0, name, ": ", text);
    }
  }
  CHECK(verdict(*data, *data + "/examples/merge_lora/qwen3_lora_sft.yaml").find("refused by ") ==
        0);
}

TEST_CASE("DeepSpeed's files under the key deepspeed") {
  for (const auto* folder : {"llamafactory", "accelerate", "deepspeed"}) {
    const auto data = troupe::tests::test_data(folder);
    if (!data) continue;
    PosixFileSystem files;
    std::vector<std::string> paths;
    find_configs(files, *data + examples_of(folder), paths);
    for (const auto& path : paths) {
      if (!path.ends_with(".json")) continue;
      const auto text = verdict_with(*data, "deepspeed=" + path, {"bf16=true"});
      say(*data, path, text);
      // Only what is no configuration of DeepSpeed has keys that are not known.
      CHECK_MESSAGE((text.find("unknown key") == std::string::npos ||
                     path.find("/aio/") != std::string::npos ||
                     path.find("/examples/deepspeed/") == std::string::npos),
                    path, ": ", text);
    }
  }
  const auto data = troupe::tests::test_data("llamafactory");
  if (!data) return;
  const auto of = [&](const std::string& name, const char* bf16) {
    return verdict_with(*data, "deepspeed=examples/deepspeed/" + name, {bf16, "troupe.workers=2"});
  };
  CHECK(of("ds_z0_config.json", "bf16=true") == "accepted: ddp bf16, 2 trainers");
  CHECK(of("ds_z2_config.json", "bf16=true") == "accepted: zero2 bf16, 2 trainers");
  CHECK(of("ds_z3_config.json", "bf16=false") == "accepted: zero3, 2 trainers");
  const auto refused = [&](const std::string& name, const char* path) {
    const auto text = of(name, "bf16=true");
    CHECK_MESSAGE((text.find("refused by deepspeed") == 0 && text.find(path) != std::string::npos),
                  text);
  };
  refused("ds_z2_autotp_config.json", "tensor_parallel.autotp_size=2 is not supported");
  CHECK(of("ds_z2_offload_config.json", "bf16=true") == "accepted: zero2 bf16, 2 trainers");
  CHECK(of("ds_z3_offload_config.json", "bf16=true") == "accepted: zero3 bf16, 2 trainers");
  CHECK(of("ds_z3_fp8_config.json", "bf16=true") == "accepted: zero3 bf16, 2 trainers");
}

TEST_CASE("accelerate's files under troupe.accelerate_config") {
  for (const auto* folder : {"llamafactory", "accelerate"}) {
    const auto data = troupe::tests::test_data(folder);
    if (!data) continue;
    PosixFileSystem files;
    std::vector<std::string> paths;
    find_configs(files, *data + examples_of(folder), paths);
    for (const auto& path : paths) {
      if (path.ends_with(".json") || (std::string(folder) == "llamafactory" &&
                                      path.find("/accelerate/") == std::string::npos)) {
        continue;
      }
      say(*data, path, verdict_with(*data, "troupe.accelerate_config=" + path));
    }
  }
  const auto data = troupe::tests::test_data("llamafactory");
  if (!data) return;
  const auto of = [&](const std::string& name) {
    return verdict_with(*data, "troupe.accelerate_config=examples/accelerate/" + name);
  };
  CHECK(of("fsdp_config.yaml") == "accepted: zero3 bf16, 2 trainers");
  CHECK(of("fsdp2_config.yaml") == "accepted: zero3 bf16, 2 trainers");
  CHECK(of("fsdp2_config_qwen35.yaml") == "accepted: zero3 bf16, 8 trainers");
  CHECK(of("fsdp_config_multiple_nodes.yaml") == "accepted: zero3 bf16, 16 trainers");
  CHECK(of("fsdp_config_offload.yaml") == "accepted: zero3 bf16, 2 trainers");
}

std::string text_verdict(std::string_view text, std::vector<std::string> arguments = {}) {
  tests::MemoryFiles files;
  const auto loaded =
      load_train_config_text(text, "x.yaml", arguments, MapEnvironment(), files, settings_only());
  return loaded.ok() ? "accepted" : loaded.status().to_string();
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
  const auto accepted = load_train_config(torchrun, MapEnvironment(), files, settings_only());
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

TEST_CASE("Axolotl's examples are read, or refused by a key of Axolotl's") {
  const auto data = troupe::tests::test_data("axolotl");
  if (!data) return;
  PosixFileSystem files;
  std::vector<std::string> paths;
  find_configs(files, *data + "/examples", paths);
  CHECK(paths.size() == 74);
  int accepted = 0;
  for (const auto& path : paths) {
    const auto text = verdict(*data, path);
    say(*data, path, text);
    accepted += text.starts_with("accepted");
    CHECK_MESSAGE(text.find("unknown key") == std::string::npos, path, ": ", text);
    if (text.starts_with("accepted")) continue;
    // The line of the file stands there, and no key that the file does not have.
    CHECK_MESSAGE(text.find(path + ":") != std::string::npos, path, ": ", text);
    for (const auto* ours :
         {"model_name_or_path", "per_device_", "cutoff_len", "troupe.", "optim="})
      CHECK_MESSAGE(text.find(ours) == std::string::npos, path, ": ", text);
  }
  CHECK(accepted >= 8);
}

TEST_CASE("DeepSpeed mappings of the guide") {
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
  CHECK(text_verdict(start + "    stage: 2\n") == "accepted");
  CHECK(text_verdict(start + "    stage: 2\n    offload_optimizer: {device: cpu}\n") == "accepted");
  CHECK(text_verdict(start + "    stage: 3\n    overlap_comm: true\n    sub_group_size: 1e9\n") ==
        "accepted");
}

}  // namespace
}  // namespace troupe::train
