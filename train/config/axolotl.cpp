#include "train/config/axolotl.h"

#include <algorithm>
#include <filesystem>

#include "train/config/foreign_reader.h"
#include "train/optimizer/optimizers.h"

namespace troupe::train {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

class AxolotlTranslator {
 public:
  explicit AxolotlTranslator(ForeignReader& reader) : r_(reader) {}

  void translate() {
    translate_model();
    translate_axolotl_data(r_);
    translate_batch();
    translate_optimizer();
    translate_schedule();
    translate_adapter();
    translate_precision();
    translate_loss();
    translate_sharding();
    translate_workers();
    translate_logging();
    translate_saving();
    translate_evaluation();
    check_plugins();
  }

 private:
  void translate_model() {
    if (!r_.get("base_model"))
      r_.wrong("base_model", "Field required: the model's folder, or its name on a hub");
    r_.take("model_name_or_path", "base_model");
    for (const char* key : {"revision", "model_revision", "revision_of_model"})
      r_.take("model_revision", key);
    r_.take("train_from_scratch", "reinit_weights");
    if (r_.is_on("resize_token_embeddings_to_32x"))
      r_.give("troupe.vocabulary_multiple", 32, "resize_token_embeddings_to_32x");
    r_.by_default("stage", "sft");
    const auto type = r_.text("model_type").value_or("AutoModelForCausalLM");
    if (contains(type, "SequenceClassification") || contains(type, "TokenClassification")) {
      r_.refuse_value(
          "model_type",
          "reward models are trained from files of LLaMA-Factory's form (stage: rm); leave it out");
    } else if (contains(type, "ConditionalGeneration") || contains(type, "ImageText") ||
               contains(type, "Vision")) {
      r_.refuse_value("model_type", "only text models are trained; give the text model's folder");
    }
  }

  void translate_batch() {
    const auto micro = r_.integer("micro_batch_size");
    const auto accumulation = r_.integer("gradient_accumulation_steps");
    const auto batch = r_.integer("batch_size");
    if (batch && accumulation) {
      r_.wrong("batch_size", "please set only one of gradient_accumulation_steps or batch_size");
    } else if (micro.has_value() + accumulation.has_value() + batch.has_value() < 2) {
      r_.wrong("micro_batch_size",
               "At least two of micro_batch_size, gradient_accumulation_steps, batch_size must be "
               "set");
    }
    r_.take("per_device_train_batch_size", "micro_batch_size");
    r_.take("gradient_accumulation_steps");
    if (batch && !accumulation && micro && *micro > 0) {
      r_.give("gradient_accumulation_steps", std::max<std::int64_t>(1, *batch / *micro),
              "batch_size");
    }
    if (r_.get("eval_batch_size")) {
      r_.take("per_device_eval_batch_size", "eval_batch_size");
    } else if (micro) {
      r_.give("per_device_eval_batch_size", *micro, "micro_batch_size");
    }
    if (r_.get("num_epochs")) {
      r_.take("num_train_epochs", "num_epochs");
    } else {
      r_.by_default("num_train_epochs", 1.0);
    }
    r_.take("max_steps");
    r_.take("seed");
    r_.by_default("troupe.step_rules", "axolotl");
  }

