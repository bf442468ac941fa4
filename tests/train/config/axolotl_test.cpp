// Axolotl's files: what they become of ours, and what is said of them in their own words.
#include "train/config/axolotl.h"

#include "tests/train/config/load_helpers.h"
#include "train/config/derived.h"
#include "train/config/explain.h"

namespace troupe::train::axolotl_tests {
namespace {

using namespace tests;

const std::string kAxolotl = std::string(kAxolotlFile) + "output_dir: ./outputs/out\n";

Result<LoadedConfig> load(std::string_view lines, std::vector<std::string> arguments = {},
                          std::int64_t gpus = 0) {
  auto files = good_files();
  files.put("rows.json", "[]");
  LoadOptions options;
  options.gpu_count = gpus;
  return load_train_config_text(kAxolotl + std::string(lines) + "\n", "ax.yaml", arguments,
                                MapEnvironment(), files, options);
}
std::string refused(std::string_view lines, std::vector<std::string> arguments = {}) {
  return refusal(load(lines, std::move(arguments)));
}
bool said(const LoadedConfig& loaded, std::string_view part) {
  for (const auto& notice : loaded.notices)
    if (contains(notice, part)) return true;
  return false;
}

TEST_CASE("an Axolotl file becomes typed fields, with Axolotl's defaults") {
  const auto loaded = accepted(load(""));
  const auto& config = loaded.config;
  CHECK(said(loaded, "ax.yaml is a file of Axolotl (base_model, datasets, sequence_len)"));
  CHECK(config.model.model_name_or_path == "tiny");
  CHECK(config.finetuning.type == FinetuningType::kFull);
  CHECK(config.data.cutoff_len == 64);
  REQUIRE(config.data.rows.datasets.size() == 1);
  CHECK(config.data.rows.datasets[0].at("type") == "alpaca");
  CHECK(config.training.per_device_train_batch_size == 2);
  CHECK(config.training.gradient_accumulation_steps == 3);
  CHECK(config.evaluation.per_device_eval_batch_size == 2);
  CHECK(config.training.num_train_epochs == 1);
  CHECK(config.training.lr_scheduler_type == "cosine");
  CHECK(config.training.warmup_ratio == 0.03);
  CHECK(config.training.warmup_steps_max == 100);
  CHECK(config.training.logging_steps_max == 10);
  CHECK(config.training.save_strategy == IntervalStrategy::kEpoch);
  CHECK(config.training.save_total_limit == 4);
  for (const char* none : {"save_total_limit:", "save_total_limit: 0"}) {
    CHECK(accepted(load(none)).config.training.save_total_limit == 4);
  }
  CHECK(config.training.overwrite_output_dir);
  CHECK(config.training.step_rules == StepRules::kAxolotl);
  CHECK(config.model.activation_checkpointing == ActivationCheckpointing::kNone);
  CHECK(config.model.compute == Precision::kFloat32);
  CHECK(accepted(load("bf16: auto", {}, 1)).config.model.compute == Precision::kBfloat16);
  CHECK(accepted(load("fp16: true", {}, 1)).config.model.compute == Precision::kFloat16);
  CHECK(accepted(load("bf16: auto\nfp16: true")).config.model.compute == Precision::kFloat16);
  CHECK(contains(refused("float16: true"), "use fp16: true"));
  // The record of a run holds all of it.
  const auto again = train_config_from_json(to_json(config));
  REQUIRE(again.ok());
  CHECK(to_json(*again) == to_json(config));
}

TEST_CASE("what is wrong is said with Axolotl's key and line") {
  CHECK(contains(refused("num_epochs: many"),
                 "ax.yaml:11: num_epochs: expected a number, found \"many\""));
  const auto bad = load("num_epochs: many");
  CHECK(bad.status().context("key") == "num_epochs");
  CHECK(contains(refused("", {"micro_batch_size=0"}),
                 "command line: micro_batch_size: 0 is too small: at least 1"));
  CHECK(contains(refused("microbatch_size: 1"), "ax.yaml:11: unknown key 'microbatch_size'"));
  CHECK(contains(refused("microbatch_size: 1"), "micro_batch_size"));
  CHECK(contains(refused("per_device_train_batch_size: 1"), "unknown key"));
  CHECK(contains(refused("warmup_steps: 2.5"),
                 "ax.yaml:11: warmup_steps: 2.5 is neither a whole number"));
  CHECK(contains(refused("", {"base_model=nowhere"}),
                 "command line: base_model: 'nowhere' is no folder on this machine"));
  CHECK(contains(refused("", {"datasets=[{path: none.json, type: alpaca}]"}),
                 "command line: datasets: 'none.json' is no file or folder"));
  CHECK(said(accepted(load("adam_eps: 1e-9")), "did you mean adam_epsilon?"));
}

TEST_CASE("--format decides, and names its choices") {
  CHECK(contains(refused("", {"--format", "axolot"}),
                 "--format: 'axolot' is no valid value; one of llamafactory"));
  CHECK(contains(refused("", {"--format=llamafactory"}), "unknown key"));
  CHECK(accepted(load("", {"--format=axolotl"})).config.data.cutoff_len == 64);
}

TEST_CASE("overrides are Axolotl's keys, and ours where it has no word") {
  const auto loaded =
      accepted(load("", {"--micro-batch-size", "4", "fsdp_config.offload_params=false",
                         "troupe.workers=2", "overwrite_output_dir=false", "--tf32"}));
  CHECK(loaded.config.training.per_device_train_batch_size == 4);
  CHECK(loaded.config.troupe.workers == 2);
  CHECK_FALSE(loaded.config.training.overwrite_output_dir);
  CHECK(loaded.config.sharding.strategy == "zero3");
  for (const auto& row : explain(loaded)) {
    if (row.key == "cutoff_len") CHECK(row.origin == "ax.yaml:5 sequence_len");
    if (row.key == "lr_scheduler_type") CHECK(row.origin == "Axolotl's default");
  }
}

TEST_CASE("rules of batches, steps and evaluation") {
  CHECK(contains(refused("batch_size: 12"),
                 "please set only one of gradient_accumulation_steps or batch_size"));
  CHECK(contains(refused("warmup_steps: 3\nwarmup_ratio: 0.1"), "mutually exclusive"));
  CHECK(contains(refused("saves_per_epoch: 3\nsave_steps: 10"), "mutually exclusive"));
  CHECK(contains(refused("eval_steps: 3"), "not supported with val_set_size == 0"));
  CHECK(contains(refused("datasets_: 1"), "unknown key"));
  CHECK(contains(refused("test_datasets: [{path: rows.json, type: alpaca}]\nval_set_size: 3"),
                 "non-zero val_set_size should not be used with test_datasets"));

  const auto twice =
      accepted(load("saves_per_epoch: 2\nevals_per_epoch: 4\nnum_epochs: 2\nval_set_size: 0.1"))
          .config;
  CHECK(twice.training.save_strategy == IntervalStrategy::kSteps);
  CHECK(twice.training.save_steps == 0.25);
  CHECK(twice.evaluation.eval_steps == 0.125);
  CHECK(twice.evaluation.on_start);
  const auto once = accepted(load("saves_per_epoch: 1\nevals_per_epoch: 1\nval_set_size: 0.1"));
  CHECK(once.config.training.save_strategy == IntervalStrategy::kEpoch);
  CHECK(once.config.evaluation.strategy == IntervalStrategy::kNo);
  CHECK(said(once, "no evaluation at all"));

  const auto share = accepted(load("warmup_steps: 0.1"));
  CHECK(share.config.training.warmup_ratio == 0.1);
  CHECK(said(share, "taken for a share"));
}

TEST_CASE("steps by Axolotl's rules") {
  TrainingSection training;
  training.step_rules = StepRules::kAxolotl;
  training.per_device_train_batch_size = 2;
  training.gradient_accumulation_steps = 3;
  training.num_train_epochs = 3;
  training.warmup_ratio = 0.1;
  // ⌈100 · 3 / 12⌉, where whole epochs of ⌈100 / 12⌉ steps would make 27.
  auto plan = plan_steps(training, 100, 2).value();
  CHECK(plan.total_steps == 25);
  CHECK(plan.warmup_steps == 2);  // ⌊2.5⌋
  training.warmup_ratio = 0.05;
  CHECK(plan_steps(training, 100, 2)->warmup_steps == 2);  // 1 becomes 2
  training.warmup_ratio = 0.03;
  CHECK(plan_steps(training, 100, 2)->warmup_steps == 0);
  training.warmup_steps_max = 100;
  CHECK(plan_steps(training, 100'000, 2)->warmup_steps == 100);
  training.warmup_steps = 1;
  CHECK(plan_steps(training, 100, 2)->warmup_steps == 2);
  // Packed: ⌊20 / (3 · 2)⌋ steps of an epoch.
  CHECK(plan_steps(training, 100, 2, 20)->total_steps == 9);
  training.num_train_epochs = 1.5;
  CHECK(plan_steps(training, 100, 2, 20)->total_steps == 4);
  training.max_steps = 50;
  CHECK(plan_steps(training, 100, 2, 20)->total_steps == 50);
  // Of these a share is counted by the data, not by max_steps.
  training.warmup_steps = 0;
  training.warmup_ratio = 0.5;
  CHECK(plan_steps(training, 100, 2, 20)->warmup_steps == 2);
  CHECK_FALSE(plan_steps(training, 100, 2, 1).ok());
  training = {};
  training.logging_steps = 1.0 / 200;
  training.logging_steps_max = 10;
  training.num_train_epochs = 1;
  CHECK(plan_steps(training, 8 * 500, 1)->logging_interval == 2);
  CHECK(plan_steps(training, 8 * 10'000, 1)->logging_interval == 10);
  CHECK(plan_steps(training, 8, 1)->logging_interval == 1);
}

TEST_CASE("the watchdog of the loss") {
  const auto watched = accepted(load("loss_watchdog_threshold: 5.0\nloss_watchdog_patience: 2"));
  CHECK(watched.config.troupe.loss_limit == 5);
  CHECK(watched.config.troupe.loss_limit_steps == 2);
  CHECK(accepted(load("loss_watchdog_threshold: 5")).config.troupe.loss_limit_steps == 3);
  CHECK_FALSE(accepted(load("loss_watchdog_patience: 2")).config.troupe.loss_limit);
  CHECK(contains(refused("loss_watchdog_threshold: high"), "loss_watchdog_threshold"));
}

TEST_CASE("splits joined by + are data sets that follow each other") {
  const auto sets =
      accepted(load("", {"datasets=[{path: rows.json, type: alpaca, split: 'train[:2]+test'}, "
                         "{path: rows.json, type: completion}]"}))
          .config.data.rows.datasets;
  REQUIRE(sets.size() == 3);
  CHECK(sets[0].at("split") == "train[:2]");
  CHECK(sets[1].at("split") == "test");
  CHECK(sets[1].at("type") == "alpaca");
  CHECK(sets[2].at("type") == "completion");
}

TEST_CASE("the rows of a packed micro-batch: multipack_real_batches, else by the attention") {
  const auto rows = [](const std::string& lines) {
    return accepted(load("sample_packing: true\n" + lines)).config.data.sample_packing.rows;
  };
  CHECK(rows("attn_implementation: sdpa"));
  CHECK_FALSE(rows("attn_implementation: flash_attention_2"));
  CHECK(rows("flash_attention: true\nmultipack_real_batches: true"));
  CHECK_FALSE(rows("attn_implementation: sdpa\nmultipack_real_batches: false"));
}

TEST_CASE("courses of the learning rate") {
  const auto least = accepted(load("cosine_min_lr_ratio: 0.1\ncosine_constant_lr_ratio: 0.8"));
  CHECK(least.config.training.lr_scheduler_type == "cosine_with_min_lr");
  CHECK(least.config.training.lr_scheduler_kwargs.at("min_lr_rate") == 0.1);
  CHECK(least.config.training.lr_scheduler_kwargs.at("constant_from") == 0.8);
  // The pair of Axolotl's pre-training examples.
  const auto pair = accepted(load("cosine_min_lr_ratio: 1.0\ncosine_constant_lr_ratio: 0"));
  CHECK(pair.config.training.lr_scheduler_kwargs.size() == 1);
  CHECK(accepted(load("lr_quadratic_warmup: true"))
            .config.training.lr_scheduler_kwargs.at("warmup_power") == 2);
  CHECK(contains(refused("lr_scheduler: rex"), "ax.yaml:11: lr_scheduler=rex is not supported"));
  CHECK(contains(refused("lr_scheduler: linear\ncosine_min_lr_ratio: 0.1"),
                 "cosine_min_lr_ratio: belongs to lr_scheduler: cosine"));
  CHECK(contains(refused("cosine_constant_lr_ratio: 0.5"), "needs cosine_min_lr_ratio above 0"));
}

TEST_CASE("EAFT's loss, as Axolotl computes it") {
  const auto method = accepted(load("use_eaft: true\neaft_alpha: 2\neaft_k: 8")).config.method;
  CHECK(method.use_eaft_loss);
  CHECK(method.eaft_alpha == 2);
  CHECK(method.eaft_top == 8);
  CHECK(method.eaft_divisor == 1.0);
  CHECK(contains(refused("use_eaft: true\neaft_k: 1"), "eaft_k: expected 2 or more"));
}

TEST_CASE("adapters") {
  const auto lora = accepted(load("adapter: lora\nlora_r: 16\nlora_alpha: 32\nlora_dropout: 0.05\n"
                                  "lora_target_linear: true\npeft_use_rslora: true\n"
                                  "lora_modules_to_save: [lm_head, embed_tokens]"))
                        .config.finetuning;
  CHECK(lora.is_lora());
  CHECK(lora.lora_rank == 16);
  CHECK(lora.lora_alpha == 32);
  CHECK(lora.lora_target == std::vector<std::string>{"all"});
  CHECK(lora.use_rslora);
  CHECK(lora.additional_target == std::vector<std::string>{"lm_head", "embed_tokens"});
  CHECK(contains(refused("adapter: lora"), "a new adapter needs lora_r"));
  CHECK(contains(refused("adapter: qlora\nlora_r: 8\nlora_alpha: 8\nlora_target_linear: true"),
                 "Require cfg.load_in_4bit to be True for qlora"));
  CHECK(contains(refused("load_in_4bit: true"),
                 "load_in_8bit and load_in_4bit are not supported without setting an adapter"));
  const std::string qlora =
      "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 8\nlora_target_linear: true\n";
  const auto four_bits = accepted(load(qlora)).config.model;
  CHECK(four_bits.quantization_bit == 4);
  CHECK(four_bits.quantization_type == "nf4");
  CHECK(four_bits.double_quantization);
  const auto changed = accepted(load(qlora + "bnb_config_kwargs: {bnb_4bit_quant_type: fp4, "
                                             "bnb_4bit_use_double_quant: false}"))
                           .config.model;
  CHECK(changed.quantization_type == "fp4");
  CHECK(!changed.double_quantization);
  CHECK(contains(refused(qlora + "bnb_config_kwargs: {bnb_4bit_quant: fp4}"),
                 "bitsandbytes has no setting bnb_4bit_quant; of 4 bits there are"));
  CHECK(contains(refused(qlora + "bnb_config_kwargs: {llm_int8_skip_modules: [lm_head]}"),
                 "bnb_config_kwargs.llm_int8_skip_modules is not supported"));
  CHECK(contains(refused(qlora + "load_in_8bit: true"), "Can't load qlora in 8bit"));
  const std::string in_bytes =
      "adapter: lora\nload_in_8bit: true\nlora_r: 8\nlora_alpha: 8\nlora_target_linear: true\n";
  CHECK(accepted(load(in_bytes)).config.model.quantization_bit == 8);
  CHECK(contains(refused(in_bytes + "load_in_4bit: true"), "weights are kept in one of the two"));
  CHECK(contains(refused(qlora + "bnb_config_kwargs: {bnb_4bit_compute_dtype: float16}"),
                 "bnb_4bit_compute_dtype is not supported where it differs"));
  CHECK(accepted(load(qlora + "bnb_config_kwargs: {bnb_4bit_compute_dtype: float32}"))
            .config.model.quantization_bit == 4);
  CHECK(accepted(load(qlora + "peft_use_dora: true")).config.finetuning.use_dora);
  CHECK(contains(refused("adapter: ia3"), "ax.yaml:11: adapter=ia3 is not supported"));
}

TEST_CASE("sharding: fsdp, DeepSpeed's files, meshes") {
  const auto fsdp = accepted(
      load("fsdp: [full_shard, auto_wrap]\nfsdp_config:\n  fsdp_sharding_strategy: NO_SHARD\n"
           "  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_offload_params: false"));
  CHECK(fsdp.config.sharding.strategy == "zero3");
  CHECK(fsdp.config.training.checkpoint_format == CheckpointFormat::kSharded);
  CHECK(said(fsdp, "fsdp_config.fsdp_sharding_strategy has no effect"));
  const auto second =
      accepted(load("fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: false"));
  CHECK(second.config.sharding.strategy == "shard_grad_op");
  CHECK(contains(refused("fsdp_config:\n  offload_parms: true"), "offload_parms"));
  CHECK(contains(refused("fsdp_config: yes please"), "expected settings, a mapping"));
  CHECK(contains(refused("deepspeed: deepspeed_configs/zero2.json\nfsdp: [full_shard]"),
                 "deepspeed and fsdp cannot be used together."));
  for (const auto& [name, strategy] :
       {std::pair("zero1", "zero1"), std::pair("zero2", "zero2"), std::pair("zero3", "zero3"),
        std::pair("zero3_bf16", "zero3"), std::pair("zero3_bf16_cpuoffload_params", "zero3"),
        std::pair("zero3_bf16_cpuoffload_all", "zero3")}) {
    const auto loaded =
        accepted(load(fmt::format("bf16: true\ndeepspeed: deepspeed_configs/{}.json", name)));
    CHECK(loaded.config.sharding.strategy == strategy);
    CHECK(said(loaded, "Axolotl's own file of that name"));
  }
  CHECK(contains(refused("deepspeed: deepspeed_configs/none.json"), "none.json"));
  const auto mesh = accepted(load("dp_shard_size: 2\ndp_replicate_size: 2", {"troupe.workers=4"}));
  CHECK(mesh.config.sharding.strategy == "hsdp");
  CHECK(contains(refused("tensor_parallel_size: 2"), "tensor_parallel_size=2 is not supported"));
  accepted(load("tensor_parallel_size: 1\ncontext_parallel_size: 1"));
}

TEST_CASE("unfrozen_parameters: expressions as Axolotl reads them, of whole tensors") {
  const auto loaded = accepted(load("unfrozen_parameters:\n  - ^lm_head.weight$\n  - a.+b.[0-9]*"));
  CHECK(loaded.config.finetuning.type == FinetuningType::kFreeze);
  CHECK(loaded.config.finetuning.trained_parameters ==
        std::vector<std::string>{"^lm_head\\.weight$", "a.+b\\.[0-9]*"});
  CHECK(contains(refused("unfrozen_parameters: ['^model.embed_tokens.weight$[:32000]']"),
                 "unfrozen_parameters=^model.embed_tokens.weight$[:32000] is not supported: a "
                 "tensor is trained whole here"));
  CHECK(
      contains(refused("unfrozen_parameters: [lm_head]\nadapter: lora\nlora_r: 8\nlora_alpha: 16\n"
                       "lora_target_linear: true"),
               "unfrozen_parameters beside an adapter is not supported"));
  CHECK(accepted(load("unfrozen_parameters: []")).config.finetuning.type == FinetuningType::kFull);
}

TEST_CASE("what is refused names the way out") {
  CHECK(contains(refused("", {"optimizer=lomo"}),
                 "command line: optimizer=lomo is not supported: the optimizers here are"));
  CHECK(contains(refused("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}",
                         {"optimizer=adamw_8bit"}),
                 "FSDP2 not compatible with adamw_8bit, use `adamw_torch_8bit` instead"));
  CHECK(contains(refused("plugins: [axolotl.integrations.liger.LigerPlugin, a.b.Other]"),
                 "plugins=a.b.Other is not supported"));
  accepted(load("plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_rope: true"));
  accepted(load("plugins:\n  - axolotl.integrations.kernels.KernelsPlugin\nuse_scattermoe: true"));
  accepted(load("model_config: {output_router_logits: true}"));
  CHECK(contains(refused("save_strategy: 'no'\nsave_steps: 1"),
                 "save_strategy and save_steps mismatch."));
  CHECK(contains(refused("eval_strategy: epoch\neval_steps: 2\nval_set_size: 0.1"),
                 "eval_strategy and eval_steps mismatch."));
  const std::string linear = "adapter: lora\nlora_r: 8\nlora_alpha: 8\nlora_target_linear: true\n";
  CHECK(contains(refused(linear + "lora_target_modules: [q_proj, embed_tokens]"),
                 "lora_target_modules=embed_tokens beside lora_target_linear: true"));
  accepted(load(linear + "lora_target_modules: [q_proj]"));
  CHECK(contains(refused("rl: dpo"), "rl=dpo is not supported"));
  CHECK(contains(refused("", {"datasets=[{path: rows.json, type: sharegpt}]"}),
                 "`type: sharegpt.*` is deprecated. Please use `type: chat_template` instead"));
  CHECK(contains(refused("", {"datasets=[{path: rows.json, type: alpacca}]"}),
                 "datasets[0].type=alpacca is not supported"));
  CHECK(contains(refused("", {"datasets=[{path: rows.json, typ: alpaca}]"}),
                 "unknown key 'datasets[0].typ'"));
  CHECK(contains(refused("hub_model_id: a/b"), "upload output_dir yourself"));
  CHECK(contains(refused("model_type: AutoModelForSequenceClassification"), "reward models"));
  CHECK(said(accepted(load("wandb_project: mine")),
             "wandb_project has no effect: the log is trainer_log.jsonl in output_dir"));
}

TEST_CASE("templates given as Jinja text, or in a file") {
  const std::string set = "datasets=[{path: rows.json, type: chat_template";
  const auto first = [](const LoadedConfig& loaded) {
    return loaded.config.data.rows.datasets[0].as_object();
  };
  const auto of_all = accepted(load("chat_template_jinja: '{{ messages }}'", {set + "}]"}));
  CHECK(first(of_all).at("chat_template") == "jinja");
  CHECK(first(of_all).at("chat_template_jinja") == "{{ messages }}");
  const auto own =
      accepted(load("chat_template: chatml", {set + ", chat_template_jinja: '{{ messages }}'}]"}));
  CHECK(first(own).at("chat_template") == "jinja");
  CHECK(first(accepted(load("chat_template: chatml", {set + "}]"}))).size() ==
        first(accepted(load("", {set + "}]"}))).size());
  CHECK(said(accepted(load("chat_template: chatml\nchat_template_jinja: x", {set + "}]"})),
             "chat_template_jinja has no effect: chat_template is not jinja"));
  CHECK(contains(refused("chat_template: jinja", {set + "}]"}),
                 "chat_template_jinja gives neither a template nor the path of a file"));
  CHECK(contains(refused("chat_template_jinja: none.jinja", {set + "}]"}),
                 "chat_template_jinja gives neither a template nor the path of a file"));
}

TEST_CASE("the errors of Axolotl's document have the same cures here") {
  // 8-bit AdamW with FSDP2.
  for (const char* name : {"adamw_8bit", "adamw_bnb_8bit"})
    CHECK(contains(
        refused("fsdp_version: 2\nfsdp: [full_shard]", {fmt::format("optimizer={}", name)}),
        fmt::format("FSDP2 not compatible with {}, use `adamw_torch_8bit` instead", name)));
  // Recomputed values have different metadata: QLoRA, ZeRO-3 and use_reentrant false.
  const auto loaded = load(
      "adapter: qlora\nlora_r: 8\nlora_alpha: 8\nlora_target_linear: true\nload_in_4bit: false\n"
      "deepspeed: deepspeed_configs/zero3.json\ngradient_checkpointing: true\n"
      "gradient_checkpointing_kwargs: {use_reentrant: false}");
  CHECK(contains(refusal(loaded), "Require cfg.load_in_4bit"));
  CHECK_FALSE(contains(refusal(loaded), "use_reentrant"));
  // Timeout in distributed init.
  auto files = good_files();
  files.put("rows.json", "[]");
  const auto waits = accepted(load_train_config_text(
      kAxolotl, "ax.yaml", {}, MapEnvironment(Variables{{"AXOLOTL_NCCL_TIMEOUT", "900"}}), files));
  CHECK(waits.config.training.ddp_timeout_s == 900);
  CHECK(accepted(load("ddp_timeout: 7200")).config.training.ddp_timeout_s == 7200);
}

TEST_CASE("every key of Axolotl's table says what becomes of it") {
  for (const auto* table : {&axolotl_keys(), &axolotl_dataset_keys()})
    for (const auto& path : table->paths()) CHECK_MESSAGE(!table->treated(path).note.empty(), path);
}

}  // namespace
}  // namespace troupe::train::axolotl_tests
