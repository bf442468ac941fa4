#include "train/config/rules.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "train/config/keys.h"
#include "train/config/values.h"
#include "train/optimizer/optimizers.h"
#include "train/optimizer/plateau.h"

namespace troupe::train {
namespace {

bool given(const json::Object& values, std::string_view key) {
  const auto* value = values.if_contains({key.data(), key.size()});
  return value && !value->is_null() && !(value->is_array() && value->get_array().empty());
}

bool is_true(const json::Object& values, std::string_view key) {
  const auto* value = values.if_contains({key.data(), key.size()});
  return value && value->is_bool() && value->get_bool();
}

std::string text_of(const json::Object& values, std::string_view key) {
  const auto* value = values.if_contains({key.data(), key.size()});
  return value ? value_text(*value) : std::string();
}

// DeepSpeed's stage 3, with LLaMA-Factory's texts.
void check_zero3(const TrainConfig& config, const json::Object& values, Problems& problems) {
  const json::Value deepspeed = config.deepspeed;
  const auto* zero = json::find(deepspeed, "zero_optimization");
  const auto* stage = zero ? json::find(*zero, "stage") : nullptr;
  if (!stage || read_integer(*stage).value_or(0) != 3) return;
  const auto incompatible = [&](std::string_view key, std::string_view message) {
    if (is_true(values, key)) problems.add(Code::kInvalidArgument, key, message);
  };
  incompatible("pure_bf16", "`pure_bf16` is incompatible with DeepSpeed ZeRO-3.");
  incompatible("predict_with_generate",
               "`predict_with_generate` is incompatible with DeepSpeed ZeRO-3.");
  if (config.finetuning.is_lora())
    incompatible("pissa_init",
                 "Please use scripts/pissa_init.py to initialize PiSSA in DS ZeRO-3.");
  // As there, adapters are not merged into what is sharded so; a new one beside the given one would
  // be passed over there without a word.
  if (config.finetuning.is_lora() && config.finetuning.adapter_name_or_path.size() > 1)
    problems.add(Code::kInvalidArgument, "adapter_name_or_path",
                 "Cannot use multiple adapters in DeepSpeed ZeRO-3.");
  else if (config.finetuning.is_lora() && !config.finetuning.adapter_name_or_path.empty())
    incompatible("create_new_adapter",
                 "adapters are not merged in DeepSpeed ZeRO-3: merge the adapter into a model of "
                 "its own first (troupe export), or use troupe.strategy: zero3");
  incompatible("use_unsloth", "Unsloth is incompatible with DeepSpeed ZeRO-3.");
}

void check_method(const TrainConfig& config, const json::Object& values, Problems& problems) {
  const auto wrong = [&](std::string_view key, std::string_view message) {
    problems.add(Code::kInvalidArgument, key, message);
  };
  if (is_true(values, "bf16") && is_true(values, "fp16")) {
    wrong("fp16", "bf16 and fp16 cannot both be true");
  }
  if (config.method.stage != TrainingStage::kSupervised && config.data.neat_packing) {
    wrong("neat_packing", "`neat_packing` cannot be set as True except SFT.");
  }
  if (config.method.stage != TrainingStage::kSupervised && config.method.use_dft_loss) {
    wrong("use_dft_loss", "use_dft_loss is a loss of stage=sft; leave it out");
  }
  const MethodSection& method = config.method;
  if (method.dpo_label_smoothing > 1e-6 && method.stage == TrainingStage::kDpo &&
      method.pref_loss != "sigmoid")
    wrong("dpo_label_smoothing", "`dpo_label_smoothing` is only valid for sigmoid loss function.");
  if (method.compares_answers()) {
    if (!config.data.rows.datasets.empty())
      wrong("troupe.datasets",
            "data sets by their paths are for stage: pt and sft; name one of dataset_info.json "
            "(dataset)");
    if (config.data.sample_packing.on)
      wrong("troupe.sample_packing", "answers that are compared are not packed; leave it out");
  }
  if (method.use_asft_loss) {
    if (method.stage != TrainingStage::kSupervised)
      wrong("use_asft_loss", "use_asft_loss is a loss of stage=sft; leave it out");
    if (method.use_dft_loss || method.use_eaft_loss)
      wrong("use_asft_loss",
            "use_dft_loss and use_eaft_loss are other losses; leave all but one out");
  }
  if (config.method.use_eaft_loss) {
    if (config.method.stage != TrainingStage::kSupervised)
      wrong("use_eaft_loss", "use_eaft_loss is a loss of stage=sft; leave it out");
    if (config.method.use_dft_loss)
      wrong("use_eaft_loss", "use_dft_loss is another loss; leave one of the two out");
    if (!(config.method.eaft_alpha >= 0)) wrong("eaft_alpha", "expected a number of 0 or more");
    if (config.method.eaft_top < 2) wrong("troupe.eaft_top", "expected 2 or more");
    if (!(config.method.eaft_divisor > 0))
      wrong("troupe.eaft_divisor", "expected a number above 0");
  }
  if (is_true(values, "full_determinism") && config.sharding.deterministic == Deterministic::kOff) {
    wrong("full_determinism",
          "full_determinism=true and troupe.deterministic=off disagree; leave one of them out");
  }
  if (config.troupe.cuda_graphs == "true" && config.troupe.operator_times) {
    wrong("troupe.cuda_graphs",
          "a graph is many operators in one launch, which troupe.operator_times would wait for one "
          "by one: use troupe.cuda_graphs=false, or leave troupe.operator_times out");
  }
  if (config.data.train_on_prompt && config.data.mask_history) {
    wrong("mask_history", "`train_on_prompt` is incompatible with `mask_history`.");
  }
  if ((is_true(values, "use_galore") || is_true(values, "use_apollo")) &&
      !config.deepspeed.empty()) {
    wrong(is_true(values, "use_galore") ? "use_galore" : "use_apollo",
          "GaLore and APOLLO are incompatible with DeepSpeed yet.");
  }
  const OptimizerMethodSection& optimizer = config.optimizer;
  const auto projection = transformers_projection(config);
  if (!projection.ok()) {
    problems.add(projection.status().context("key").value_or("optim_args"), projection.status());
  } else if (*projection) {
    if (!config.deepspeed.empty())
      wrong("optim", "GaLore and APOLLO are incompatible with DeepSpeed yet.");
    if (config.finetuning.is_lora())
      wrong("optim", "Cannot use LoRA with GaLore, APOLLO or BAdam together.");
  }
  if (optimizer.use_galore + optimizer.use_apollo + optimizer.use_badam > 1)
    wrong(optimizer.use_badam ? "use_badam" : "use_apollo",
          "Cannot use GaLore, APOLLO or BAdam together.");
  if (config.deepspeed.contains("optimizer")) {
    const auto second = [&](bool given, const char* key) {
      if (given)
        wrong(key, fmt::format("{} and the optimizer block of the DeepSpeed file name two "
                               "optimizers; leave one of them out",
                               key));
    };
    second(config.finetuning.loraplus_lr_ratio.has_value(), "loraplus_lr_ratio");
    second(optimizer.use_adam_mini, "use_adam_mini");
    second(optimizer.use_muon, "use_muon");
    second(optimizer.use_badam, "use_badam");
  }
  if (optimizer.use_badam && !config.deepspeed.empty() && config.sharding.strategy != "zero3")
    wrong("use_badam", "Layer-wise BAdam only supports DeepSpeed ZeRO-3 training.");
  if (updates_layerwise(config) && config.training.gradient_accumulation_steps != 1)
    wrong(optimizer.use_galore ? "galore_layerwise" : "apollo_layerwise",
          fmt::format("Per-layer {} does not support gradient accumulation.",
                      optimizer.use_galore ? "GaLore" : "APOLLO"));
  const bool own_adamw = optimizer.use_galore || optimizer.use_apollo || optimizer.use_badam;
  if (own_adamw && !config.training.optim.starts_with("adamw_torch"))
    wrong("optim", fmt::format("{} is AdamW here, whatever optim says; use optim: adamw_torch",
                               optimizer.use_galore   ? "GaLore"
                               : optimizer.use_apollo ? "APOLLO"
                                                      : "BAdam"));
  // LLaMA-Factory takes the first one of its list, and says nothing of the others.
  const bool plus = config.finetuning.loraplus_lr_ratio.has_value();
  if (own_adamw + plus + optimizer.use_adam_mini + optimizer.use_muon > 1)
    wrong(optimizer.use_muon ? "use_muon" : "use_adam_mini",
          "use_galore, use_apollo, use_badam, loraplus_lr_ratio, use_adam_mini and use_muon are "
          "optimizers, of which a run has one: leave all but one out");
  else if ((optimizer.use_adam_mini || optimizer.use_muon) &&
           !config.training.optim.starts_with("adamw_torch"))
    wrong("optim",
          fmt::format("{} takes the place of what optim says; use optim: adamw_torch, or leave "
                      "{} out",
                      optimizer.use_muon ? "Muon" : "Adam-mini",
                      optimizer.use_muon ? "use_muon" : "use_adam_mini"));
  if (optimizer.use_badam && optimizer.badam_switch_interval == 0)
    wrong("badam_switch_interval", "expected a number of steps, or -1: a layer for each step");
}

void check_data(const TrainConfig& config, const json::Object& values, Problems& problems) {
  const auto wrong = [&](std::string_view key, std::string_view message) {
    problems.add(Code::kInvalidArgument, key, message);
  };
  // Without a name, tokenized_path must hold the data: that is for who opens it to say.
  if (config.trains() && !config.data.is_named() && !config.data.tokenized_path)
    wrong("dataset", "Please specify dataset for training.");
  if (config.data.tokenized_path && config.data.tokenized_path->empty())
    wrong("tokenized_path", "names no folder; leave it out");
  const auto& rows = config.data.rows;
  if (!config.data.dataset.empty() && !rows.datasets.empty()) {
    wrong("troupe.datasets", "dataset names data sets, too; leave one of them out");
  }
  for (const char* key : {"template", "train_on_prompt", "mask_history", "default_system",
                          "max_samples", "packing", "neat_packing", "eval_dataset"}) {
    if (rows.datasets.empty() || !given(values, key) ||
        (values.at(key).is_bool() && !is_true(values, key)))
      continue;
    wrong(key,
          "belongs to data sets of dataset_info.json; those of troupe.datasets say it "
          "themselves");
  }
  const bool pretrains = config.method.stage == TrainingStage::kPretrain;
  for (const auto* sets : {&rows.datasets, &rows.eval_datasets}) {
    for (const auto& set : *sets) {
      const auto type = json::find_string(set, "type").value_or("");
      if (pretrains && type != "text")
        wrong("troupe.datasets",
              fmt::format("type={} belongs to stage: sft; stage: pt takes type: text", type));
    }
  }
  if (config.data.sample_packing.on && (config.data.packing || config.data.neat_packing)) {
    wrong("troupe.sample_packing", "packing packs already; leave one of them out");
  }
  if (is_true(values, "streaming")) {
    if (config.training.max_steps <= 0) {
      wrong("streaming", "Please specify `max_steps` in streaming mode.");
    }
    if (given(values, "max_samples")) {
      wrong("max_samples", "`max_samples` is incompatible with `streaming`.");
    }
    const char* whole = "needs all data before the first step; leave it or streaming out";
    if (config.method.stage == TrainingStage::kKto)
      wrong(
          "streaming",
          "stage: kto compares answers with those of other rows of a preprocessing batch, which a "
          "stream does not have at once; leave streaming out");
    if (!rows.datasets.empty()) wrong("troupe.datasets", whole);
    if (config.data.sample_packing.on) wrong("troupe.sample_packing", whole);
    if (config.data.group_by_length) wrong("group_by_length", whole);
    if (config.troupe.held_out > 0) wrong("troupe.held_out", whole);
    if (config.troupe.train_tokenizer) wrong("troupe.train_tokenizer", whole);
    if (config.data.tokenized_path)
      wrong("tokenized_path", "Turn off `streaming` when saving dataset to disk.");
  }
  if (config.asks_reference_before()) {
    const char* key = "troupe.precompute_ref_log_probs";
    if (is_true(values, "streaming"))
      wrong(key, "a stream's samples are not known before training; leave one of the two out");
    const bool is_other = config.method.ref_model.has_value();
    if (config.model.quantization_bit && !is_other)
      wrong(key,
            "the reference would be the model as its files have it, not with quantization_bit; "
            "leave it out: beside adapters a reference takes no memory");
    if (config.model.train_from_scratch && !is_other)
      wrong(key, "a model that is trained from scratch has no files to read the reference from");
  }
  if (given(values, "interleave_probs")) {
    const auto& probabilities = values.at("interleave_probs");
    if (!values.contains("mix_strategy") || text_of(values, "mix_strategy") == "concat") {
      wrong("interleave_probs", "`interleave_probs` is only valid for interleaved mixing.");
    } else if (probabilities.is_array() &&
               probabilities.get_array().size() != config.data.dataset.size()) {
      wrong("interleave_probs", "The length of dataset and interleave probs should be identical.");
    }
  }
}

// Settings of the scheduler: known, numbers where numbers are meant, complete.
void check_scheduler(const TrainConfig& config, Problems& problems) {
  const auto& type = config.training.lr_scheduler_type;
  const auto known = scheduler_settings(type);
  const auto& settings = config.training.lr_scheduler_kwargs;
  if (type == "reduce_lr_on_plateau") {
    if (const auto rule = PlateauRule::read(settings); !rule.ok())
      problems.add("lr_scheduler_kwargs", rule.status());
    if (config.evaluation.strategy == IntervalStrategy::kNo)
      problems.add(Code::kInvalidArgument, "lr_scheduler_type",
                   "lr_scheduler_type reduce_lr_on_plateau requires an eval strategy");
    return;
  }
  for (const auto& member : settings) {
    const std::string name(member.key());
    const std::string path = "lr_scheduler_kwargs." + name;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      problems.add(Code::kInvalidArgument, path,
                   fmt::format("the scheduler {} has no such setting; {}{}", type,
                               known.empty() ? "it has none" : "it has " + join_words(known),
                               did_you_mean(name, known)));
    } else if (name == "decay_type" || name == "warmup_type") {
      const std::vector<std::string> kinds = {"linear", "cosine", "1-sqrt"};
      const auto text = value_text(member.value());
      if (std::find(kinds.begin(), kinds.end(), text) == kinds.end()) {
        problems.add(Code::kInvalidArgument, path,
                     fmt::format("'{}' is no valid value; one of {}", text, join_words(kinds)));
      }
    } else if (const auto number = read_number(member.value()); !number.ok()) {
      problems.add(path, number.status());
    }
  }
  if (type == "cosine_with_min_lr" || type == "cosine_warmup_with_min_lr") {
    if (settings.contains("min_lr") == settings.contains("min_lr_rate")) {
      problems.add(
          Code::kInvalidArgument, "lr_scheduler_kwargs",
          fmt::format("the scheduler {} needs exactly one of min_lr and min_lr_rate", type));
    }
  }
}

void check_intervals(const TrainConfig& config, Problems& problems) {
  const auto whole_from_one = [&](std::string_view key, double value) {
    if (value > 1 && value != std::floor(value)) {
      problems.add(Code::kInvalidArgument, key,
                   fmt::format("{} is neither a whole number of steps nor a ratio below 1", value));
    }
  };
  whole_from_one("logging_steps", config.training.logging_steps);
  whole_from_one("save_steps", config.training.save_steps);
  whole_from_one("warmup_steps", config.training.warmup_steps);
  if (config.training.max_steps == 0) {
    problems.add(Code::kInvalidArgument, "max_steps", "0 steps train nothing; leave the key out");
  }
  if (config.data.cutoff_len < 2) {
    problems.add(Code::kInvalidArgument, "cutoff_len", "a sequence has at least 2 tokens");
  }
}

bool is_directory(FileSystem& files, const std::string& path) {
  return files.exists(path) && files.list(path).ok();
}

}  // namespace