  void translate_optimizer() {
    r_.take("optim_args");
    r_.take("optim_target_modules");
    const auto name = r_.text("optimizer").value_or("adamw_torch_fused");
    const auto rows = optimizer_table();
    const bool here =
        std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.optim == name; });
    if ((name == "adamw_8bit" || name == "adamw_bnb_8bit") && uses_fsdp2()) {
      r_.refuse("optimizer",
                fmt::format("optimizer={} is not supported: FSDP2 not compatible with {}, use "
                            "`adamw_torch_8bit` instead (which is not there yet; the optimizers "
                            "here are {})",
                            name, name, optimizer_names()));
    } else if (contains(name, "paged") && contains(name, "8bit") && offloads_fsdp()) {
      r_.refuse("optimizer", fmt::format("optimizer={} is not supported: FSDP Offload not "
                                         "compatible with {}; the optimizers here are {}",
                                         name, name, optimizer_names()));
    } else if (here && r_.get("optimizer")) {
      r_.take("optim", "optimizer");
    } else if (here) {
      r_.by_default("optim", json::Value(boost::json::string(name)));
    } else {
      r_.refuse_value("optimizer",
                      fmt::format("the optimizers here are {}; use optimizer: adamw_torch_fused",
                                  optimizer_names()));
    }
    if (!r_.get("learning_rate")) r_.wrong("learning_rate", "Field required");
    for (const char* key : {"learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon",
                            "weight_decay", "max_grad_norm"})
      r_.take(key);
  }

  void translate_schedule() {
    const auto scheduler = r_.text("lr_scheduler").value_or("cosine");
    const auto least = r_.number("cosine_min_lr_ratio");
    const auto constant = r_.number("cosine_constant_lr_ratio");
    const bool quadratic = r_.is_on("lr_quadratic_warmup");
    const bool cosine = scheduler == "cosine";
    json::Object settings;
    if (const auto* given = r_.get("lr_scheduler_kwargs"); given && given->is_object())
      settings = given->get_object();
    if (scheduler == "one_cycle" || scheduler == "rex") {
      r_.refuse_value("lr_scheduler", "that schedule is not there; use lr_scheduler: cosine");
    } else if (cosine && least && *least > 0) {
      r_.give("lr_scheduler_type", "cosine_with_min_lr", "lr_scheduler");
      settings["min_lr_rate"] = *least;
      if (constant && *constant > 0) settings["constant_from"] = *constant;
      if (quadratic)
        r_.wrong("lr_quadratic_warmup",
                 "does not go with cosine_min_lr_ratio; leave one of them "
                 "out");
      r_.give("lr_scheduler_kwargs", std::move(settings), "cosine_min_lr_ratio");
    } else {
      if (constant && *constant > 0)
        r_.wrong("cosine_constant_lr_ratio", "needs cosine_min_lr_ratio above 0");
      if (r_.get("lr_scheduler")) {
        r_.take("lr_scheduler_type", "lr_scheduler");
      } else {
        r_.by_default("lr_scheduler_type", "cosine");
      }
      if (quadratic && cosine) {
        settings["warmup_power"] = 2;
        r_.give("lr_scheduler_kwargs", std::move(settings), "lr_quadratic_warmup");
      } else {
        r_.take("lr_scheduler_kwargs");
      }
    }
    if (!cosine && (least || constant || quadratic))
      r_.wrong(least      ? "cosine_min_lr_ratio"
               : constant ? "cosine_constant_lr_ratio"
                          : "lr_quadratic_warmup",
               "belongs to lr_scheduler: cosine; leave it out");
    const auto steps = r_.number("warmup_steps");
    const auto ratio = r_.number("warmup_ratio");
    if (steps && ratio) {
      r_.wrong("warmup_steps", "warmup_steps and warmup_ratio are mutually exclusive");
    } else if (steps && *steps > 0 && *steps < 1) {
      r_.give("warmup_ratio", *steps, "warmup_steps");
      r_.say(
          fmt::format("warmup_steps={:g} is no number of steps: it is taken for a share of the "
                      "run, as warmup_ratio",
                      *steps));
    } else if (steps) {
      r_.take("warmup_steps");
    } else if (ratio) {
      r_.take("warmup_ratio");
    } else {
      r_.by_default("warmup_ratio", 0.03);
      r_.by_default("troupe.warmup_steps_max", 100);
    }
  }

  // Expressions as axolotl.utils.freeze reads them: a dot is a dot, unless a plus sign follows, and
  // a match may end before the name does.
  bool translate_unfrozen_parameters() {
    const auto* value = r_.get("unfrozen_parameters");
    if (!value) return false;
    const auto patterns = read_text_list(*value);
    if (!patterns.ok()) return r_.wrong("unfrozen_parameters", patterns.status()), true;
    if (patterns->empty()) return false;
    json::Array expressions;
    for (const std::string& pattern : *patterns) {
      if (pattern.ends_with(']') &&
          pattern.find_last_not_of("0123456789:", pattern.size() - 2) == pattern.rfind('[')) {
        r_.refuse("unfrozen_parameters",
                  fmt::format("unfrozen_parameters={} is not supported: a tensor is trained whole "
                              "here; leave the range behind its name out",
                              pattern));
        continue;
      }
      std::string expression;
      for (std::size_t i = 0; i < pattern.size(); ++i) {
        if (pattern[i] == '.' && !(i + 1 < pattern.size() && pattern[i + 1] == '+'))
          expression += '\\';
        expression += pattern[i];
      }
      expressions.emplace_back(std::move(expression));
    }
    r_.give("finetuning_type", "freeze", "unfrozen_parameters");
    r_.give("troupe.trained_parameters", std::move(expressions), "unfrozen_parameters");
    return true;
  }

  void translate_adapter() {
    const auto adapter = r_.text("adapter");
    if (!adapter || adapter->empty()) {
      if (!translate_unfrozen_parameters()) r_.by_default("finetuning_type", "full");
      for (const char* key : {"load_in_4bit", "load_in_8bit"}) {
        if (r_.is_on(key))
          r_.wrong(key,
                   "load_in_8bit and load_in_4bit are not supported without setting an adapter for "
                   "training. If you want to full finetune, please turn off load_in_8bit and "
                   "load_in_4bit.");
      }
      return;
    }
    if (*adapter != "lora" && *adapter != "qlora") {
      r_.refuse_value("adapter", "the adapters here are lora and qlora");
      return;
    }
    if (r_.get("unfrozen_parameters"))
      r_.refuse(
          "unfrozen_parameters",
          "unfrozen_parameters beside an adapter is not supported: it would freeze the adapter; "
          "leave one of the two out, or name modules in lora_modules_to_save");
    if (*adapter == "qlora" && r_.is_on("load_in_8bit"))
      r_.wrong("load_in_8bit", "Can't load qlora in 8bit");
    if (*adapter == "qlora" && !r_.is_on("load_in_4bit"))
      r_.wrong("adapter", "Require cfg.load_in_4bit to be True for qlora");
    r_.give("finetuning_type", "lora", "adapter");
    translate_quantization();
    r_.take("adapter_name_or_path", "lora_model_dir");
    if (!r_.get("lora_model_dir")) {
      for (const char* key : {"lora_r", "lora_alpha"})
        if (!r_.get(key)) r_.wrong("adapter", fmt::format("a new adapter needs {}", key));
    }
    r_.take("lora_rank", "lora_r");
    r_.take("lora_alpha");
    r_.take("lora_dropout");
    r_.take("additional_target", "lora_modules_to_save");
    r_.take("use_rslora", "peft_use_rslora");
    r_.take("use_dora", "peft_use_dora");
    r_.take("loraplus_lr_ratio");
    const auto* modules = r_.get("lora_target_modules");
    const bool named = modules && !(modules->is_array() && modules->get_array().empty());
    if (r_.is_on("lora_target_linear")) {
      r_.give("lora_target", "all", "lora_target_linear");
      if (named) check_linear(*modules);
    } else if (named && modules->is_string()) {
      // A regular expression is one text, whatever commas it has.
      r_.give("lora_target", json::Array{*modules}, "lora_target_modules");
    } else if (named) {
      r_.take("lora_target", "lora_target_modules");
    } else if (!r_.get("lora_model_dir")) {
      r_.wrong("adapter", "a new adapter needs lora_target_linear: true or lora_target_modules");
    }
  }

  // Axolotl's own settings of bitsandbytes, and what bnb_config_kwargs changes of them.
  void translate_quantization() {
    const bool four_bits = r_.is_on("load_in_4bit"), eight_bits = r_.is_on("load_in_8bit");
    if (four_bits && eight_bits)
      return r_.wrong("load_in_8bit",
                      "load_in_8bit and load_in_4bit: weights are kept in one of the two");
    if (!four_bits && !eight_bits) return;
    r_.give("quantization_bit", four_bits ? 4 : 8, four_bits ? "load_in_4bit" : "load_in_8bit");
    const auto* settings = r_.get("bnb_config_kwargs");
    if (!settings || settings->is_null()) return;
    if (!settings->is_object())
      return r_.wrong("bnb_config_kwargs", "expected settings of bitsandbytes by their names");
    for (const auto& [name, value] : settings->get_object()) {
      const std::string_view key(name);
      if (key == "bnb_4bit_quant_type")
        r_.give("quantization_type", value, "bnb_config_kwargs");
      else if (key == "bnb_4bit_use_double_quant")
        r_.give("double_quantization", value, "bnb_config_kwargs");
      else if (key == "bnb_4bit_compute_dtype")
        check_compute_type(value);
      else if (key == "llm_int8_skip_modules" && !value.is_null())
        r_.refuse("bnb_config_kwargs",
                  "bnb_config_kwargs.llm_int8_skip_modules is not supported: all linear layers but "
                  "the head are quantised; leave it out");
      else if (key != "bnb_4bit_quant_storage" && !key.starts_with("llm_int8_"))
        r_.wrong("bnb_config_kwargs",
                 fmt::format("bitsandbytes has no setting {}; of 4 bits there are "
                             "bnb_4bit_quant_type and bnb_4bit_use_double_quant",
                             key));
    }
  }

  // Products are computed in what bf16 says, and a key that says the same says nothing more.
  void check_compute_type(const json::Value& value) {
    std::string_view name = value.is_string() ? std::string_view(value.get_string()) : "";
    if (name.starts_with("torch.")) name.remove_prefix(6);
    if (name == (r_.is_on("bf16") || r_.is_on("bfloat16") ? "bfloat16" : "float32")) return;
    r_.refuse("bnb_config_kwargs",
              "bnb_config_kwargs.bnb_4bit_compute_dtype is not supported where it differs from "
              "what bf16 says products are in; leave it out");
  }

  // Axolotl joins both keys' modules; an adapter of another module than a linear layer is not here.
  void check_linear(const json::Value& modules) {
    const auto names = read_text_list(modules);
    if (!names.ok()) return r_.wrong("lora_target_modules", names.status());
    for (const std::string& name : *names) {
      const std::string last = name.substr(name.rfind('.') + 1);
      if (last.ends_with("_proj") || last == "c_attn" || last == "c_fc") continue;
      r_.refuse(
          "lora_target_modules",
          fmt::format("lora_target_modules={} beside lora_target_linear: true is not "
                      "supported: adapters are those of linear layers; leave it out, or train "
                      "the module whole by lora_modules_to_save",
                      name));
    }
  }

  void translate_loss() {
    if (r_.number("loss_watchdog_threshold").value_or(0) > 0) {
      r_.take("troupe.loss_limit", "loss_watchdog_threshold");
      if (r_.integer("loss_watchdog_patience").value_or(0) != 0)
        r_.take("troupe.loss_limit_steps", "loss_watchdog_patience");
    }
    if (!r_.is_on("use_eaft")) return;
    r_.give("use_eaft_loss", true, "use_eaft");
    r_.take("eaft_alpha");
    r_.take("troupe.eaft_top", "eaft_k");
    // Axolotl takes the entropy as it is.
    r_.by_default("troupe.eaft_divisor", 1.0);
  }

  void translate_precision() {
    const bool on_gpus = r_.context().gpu_count > 0;
    const auto* bf16 = r_.get("bf16");
    r_.take("fp16");
    if (r_.is_on("fp16") && (!bf16 || value_text(*bf16) == "auto")) {
      // What is computed in is said.
    } else if (!bf16 || (bf16->is_string() && value_text(*bf16) == "auto")) {
      const char* key = bf16 ? "bf16" : "";
      if (bf16) {
        r_.give("bf16", on_gpus, key);
      } else {
        r_.by_default("bf16", on_gpus);
      }
      if (!on_gpus) r_.say("bf16: auto is fp32 here: there is no GPU");
    } else if (value_text(*bf16) == "full") {
      r_.give("pure_bf16", true, "bf16");
    } else {
      r_.take("bf16");
    }
    if (r_.is_on("bfloat16")) r_.give("pure_bf16", true, "bfloat16");
    if (const auto* tf32 = r_.get("tf32"); tf32 && !on_gpus) {
      if (read_bool(*tf32).value_or(true))
        r_.say("tf32 has no effect: it belongs to GPUs, and there is none");
    } else if (tf32) {
      r_.give("tf32", value_text(*tf32) == "auto" ? json::Value(true) : *tf32, "tf32");
    }
    if (r_.flag("use_tensorboard").value_or(false))
      r_.give("report_to", json::Array{"tensorboard"}, "use_tensorboard");
    const auto* recompute = r_.get("gradient_checkpointing");
    const bool offload =
        recompute && recompute->is_string() && contains(value_text(*recompute), "offload");
    if (recompute && !offload) {
      if (const auto on = r_.flag("gradient_checkpointing"))
        r_.give("disable_gradient_checkpointing", !*on, "gradient_checkpointing");
    } else if (offload) {
      r_.give("disable_gradient_checkpointing", false, "gradient_checkpointing");
    } else {
      r_.by_default("disable_gradient_checkpointing", true);
    }
  }

  bool has_fsdp() const {
    const auto* words = r_.get("fsdp");
    const auto* config = r_.get("fsdp_config");
    return (words && !(words->is_array() && words->get_array().empty())) ||
           (config && config->is_object() && !config->get_object().empty());
  }
  const json::Value* fsdp_setting(std::string_view name) const {
    const auto* config = r_.get("fsdp_config");
    if (!config) return nullptr;
    const auto* value = json::find(*config, "fsdp_" + std::string(name));
    return value ? value : json::find(*config, std::string(name));
  }
  bool uses_fsdp2() const {
    const auto* version = r_.get("fsdp_version");
    if (!version) version = fsdp_setting("version");
    return has_fsdp() && version && read_integer(*version).value_or(1) == 2;
  }
  bool offloads_fsdp() const {
    const auto* value = fsdp_setting("offload_params");
    return has_fsdp() && value && read_bool(*value).value_or(false);
  }

  void translate_sharding() {
    const auto* deepspeed = r_.get("deepspeed");
    if (deepspeed && has_fsdp())
      r_.wrong("deepspeed", "deepspeed and fsdp cannot be used together.");
    if (const auto* config = r_.get("fsdp_config"); config && !config->is_object())
      r_.wrong("fsdp_config", "expected settings, a mapping");
    if (deepspeed) translate_deepspeed(*deepspeed);
    if (has_fsdp()) translate_fsdp();
    r_.take("ddp_timeout");
    const auto shard = r_.integer("dp_shard_size").value_or(1);
    const auto replicate = r_.integer("dp_replicate_size").value_or(1);
    if (shard > 1 || replicate > 1) {
      r_.give("parallelism_config",
              json::Object{{"dp_replicate_size", replicate}, {"dp_shard_size", shard}},
              shard > 1 ? "dp_shard_size" : "dp_replicate_size");
    }
  }

  void translate_deepspeed(const json::Value& given) {
    if (!given.is_string()) return r_.take("deepspeed");
    const auto path = value_text(given);
    const std::string beside =
        join_path(std::filesystem::path(r_.context().file).parent_path().string(), path);
    if (r_.context().files.exists(path) || path.empty()) {
      r_.take("deepspeed");
    } else if (r_.context().files.exists(beside)) {
      r_.give("deepspeed", json::Value(boost::json::string(beside)), "deepspeed");
    } else if (auto shipped = axolotl_deepspeed(path); !shipped.is_null()) {
      r_.give("deepspeed", std::move(shipped), "deepspeed");
      r_.say(
          fmt::format("deepspeed={} is not on this machine: Axolotl's own file of that name is "
                      "taken",
                      path));
    } else {
      r_.take("deepspeed");
    }
    if (r_.text("adapter") == "qlora" && contains(path, "zero3"))
      r_.say(
          "qlora with ZeRO-3: activations are computed again in one way here, so that "
          "use_reentrant: false cannot fail with a CheckpointError as it does in Axolotl "
          "(whose cure is use_reentrant: true, or FSDP)");
  }

  void translate_fsdp() {
    json::Object settings;
    if (const auto* config = r_.get("fsdp_config"); config && config->is_object()) {
      for (const auto& member : config->get_object()) {
        std::string name(member.key());
        if (name.starts_with("fsdp_")) name.erase(0, 5);
        if (name == "sharding_strategy") {
          r_.say(
              fmt::format("fsdp_config.{} has no effect: Axolotl passes over it, and fsdp or "
                          "the version decides",
                          std::string(member.key())));
        } else if (!member.value().is_null()) {
          settings[member.key()] = member.value();
        }
      }
    }
    if (const auto* version = r_.get("fsdp_version")) {
      settings.erase("fsdp_version");
      settings["version"] = *version;
    }
    const auto* words = r_.get("fsdp");
    const bool worded = words && !(words->is_array() && words->get_array().empty());
    if (worded) {
      r_.take("fsdp");
    } else {
      r_.give("fsdp", true, "fsdp_config");
    }
    if (!settings.empty())
      r_.give("fsdp_config", std::move(settings),
              r_.get("fsdp_config") ? "fsdp_config" : "fsdp_version");
  }

  void translate_workers() {
    r_.take("ray_num_workers");
    r_.take("resources_per_worker");
  }

  void translate_logging() {
    if (const auto steps = r_.number("logging_steps"); steps && *steps < 1) {
      r_.wrong("logging_steps", "expected a whole number of steps");
    } else if (steps) {
      r_.take("logging_steps");
    } else {
      r_.by_default("logging_steps", 1.0 / 200);
      r_.by_default("troupe.logging_steps_max", 10);
    }
    if (r_.get("output_dir")) {
      r_.take("output_dir");
    } else {
      r_.by_default("output_dir", "./model-out");
    }
    if (r_.get("resume_from_checkpoint")) {
      r_.take("resume_from_checkpoint");
    } else if (!r_.is_on("auto_resume_from_checkpoints")) {
      r_.by_default("overwrite_output_dir", true);
    }
  }

  // The share of the run that lies between two of `per_epoch` in an epoch; nothing where it is not
  // given or 0.
  std::optional<double> share_of(std::string_view key) {
    const auto per_epoch = r_.number(key);
    if (!per_epoch || *per_epoch == 0) return std::nullopt;
    if (*per_epoch < 0) {
      r_.wrong(key, "expected a number of times in an epoch");
      return std::nullopt;
    }
    const auto epochs = r_.number("num_epochs").value_or(1.0);
    return epochs > 0 ? 1.0 / (*per_epoch * epochs) : 1.0;
  }

  void translate_saving() {
    const auto share = share_of("saves_per_epoch");
    const auto steps = r_.number("save_steps");
    if (share && steps) {
      r_.wrong("saves_per_epoch",
               "save_steps and saves_per_epoch are mutually exclusive and cannot be used "
               "together.");
    }
    const auto strategy = r_.text("save_strategy").value_or("steps");
    if (steps && *steps > 0 && strategy != "steps") {
      r_.wrong("save_strategy",
               "save_strategy and save_steps mismatch. Please set save_strategy to 'steps' or "
               "remove save_steps.");
    }
    if (steps) {
      r_.give("save_strategy", "steps", "save_steps");
      r_.take("save_steps");
    } else if (share && *share < 1) {
      r_.give("save_strategy", "steps", "saves_per_epoch");
      r_.give("save_steps", *share, "saves_per_epoch");
    } else if (r_.get("save_strategy")) {
      r_.take("save_strategy");
    } else if (share) {
      r_.give("save_strategy", "epoch", "saves_per_epoch");
    } else {
      r_.by_default("save_strategy", "epoch");
    }
    // A limit of 0 is none given, there.
    if (r_.number("save_total_limit").value_or(0) != 0) {
      r_.take("save_total_limit");
    } else {
      r_.by_default("save_total_limit", 4);
    }
    r_.take("save_only_model");
  }

  void translate_evaluation() {
    const bool has_data = r_.get("test_datasets") || r_.number("val_set_size").value_or(0) > 0;
    const char* strategy = r_.get("eval_strategy") ? "eval_strategy" : "evaluation_strategy";
    const bool wants = r_.get(strategy) && *r_.get(strategy) != "no" &&
                       read_bool(*r_.get(strategy)).value_or(true);
    const auto share = share_of("evals_per_epoch");
    const auto steps = r_.number("eval_steps");
    if (!has_data) {
      if (wants || (steps && *steps > 0))
        r_.wrong(wants ? strategy : "eval_steps",
                 "eval_steps and eval_strategy are not supported with val_set_size == 0");
      if (r_.number("early_stopping_patience").value_or(0) > 0)
        r_.wrong("early_stopping_patience",
                 "`early_stopping_patience` requires save_steps and eval_steps to be set, and "
                 "there is nothing to evaluate on: set val_set_size or test_datasets, or leave it "
                 "out");
      return;
    }
    if (share && r_.get(strategy) && *r_.get(strategy) != "steps") {
      r_.wrong(strategy,
               "eval_strategy must be empty or set to `steps` when used with evals_per_epoch.");
    }
    if (share && steps)
      r_.wrong(
          "evals_per_epoch",
          "eval_steps and evals_per_epoch are mutually exclusive and cannot be used together.");
    if (steps && *steps > 0 && r_.get(strategy) && *r_.get(strategy) != "steps") {
      r_.wrong(strategy,
               "eval_strategy and eval_steps mismatch. Please set eval_strategy to 'steps' or "
               "remove eval_steps.");
    }
    if (steps && *steps > 0) {
      r_.give("eval_strategy", "steps", "eval_steps");
      r_.take("eval_steps");
    } else if (share && *share < 1) {
      r_.give("eval_strategy", "steps", "evals_per_epoch");
      r_.give("eval_steps", *share, "evals_per_epoch");
    } else if (share) {
      r_.say(
          "evals_per_epoch evaluates nothing: once in the whole run is no evaluation at all in "
          "Axolotl; eval_strategy: epoch evaluates after each epoch");
    } else if (wants) {
      r_.take("eval_strategy", strategy);
    }
    if ((steps && *steps > 0) || (share && *share < 1) || wants)
      r_.by_default("eval_on_start", true);
    r_.take("load_best_model_at_end");
    r_.take("metric_for_best_model");
    r_.take("greater_is_better");
    r_.take("early_stopping_steps", "early_stopping_patience");
  }

  void check_plugins() {
    const auto* plugins = r_.get("plugins");
    if (!plugins) return;
    const auto names = read_text_list(*plugins);
    if (!names.ok()) return r_.wrong("plugins", names.status());
    for (const auto& name : *names) {
      if (contains(name, "integrations.liger") ||
          contains(name, "integrations.cut_cross_entropy") ||
          contains(name, "integrations.kernels."))
        continue;
      r_.refuse("plugins", fmt::format("plugins={} is not supported: no Python is loaded, and it "
                                       "is none of those that only change kernels (liger, "
                                       "cut_cross_entropy, kernels); leave it out",
                                       name));
    }
  }

  ForeignReader& r_;
};

}  // namespace

Translation translate_axolotl(const SourceDocument& theirs, const TranslationContext& context,
                              Problems& problems) {
  Translation out;
  ForeignReader reader(axolotl_keys(), theirs, context, problems, out);
  const ShownName shown = [](const std::string& path) { return path; };
  Translation ours;
  const auto plain = take_our_settings(
      theirs, [](const std::string& key) { return axolotl_keys().has(key); }, ours, problems);
  axolotl_keys().check_each(plain, shown, [&](const std::string& path, const Status& wrong) {
    problems.add_named(wrong.code(), path, wrong.message());
  });
  AxolotlTranslator(reader).translate();
  put_over(ours.document, out.document);
  out.add(axolotl_keys(), plain, shown,
          [&](const std::string& path) { return theirs.origin_of(path).to_string(); });
  return out;
}

}  // namespace troupe::train
