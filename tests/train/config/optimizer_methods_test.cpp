// LLaMA-Factory's optimizers beside `optim`, DeepSpeed's: what a configuration comes to.
#include <doctest/doctest.h>

#include "tests/train/config/load_helpers.h"
#include "train/config/keys.h"
#include "train/optimizer/optimizers.h"

namespace troupe::train {
namespace {

using namespace tests;

TEST_CASE("keys of optimizers are stored, travel as JSON and come back") {
  const std::pair<const char*, json::Value> values[] = {{"use_galore", true},
                                                        {"galore_target", json::Array{"mlp"}},
                                                        {"galore_rank", 4},
                                                        {"galore_update_interval", 7},
                                                        {"galore_scale", 0.25},
                                                        {"galore_proj_type", "full"},
                                                        {"galore_layerwise", true},
                                                        {"use_apollo", true},
                                                        {"apollo_target", json::Array{"mlp"}},
                                                        {"apollo_rank", 4},
                                                        {"apollo_update_interval", 7},
                                                        {"apollo_scale", 0.25},
                                                        {"apollo_proj", "svd"},
                                                        {"apollo_layerwise", true},
                                                        {"apollo_scale_type", "tensor"},
                                                        {"apollo_scale_front", true},
                                                        {"use_badam", true},
                                                        {"badam_start_block", 2},
                                                        {"badam_switch_mode", "random"},
                                                        {"badam_switch_interval", -1},
                                                        {"use_adam_mini", true},
                                                        {"use_muon", true}};
  for (const auto& [key, value] : values) {
    CAPTURE(key);
    const KeySpec* row = find_key(key);
    REQUIRE(row);
    const auto canonical = canonical_value(*row, value);
    REQUIRE_MESSAGE(canonical.ok(), canonical.status().message());
    TrainConfig config;
    CHECK_FALSE(row->fetch(config) == *canonical);
    REQUIRE(row->store(config, *canonical).ok());
    const auto again = train_config_from_json(to_json(config));
    REQUIRE_MESSAGE(again.ok(), again.status().to_string());
    CHECK(row->fetch(*again) == *canonical);
  }
}

TEST_CASE("the optimizer that a configuration comes to") {
  TrainConfig config;
  CHECK(optimizer_choice(config) == "adamw_torch");
  const auto with_deepspeed = [&](std::string_view optimizer) {
    TrainConfig other;
    other.deepspeed["optimizer"] = json::parse(optimizer, "ds.json").value();
    return optimizer_choice(other);
  };
  CHECK(with_deepspeed(R"({"type": "AdamW"})") == "adamw_torch");
  CHECK(with_deepspeed(R"({"type": "Adam"})") == "adamw_torch");
  CHECK(with_deepspeed(R"({"type": "Adam", "params": {"adam_w_mode": false}})") == "adam");
  CHECK(with_deepspeed(R"({"type": "Lion"})") == "lion_32bit");
  config.training.optim = "adafactor";
  CHECK(optimizer_choice(config) == "adafactor");
  config.optimizer.use_muon = true;
  CHECK(optimizer_choice(config) == "muon");
  config.finetuning.loraplus_lr_ratio = 16;
  CHECK(optimizer_choice(config) == "adafactor");
  config.finetuning.loraplus_lr_ratio.reset();
  config.optimizer.use_badam = true;
  CHECK(optimizer_choice(config) == "badam");
  CHECK_FALSE(updates_layerwise(config));
  config.optimizer.use_galore = config.optimizer.galore_layerwise = true;
  CHECK(optimizer_choice(config) == "galore");
  CHECK(updates_layerwise(config));
}

TEST_CASE("what does not go together is refused in LLaMA-Factory's words") {
  const auto message = [](std::initializer_list<std::string> settings) {
    return refusal(load_with("", settings));
  };
  CHECK(contains(message({"use_galore=true", "use_apollo=true"}),
                 "Cannot use GaLore, APOLLO or BAdam together."));
  CHECK(contains(
      message({"use_galore=true", "galore_layerwise=true", "gradient_accumulation_steps=2"}),
      "Per-layer GaLore does not support gradient accumulation."));
  CHECK(contains(message({"use_apollo=true", "optim=adafactor"}), "use optim: adamw_torch"));
  CHECK(contains(message({"use_badam=true", "badam_mode=ratio"}), "use badam_mode: layer"));
  CHECK(load_with("", {"use_muon=true"}).ok());
  const std::string block =
      R"(deepspeed="{\"train_batch_size\": \"auto\", \"gradient_accumulation_steps\": \"auto\", \"optimizer\": )"
      R"({\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}}")";
  CHECK_MESSAGE(load_with("", {block}).ok(), message({block}));
  CHECK(contains(message({block, "use_muon=true"}),
                 "use_muon and the optimizer block of the DeepSpeed file name two optimizers"));
  CHECK(contains(message({block, "finetuning_type=lora", "loraplus_lr_ratio=16"}),
                 "loraplus_lr_ratio and the optimizer block of the DeepSpeed file"));
  // LLaMA-Factory would ignore one of the two silently.
  CHECK(contains(message({"use_muon=true", "use_adam_mini=true"}), "leave all but one out"));
  CHECK(contains(message({"use_galore=true", "use_muon=true"}), "leave all but one out"));
  CHECK(contains(message({"finetuning_type=lora", "loraplus_lr_ratio=16", "use_muon=true"}),
                 "leave all but one out"));
  CHECK(contains(message({"use_muon=true", "optim=adamw_8bit"}), "use optim: adamw_torch"));
  CHECK(contains(message({"use_adam_mini=true", "optim=lion_8bit"}), "leave use_adam_mini out"));
  CHECK(contains(message({"use_badam=true", "badam_switch_interval=0"}), "or -1"));
}

TEST_CASE("transformers' names of GaLore and APOLLO") {
  const auto projection = [](std::vector<std::string> settings) {
    return *transformers_projection(accepted(load_with("", settings)).config).value();
  };
  const ProjectionSettings galore =
      projection({"optim=galore_adamw", "optim_target_modules=[attn, .*.mlp.*]"});
  CHECK(galore.target == "attn mlp");
  CHECK(galore.rank == 128);
  CHECK(galore.interval == 200);
  CHECK(galore.scale == 0.25);
  CHECK(galore.type == "std");
  CHECK_FALSE(galore.scales_gradient);
  const ProjectionSettings apollo =
      projection({"optim=apollo_adamw", "optim_target_modules=all-linear",
                  "optim_args=\"rank=4, scale=2.5,proj=svd,scale_type=tensor,update_proj_gap=7\""});
  CHECK(apollo.target == "_proj lm_head");
  CHECK(apollo.rank == 4);
  CHECK(apollo.interval == 7);
  CHECK(apollo.scale == 2.5);
  CHECK(apollo.scales_gradient);
  CHECK_FALSE(apollo.random);
  CHECK(apollo.by_tensor);
  CHECK_FALSE(transformers_projection(accepted(load_with("")).config).value());
  const auto message = [](std::vector<std::string> settings) {
    settings.push_back("optim=galore_adamw");
    return refusal(load_with("", settings));
  };
  CHECK(contains(message({}), "You need to define `optim_target_modules`"));
  CHECK(contains(message({"optim_target_modules=[q.*_proj]"}), "expected words of the names"));
  CHECK(contains(message({"optim_target_modules=[attn]", "optim_args=\"rank=x\""}),
                 "'rank=x' is no argument of galore_adamw"));
  CHECK(contains(
      message({"optim_target_modules=[attn]",
               "deepspeed={zero_optimization: {stage: 2}, train_micro_batch_size_per_gpu: auto, "
               "gradient_accumulation_steps: auto}"}),
      "incompatible with DeepSpeed"));
  CHECK(contains(message({"optim_target_modules=[attn]", "finetuning_type=lora"}),
                 "Cannot use LoRA"));
  CHECK(contains(refusal(load_with("", {"optim=galore_adamw_8bit"})), "galore_adamw_8bit"));
}

}  // namespace
}  // namespace troupe::train