std::vector<std::string> scheduler_settings(std::string_view scheduler) {
  // Names: the parameters of Hugging Face's get_*_schedule functions.
  if (scheduler == "cosine") return {"num_cycles", "warmup_power"};
  if (scheduler == "cosine_with_restarts") return {"num_cycles"};
  if (scheduler == "polynomial") return {"lr_end", "power"};
  if (scheduler == "inverse_sqrt") return {"timescale"};
  if (scheduler == "cosine_with_min_lr")
    return {"min_lr", "min_lr_rate", "num_cycles", "constant_from"};
  if (scheduler == "cosine_warmup_with_min_lr") {
    return {"min_lr", "min_lr_rate", "num_cycles", "warmup_lr_rate"};
  }
  if (scheduler == "warmup_stable_decay") {
    return {"num_decay_steps", "num_stable_steps", "warmup_type",
            "decay_type",      "min_lr_ratio",     "num_cycles"};
  }
  return {};
}

void check_combinations(const TrainConfig& config, const json::Object& values, Problems& problems) {
  check_method(config, values, problems);
  check_finetuning(config, values, problems);
  check_zero3(config, values, problems);
  check_data(config, values, problems);
  check_evaluation(config, values, problems);
  check_scheduler(config, problems);
  check_intervals(config, problems);
  if (config.model.model_name_or_path.empty() && !config.model.is_from_program) {
    problems.add(Code::kInvalidArgument, "model_name_or_path",
                 "Please provide `model_name_or_path`.");
  }
}

