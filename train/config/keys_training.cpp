// Keys of Hugging Face's TrainingArguments that shape a run. The rest: keys_trainer_details.cpp.
#include <algorithm>

#include "train/config/derived.h"
#include "train/config/foreign_keys.h"
#include "train/config/key_builder.h"
#include "train/optimizer/optimizers.h"

namespace troupe::train {
namespace {

// Of transformers. Those without a row in optimizer_table() are refused.
constexpr const char* kOptimizers =
    "adamw_torch|adamw_torch_fused|adamw_hf|adamw_torch_xla|adamw_torch_npu_fused|"
    "adamw_apex_fused|adafactor|adamw_anyprecision|adamw_torch_4bit|adamw_torch_8bit|sgd|adagrad|"
    "adamw_bnb_8bit|adamw_8bit|ademamix|ademamix_8bit|lion_8bit|lion_32bit|paged_adamw_32bit|"
    "paged_adamw_8bit|paged_ademamix_32bit|paged_ademamix_8bit|paged_lion_32bit|paged_lion_8bit|"
    "rmsprop|rmsprop_bnb|rmsprop_bnb_8bit|rmsprop_bnb_32bit|galore_adamw|galore_adamw_8bit|"
    "galore_adafactor|galore_adamw_layerwise|galore_adamw_8bit_layerwise|"
    "galore_adafactor_layerwise|lomo|adalomo|grokadamw|schedule_free_radam|schedule_free_adamw|"
    "schedule_free_sgd|apollo_adamw|apollo_adamw_layerwise|stable_adamw";

void add_output_keys(KeyTable& t) {
  t.text("output_dir", "trainer_output")
      .implemented("where everything is written", TROUPE_FIELD(training.output_dir));
  t.boolean("overwrite_output_dir", false)
      .implemented("begin anew although output_dir is not empty",
                   TROUPE_FIELD(training.overwrite_output_dir));
  t.optional("resume_from_checkpoint", ValueType::kAny)
      .implemented("checkpoint to go on from: a folder, true or false",
                   TROUPE_FIELD(training.resume_from_checkpoint));
  t.text("run_name", "").nullable().implemented("name of the run", TROUPE_FIELD(training.run_name));
  t.list("report_to")
      .implemented("what gets the log besides: tensorboard, an event file",
                   TROUPE_FIELD(training.report_to))
      .only_where(reports_to_tensorboard, kOwnLog)
      .accepts("none")
      .words(
          "all|none|azure_ml|clearml|codecarbon|comet_ml|dagshub|dvclive|flyte|mlflow|neptune|"
          "swanlab|tensorboard|trackio|wandb");
  t.choice("logging_strategy", "steps", "no|steps|epoch")
      .implemented("when to log", TROUPE_FIELD(training.logging_strategy));
  t.number("logging_steps", 500)
      .implemented("steps between log lines; below 1 a ratio", TROUPE_FIELD(training.logging_steps))
      .above(0);
  t.boolean("logging_first_step", false)
      .implemented("log the first step too", TROUPE_FIELD(training.logging_first_step));
  t.boolean("logging_nan_inf_filter", true)
      .implemented("leave NaN losses out of the logged mean (an event is written nevertheless)",
                   TROUPE_FIELD(training.logging_nan_inf_filter));
  t.choice("save_strategy", "steps", "no|steps|epoch|best")
      .implemented("when to write a checkpoint; best: when an evaluation was the best so far",
                   TROUPE_FIELD(training.save_strategy));
  t.number("save_steps", 500)
      .implemented("steps between checkpoints; below 1 a ratio", TROUPE_FIELD(training.save_steps))
      .above(0)
      .only_where(
          [](const TrainConfig& config) {
            return config.training.save_strategy == IntervalStrategy::kSteps;
          },
          "it belongs to save_strategy: steps");
  t.optional("save_total_limit", ValueType::kInteger)
      .implemented("checkpoints that are kept", TROUPE_FIELD(training.save_total_limit))
      .at_least(1)
      .at_most(1'000'000);
  t.boolean("save_only_model", false)
      .implemented("checkpoints without optimizer state", TROUPE_FIELD(training.save_only_model));
  t.boolean("save_safetensors", true)
      .inert("safetensors instead of pickles", "pickles are never written")
      .refuses("false", "weights are always written as safetensors", "use save_safetensors: true");
  t.choice("include_num_input_tokens_seen", "false", "false|true|no|all|non_padding")
      .implemented(
          "input tokens seen so far in every log entry; there is no padding that all would count",
          TROUPE_FIELD(training.include_num_input_tokens_seen));
  t.boolean("disable_tqdm", false)
      .implemented("no progress bar", TROUPE_FIELD(training.disable_tqdm));
}

void add_batch_keys(KeyTable& t) {
  t.integer("per_device_train_batch_size", 8)
      .implemented("sequences of a micro-batch on each rank",
                   TROUPE_FIELD(training.per_device_train_batch_size))
      .at_least(1)
      .at_most(1 << 20);
  t.integer("gradient_accumulation_steps", 1)
      .implemented("micro-batches of a step", TROUPE_FIELD(training.gradient_accumulation_steps))
      .at_least(1)
      .at_most(1 << 20);
  t.number("num_train_epochs", 3.0)
      .implemented("passes over the data", TROUPE_FIELD(training.num_train_epochs))
      .above(0)
      .at_most(1e6);
  t.integer("max_steps", -1)
      .implemented("steps of the run; above 0 it wins over num_train_epochs",
                   TROUPE_FIELD(training.max_steps))
      .at_least(-1)
      .at_most(1e12);
  t.boolean("dataloader_drop_last", false)
      .implemented("drop the last, incomplete batch of an epoch",
                   TROUPE_FIELD(training.dataloader_drop_last));
  t.boolean("auto_find_batch_size", false)
      .refused("smaller batches when memory runs out",
               "a batch size that changes by itself is not "
               "reproducible",
               "set per_device_train_batch_size");
}

void add_optimizer_keys(KeyTable& t) {
  std::string refused;
  for (const std::string& name : split_words(kOptimizers)) {
    const auto rows = optimizer_table();
    if (std::none_of(rows.begin(), rows.end(), [&](const auto& row) { return row.optim == name; }))
      refused += refused.empty() ? name : "|" + name;
  }
  const std::string reason = "the optimizers here are " + optimizer_names();
  t.choice("optim", optimizer_table().front().optim, kOptimizers)
      .implemented("optimizer", TROUPE_FIELD(training.optim))
      .refuses(refused, reason, "use optim: adamw_torch");
  const auto projects = [](const TrainConfig& config) {
    return config.training.optim == "galore_adamw" || config.training.optim == "apollo_adamw";
  };
  constexpr const char* kProjecting = "it belongs to optim: galore_adamw and apollo_adamw";
  t.text("optim_args", "")
      .implemented(
          "GaLore: rank=128,update_proj_gap=200,scale=0.25,proj_type=std; APOLLO: rank=128,"
          "proj=random,scale_type=channel,update_proj_gap=200,scale=1",
          TROUPE_FIELD(optimizer.optim_args))
      .only_where(projects, kProjecting);
  t.list("optim_target_modules")
      .implemented("GaLore, APOLLO: words of the names of linear layers, or all-linear",
                   TROUPE_FIELD(optimizer.optim_target_modules))
      .only_where(projects, kProjecting);
  t.number("learning_rate", 5e-5)
      .implemented("peak learning rate", TROUPE_FIELD(training.learning_rate))
      .at_least(0);
  t.number("weight_decay", 0)
      .implemented("weight decay (not on biases and norms)", TROUPE_FIELD(training.weight_decay))
      .at_least(0)
      .only_where([=](const TrainConfig& config) { return !projects(config); },
                  "transformers' galore_adamw and apollo_adamw have none");
  const auto has_betas = [](const TrainConfig& config) {
    const std::string name = optimizer_choice(config);
    return name != "adafactor" && name != "sgd" && name != "adagrad" && name != "rmsprop";
  };
  const auto has_epsilon = [=](const TrainConfig& config) {
    return has_betas(config) && optimizer_choice(config).find("lion") == std::string::npos;
  };
  const char* adam_only = "it belongs to AdamW and its like, and the optimizer is another one";
  t.number("adam_beta1", 0.9)
      .implemented("AdamW: β₁", TROUPE_FIELD(training.adam_beta1))
      .at_least(0)
      .at_most(0.999999999)  // below 1
      .only_where(has_betas, adam_only);
  t.number("adam_beta2", 0.999)
      .implemented("AdamW: β₂", TROUPE_FIELD(training.adam_beta2))
      .at_least(0)
      .at_most(0.999999999)  // below 1
      .only_where(has_betas, adam_only);
  t.number("adam_epsilon", 1e-8)
      .implemented("AdamW: ε", TROUPE_FIELD(training.adam_epsilon))
      .above(0)
      .only_where(has_epsilon, adam_only);
  t.number("max_grad_norm", 1.0)
      .implemented("clip gradients to this global norm; 0: never",
                   TROUPE_FIELD(training.max_grad_norm))
      .at_least(0);
  t.choice("lr_scheduler_type", "linear",
           "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|"
           "inverse_sqrt|reduce_lr_on_plateau|cosine_with_min_lr|cosine_warmup_with_min_lr|"
           "warmup_stable_decay")
      .implemented("course of the learning rate", TROUPE_FIELD(training.lr_scheduler_type));
  t.object("lr_scheduler_kwargs")
      .implemented("settings of the scheduler", TROUPE_FIELD(training.lr_scheduler_kwargs));
  const auto warms_up = [](const TrainConfig& config) {
    return config.training.lr_scheduler_type != "constant" &&
           config.training.lr_scheduler_type != "reduce_lr_on_plateau";
  };
  t.number("warmup_ratio", 0)
      .implemented("share of the steps that warm up", TROUPE_FIELD(training.warmup_ratio))
      .at_least(0)
      .at_most(1)
      .only_where(
          [=](const TrainConfig& config) {
            return warms_up(config) && config.training.warmup_steps <= 0;
          },
          "warmup_steps wins over it, and lr_scheduler_type: constant does not warm up");
  t.number("warmup_steps", 0)
      .implemented("steps that warm up; below 1 a ratio; above 0 it wins over warmup_ratio",
                   TROUPE_FIELD(training.warmup_steps))
      .at_least(0)
      .only_where(warms_up, "lr_scheduler_type: constant does not warm up");
}

// A switch between fp32 and a narrow type; of several over one field, those that are off say
// nothing.
template <typename Field>
void add_narrow_key(KeyTable& t, const char* name, const char* meaning, Field field,
                    Precision narrow = Precision::kBfloat16) {
  t.boolean(name, false)
      .implemented(
          meaning,
          [field, narrow](TrainConfig& config, const json::Value& value) -> Status {
            if (TROUPE_TRY(read_bool(value)))
              field(config) = narrow;
            else if (field(config) == narrow)
              field(config) = Precision::kFloat32;
            return {};
          },
          [field, narrow](const TrainConfig& config) { return to_value(field(config) == narrow); });
}

void add_precision_keys(KeyTable& t) {
  add_narrow_key(t, "bf16", "compute in bf16, with fp32 master weights and optimizer state",
                 TROUPE_FIELD(model.compute));
  add_narrow_key(
      t, "fp16",
      "compute in fp16, with fp32 master weights and optimizer state, under a loss scale "
      "that follows overflows (on CPUs slower than fp32; use bf16 where you can)",
      TROUPE_FIELD(model.compute), Precision::kFloat16);
  add_narrow_key(t, "pure_bf16",
                 "bf16 for parameters and optimizer state too, without fp32 master weights",
                 TROUPE_FIELD(model.state));
  t.optional("troupe.stochastic_rounding", ValueType::kBool)
      .implemented(
          "with pure_bf16: an update's results are rounded up or down at random, by seed, "
          "step and element, so that small updates arrive on average; false: to nearest, "
          "as PyTorch (default: true)",
          TROUPE_FIELD(model.stochastic_rounding));
  t.optional("tf32", ValueType::kBool)
      .implemented(
          "fp32 products on NVIDIA GPUs with operands rounded to TensorFloat-32; refused "
          "where the run is on CPUs",
          TROUPE_FIELD(model.tf32));
  t.text("half_precision_backend", "auto")
      .inert("library of half precision", "there is one implementation");
  t.text("fp16_opt_level", "O1").inert("Apex level", "fp16 is computed without Apex");
  t.optional("mixed_precision", ValueType::kText)
      .refused("accelerate's precision", "it belongs into a file of accelerate",
               "use bf16: true, or name the file by troupe.accelerate_config")
      .accepts("no");
}

}  // namespace

void add_training_keys(KeyTable& table) {
  add_output_keys(table);
  add_batch_keys(table);
  add_optimizer_keys(table);
  add_precision_keys(table);
}

}  // namespace troupe::train