Status unreadable_model(const std::string& folder, const Status& why) {
  return Status(why.code(),
                fmt::format("the model's folder '{}' cannot be read: {}. Give this user the right "
                            "to read it and what is in it, or name another folder",
                            folder, why.message()));
}

Status check_model_folder(FileSystem& files, const std::string& folder) {
  if (const Status listed = files.list(folder).status(); !listed.ok()) {
    if (listed.code() == Code::kPermissionDenied) return unreadable_model(folder, listed);
    return error(Code::kNotFound,
                 "'{}' is no folder on this machine; give the model's folder, or its name on a "
                 "hub, as in Qwen/Qwen3-0.6B",
                 folder);
  }
  const Status read =
      files.read(join_path(folder, "config.json"), limits::kJsonFileBytesMax).status();
  if (read.code() == Code::kNotFound) {
    if (files.exists(join_path(folder, "adapter_config.json")))
      return error(Code::kNotFound,
                   "the folder '{}' is an adapter's: name the model that it was trained over, and "
                   "the adapter as adapter_name_or_path (--adapter)",
                   folder);
    return error(Code::kNotFound,
                 "the folder '{}' has no config.json, so it is no model's folder: name one with "
                 "config.json, a tokenizer, and weights (*.safetensors) unless train_from_scratch "
                 "is true",
                 folder);
  }
  return read.ok() ? Status() : unreadable_model(folder, read);
}

void check_model_path(const TrainConfig& config, FileSystem& files, Problems& problems) {
  const auto& model = config.model.model_name_or_path;
  if (model.empty() || problems.has("model_name_or_path")) return;
  if (const Status status = check_model_folder(files, model); !status.ok())
    problems.add(status.code(), "model_name_or_path", status.message());
}

void check_paths(const TrainConfig& config, FileSystem& files, Problems& problems) {
  check_model_path(config, files, problems);
  if (!config.data.dataset.empty() || !config.evaluation.eval_dataset.empty()) {
    const auto& folder = config.data.dataset_dir;
    if (folder == "ONLINE" || problems.has("dataset_dir")) {
      // Data sets of a hub, which were looked up.
    } else if (!is_directory(files, folder)) {
      problems.add(Code::kNotFound, "dataset_dir",
                   fmt::format("'{}' is no folder on this machine", folder));
    } else if (!files.exists(join_path(folder, "dataset_info.json"))) {
      problems.add(Code::kNotFound, "dataset_dir",
                   fmt::format("the folder '{}' has no dataset_info.json", folder));
    }
  }
  const auto& rows = config.data.rows;
  for (const auto* sets : {&rows.datasets, &rows.eval_datasets}) {
    for (const auto& set : *sets) {
      const auto path = json::find_string(set, "path").value_or("");
      const char* key = sets == &rows.datasets ? "troupe.datasets" : "troupe.eval_datasets";
      if (files.exists(path) || problems.has(key)) continue;
      problems.add(Code::kNotFound, key,
                   fmt::format("'{}' is no file or folder on this machine; give the file or "
                               "folder, or a data set's name on a hub, as in owner/name",
                               path));
    }
  }
  const auto& resume = config.training.resume_from_checkpoint;
  if (resume.mode == ResumeFrom::Mode::kPath && !is_directory(files, resume.path)) {
    problems.add(Code::kNotFound, "resume_from_checkpoint",
                 fmt::format("'{}' is no folder on this machine", resume.path));
  }
  const auto& output = config.training.output_dir;
  if (files.exists(output) && !is_directory(files, output)) {
    problems.add(Code::kInvalidArgument, "output_dir",
                 fmt::format("'{}' exists and is no folder", output));
  }
}

std::optional<ForeignConfig> foreign_config(const json::Object& values) {
  struct Mark {
    const char* key;
    const char* with;
    const char* reason;
  };
  constexpr Mark kMarks[] = {
      {"distributed_type", "",
       "this is an accelerate launch configuration; give the training configuration, and name "
       "this file by its key troupe.accelerate_config"},
      {"compute_environment", "",
       "this is an accelerate launch configuration; give the training configuration, and name "
       "this file by its key troupe.accelerate_config"},
      {"zero_optimization", "",
       "this is a DeepSpeed configuration; name it by the key deepspeed of a training "
       "configuration"},
      {"train_batch_size", "",
       "this is a DeepSpeed configuration; name it by the key deepspeed of a training "
       "configuration"},
      {"train_micro_batch_size_per_gpu", "",
       "this is a DeepSpeed configuration; name it by the key deepspeed of a training "
       "configuration"},
      {"train_dataset", "model",
       "this is a configuration of LLaMA-Factory's v1 trainer; write it with the keys of its "
       "stable "
       "trainer (model → model_name_or_path, train_dataset → dataset, …)"},
      {"peft_config", "model",
       "this is a configuration of LLaMA-Factory's v1 trainer; write it with the keys of its "
       "stable "
       "trainer (model → model_name_or_path, train_dataset → dataset, …)"},
      {"model_class", "",
       "this is a configuration of LLaMA-Factory's v1 trainer; write it with the keys of its "
       "stable "
       "trainer (model → model_name_or_path, train_dataset → dataset, …)"},
  };
  for (const auto& mark : kMarks) {
    if (values.contains(mark.key) && (!*mark.with || values.contains(mark.with))) {
      return ForeignConfig{mark.key, mark.reason};
    }
  }
  return std::nullopt;
}

}  // namespace troupe::train
