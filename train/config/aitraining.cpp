#include "train/config/aitraining.h"

#include <algorithm>
#include <array>

#include "runtime/base/suggest.h"
#include "train/config/foreign_reader.h"
#include "train/config/yaml.h"

namespace troupe::train {
namespace {

constexpr std::string_view kTrainers =
    "default, distillation, dpo, generic, grpo, orpo, ppo, reward, sft";

constexpr std::array<std::string_view, 8> kOutermost = {
    "task", "base_model", "project_name", "log", "backend", "data", "params", "hub"};

struct Task {
  std::string_view name, trainer;
};
constexpr std::array kTasks = {Task{"llm", "default"},         Task{"llm-generic", "default"},
                               Task{"llm-default", "default"}, Task{"llm-sft", "sft"},
                               Task{"llm-dpo", "dpo"},         Task{"llm-orpo", "orpo"},
                               Task{"llm-reward", "reward"}};

// Copies one value under a field's name, with the place and the name that it has in the YAML.
class FieldCollector {
 public:
  FieldCollector(const SourceDocument& yaml, Problems& problems)
      : yaml_(yaml), problems_(problems) {}

  void take(const std::string& path, const json::Value& value, const std::string& field) {
    Origin origin = yaml_.origin_of(path);
    origin.key = path == field ? "" : path;
    out_.values[field] = value;
    out_.origins[field] = std::move(origin);
  }
  void unknown(const std::string& path, const std::string& name,
               const std::vector<std::string>& known) {
    problems_.add(Code::kInvalidArgument, path, "unknown key" + did_you_mean(name, known));
  }
  const json::Object* section(const char* name) {
    const auto* value = yaml_.values.if_contains(name);
    if (!value || value->is_null()) return nullptr;
    if (!value->is_object()) problems_.add(Code::kInvalidArgument, name, "expected a mapping");
    return value->if_object();
  }

  void data() {
    const auto* data = section("data");
    if (!data) return problems_.add(Code::kInvalidArgument, "data", "is missing");
    for (const auto& member : *data) {
      const std::string name(member.key());
      const std::string path = "data." + name;
      if (name == "path") {
        take(path, member.value(), "data_path");
      } else if (name == "train_split" || name == "valid_split" || name == "chat_template") {
        take(path, member.value(), name);
      } else if (name == "column_mapping" && member.value().is_object()) {
        for (const auto& column : member.value().get_object())
          this->column(path + "." + std::string(column.key()), std::string(column.key()),
                       column.value());
      } else {
        unknown(path, name,
                {"path", "train_split", "valid_split", "chat_template", "column_mapping"});
      }
    }
    for (const char* name : {"path", "train_split"})
      if (!data->contains(name))
        problems_.add(Code::kInvalidArgument, "data", fmt::format("{} is missing", name));
  }

  void params() {
    const auto* params = section("params");
    if (!params) return;
    std::vector<std::string> known = aitraining_keys().paths();
    for (const auto& member : *params) {
      const std::string name(member.key());
      const std::string path = "params." + name;
      if (aitraining_keys().has(name)) {
        take(path, member.value(), name);
      } else {
        unknown(path, name, known);
      }
    }
  }

  void hub() {
    const auto* hub = section("hub");
    if (!hub) return;
    for (const auto& member : *hub) {
      const std::string name(member.key());
      if (name == "username" || name == "token") continue;  // credentials, of no use here
      if (name == "push_to_hub") {
        take("hub.push_to_hub", member.value(), name);
      } else {
        unknown("hub." + name, name, {"username", "token", "push_to_hub"});
      }
    }
  }

  SourceDocument finish() { return std::move(out_); }

 private:
  void column(const std::string& path, const std::string& name, const json::Value& value) {
    const std::vector<std::string> known = {"text_column", "prompt_text_column",
                                            "rejected_text_column"};
    if (std::find(known.begin(), known.end(), name) == known.end())
      return unknown(path, name, known);
    take(path, value, name);
  }

  const SourceDocument& yaml_;
  Problems& problems_;
  SourceDocument out_;
};

class AitrainingTranslator {
 public:
  explicit AitrainingTranslator(ForeignReader& reader) : r_(reader) {}

  void translate() {
    const auto trainer = r_.text("trainer").value_or("default");
    if (!r_.get("model")) r_.wrong("model", "is missing: the folder of the model");
    r_.take("model_name_or_path", "model");
    if (!r_.get("project_name")) r_.wrong("project_name", "is missing: the folder for the results");
    r_.take("output_dir", "project_name");
    r_.by_default("overwrite_output_dir", true);
    r_.by_default("seed", 42);
    translate_data(trainer);
    translate_steps();
    translate_adapter();
    translate_launch();
    translate_intervals();
  }

 private:
  // The way in which a set of rows is read.
  json::Object entry(std::string_view split_field, std::string_view split,
                     const std::string& trainer) {
    json::Object out = {{"path", r_.text("data_path").value_or("")},
                        {"split", json::Value(boost::json::string(json_view(split)))}};
    out["field"] = r_.text("text_column").value_or("text");
    if (trainer != "sft") {
      out["type"] = "text";
      const auto name = r_.text("chat_template").value_or("none");
      if (name != "none" && split_field == "train_split") {
        r_.refuse_value("chat_template",
                        fmt::format("trainer={} reads plain text; use trainer sft for turns, or "
                                    "chat_template none",
                                    trainer));
      }
      return out;
    }
    out["type"] = "text_or_messages";
    out["field_messages"] = out["field"];
    const bool given = r_.theirs().values.contains("chat_template");
    const auto name = r_.text("chat_template").value_or(given ? "none" : "tokenizer");
    if (name == "tokenizer") {
      out["chat_template"] = "tokenizer_default";
    } else if (name == "chatml") {
      out["chat_template"] = name;
      out["eot_tokens"] = json::Array{"<|im_end|>"};
    } else if (name == "none") {
      out["chat_template"] = name;
    } else if (split_field == "train_split") {
      r_.refuse_value("chat_template",
                      "that template is not rendered here; use tokenizer, chatml or none");
    }
    if (const auto only = r_.flag("response_only_loss"); only && !*only)
      out["train_on_inputs"] = true;
    return out;
  }

  void translate_data(const std::string& trainer) {
    if (trainer == "dpo" || trainer == "orpo" || trainer == "reward" || trainer == "ppo" ||
        trainer == "grpo" || trainer == "distillation") {
      r_.refuse_value(
          "trainer",
          "reward models and preferences are trained from files of LLaMA-Factory's form "
          "(stage: rm, dpo, kto), distillation and answers of the model's own not at "
          "all; the trainers here are sft and default");
      return;
    }
    if (trainer != "sft" && trainer != "default" && trainer != "generic")
      return r_.wrong("trainer",
                      fmt::format("Invalid trainer '{}'. Valid options: {}", trainer, kTrainers));
    const bool sft = trainer == "sft";
    r_.by_default("stage", sft ? "sft" : "pt");
    if (!r_.get("data_path")) return r_.wrong("data_path", "is missing: a folder or file of data");
    const auto split = r_.text("train_split").value_or("train");
    r_.give("troupe.datasets", json::Array{entry("train_split", split, trainer)}, "data_path");
    if (const auto valid = r_.text("valid_split")) {
      r_.give("troupe.eval_datasets", json::Array{entry("valid_split", *valid, trainer)},
              "valid_split");
    }
    const auto block = r_.integer("block_size").value_or(-1);
    if (block > 0) {
      r_.take("cutoff_len", "block_size");
    } else {
      r_.by_default("cutoff_len", 1024);
    }
    if (!sft) return;
    r_.by_default("troupe.excess_length", "truncate");
    r_.by_default("troupe.min_sample_len", 1);
    r_.by_default("troupe.shuffle_merged_datasets", false);
  }

  void take_or(std::string_view ours, std::string_view key, json::Value otherwise) {
    if (r_.get(key)) {
      r_.take(ours, key);
    } else {
      r_.by_default(ours, std::move(otherwise));
    }
  }

  void translate_steps() {
    take_or("learning_rate", "lr", 3e-5);
    take_or("num_train_epochs", "epochs", 1);
    take_or("per_device_train_batch_size", "batch_size", 2);
    take_or("per_device_eval_batch_size", "batch_size", 2);
    take_or("gradient_accumulation_steps", "gradient_accumulation", 4);
    take_or("warmup_ratio", "warmup_ratio", 0.1);
    take_or("lr_scheduler_type", "scheduler", "linear");
    take_or("optim", "optimizer", "adamw_torch");
    take_or("weight_decay", "weight_decay", 0);
    take_or("max_grad_norm", "max_grad_norm", 1.0);
    r_.take("disable_gradient_checkpointing");
    if (const auto precision = r_.text("mixed_precision")) {
      const bool fp16 = *precision == "fp16";
      r_.give(fp16 ? "fp16" : "bf16", fp16 || *precision == "bf16", "mixed_precision");
    }
  }

  void translate_quantization() {
    const auto kind = r_.text("quantization").value_or("none");
    if (kind == "none" || kind == "no") return;
    if (kind != "int4" && kind != "int8")
      return r_.refuse_value("quantization",
                             "frozen weights are kept as they are, or in 4 or 8 bits: use int4 or "
                             "int8");
    if (!r_.is_on("peft")) return r_.say("quantization has no effect without peft");
    r_.give("quantization_bit", kind == "int4" ? 4 : 8, "quantization");
    // AITraining's own settings of bitsandbytes.
    r_.by_default("double_quantization", false);
  }

  void translate_adapter() {
    translate_quantization();
    if (!r_.is_on("peft")) return r_.by_default("finetuning_type", "full");
    r_.give("finetuning_type", "lora", "peft");
    take_or("lora_rank", "lora_r", 16);
    take_or("lora_alpha", "lora_alpha", 32);
    take_or("lora_dropout", "lora_dropout", 0.05);
    const auto modules = r_.text("target_modules").value_or("all-linear");
    if (modules == "all-linear") {
      r_.by_default("lora_target", "all");
    } else {
      r_.take("lora_target", "target_modules");
    }
    if (r_.flag("merge_adapter").value_or(true))
      r_.say(
          "merge_adapter: the project's folder receives the adapter; `troupe export` merges it "
          "into a model");
  }

  void translate_launch() {
    const auto backend = r_.text("distributed_backend").value_or("ddp");
    if (backend == "deepspeed") {
      r_.give("troupe.strategy", "zero3", "distributed_backend");
      r_.say(
          "distributed_backend=deepspeed: ZeRO-3 over the trainers of this machine; NNODES, "
          "NODE_RANK and MASTER_ADDR (or a running head) add machines");
    } else if (backend != "ddp" && backend != "none") {
      r_.wrong("distributed_backend",
               fmt::format("Unsupported distributed backend: {}; use ddp or deepspeed", backend));
    }
    if (r_.text("log") == "tensorboard") r_.give("report_to", json::Array{"tensorboard"}, "log");
    // AITraining's default is wandb.
    if (!r_.get("log")) r_.say(without_effect("", {"log=wandb, the default,"}, kOwnLog));
  }

  void translate_intervals() {
    const auto given = r_.number("logging_steps").value_or(-1);
    if (given > 0) {
      r_.take("logging_steps");
    } else {
      // A fifth of the batches of an epoch, at most 25: as a share of the run's steps.
      const auto epochs = std::max(r_.number("epochs").value_or(1), 1e-6);
      const auto share =
          0.2 * static_cast<double>(r_.integer("gradient_accumulation").value_or(4)) / epochs;
      r_.by_default("logging_steps", share < 1 ? json::Value(share) : json::Value(25));
      r_.by_default("troupe.logging_steps_max", 25);
    }
    take_or("save_strategy", "save_strategy", "epoch");
    r_.take("save_steps");
    take_or("save_total_limit", "save_total_limit", 1);
    if (!r_.get("valid_split")) return;
    take_or("eval_strategy", "eval_strategy", "epoch");
    r_.by_default("load_best_model_at_end", true);
  }

  ForeignReader& r_;
};

// "data_path" of "--data-path"; the field that a flag names.
std::string field_of(std::string_view flag) {
  std::string name(flag.substr(2));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool is_switch(const std::string& field) {
  for (const char* name :
       {"peft", "packing", "unsloth", "use_flash_attention_2", "disable_gradient_checkpointing",
        "merge_adapter", "add_eos_token", "auto_find_batch_size", "use_sweep", "use_distillation",
        "push_to_hub", "response_only_loss", "use_forward_backward", "use_enhanced_eval"})
    if (field == name) return true;
  return false;
}

}  // namespace

bool is_aitraining_key(const std::string& name) {
  return aitraining_keys().has(name) ||
         std::find(kOutermost.begin(), kOutermost.end(), name) != kOutermost.end();
}

SourceDocument aitraining_fields(const SourceDocument& yaml, Problems& problems) {
  FieldCollector collector(yaml, problems);
  const auto wrong = [&](std::string_view key, std::string_view message) {
    problems.add(Code::kInvalidArgument, key, message);
  };
  const auto text = [&](const char* key) {
    const auto* value = yaml.values.if_contains(key);
    return value && value->is_string() ? value_text(*value) : std::string();
  };
  for (const auto& member : yaml.values) {
    const std::string name(member.key());
    if (std::find(kOutermost.begin(), kOutermost.end(), name) == kOutermost.end())
      collector.unknown(name, name, {kOutermost.begin(), kOutermost.end()});
  }
  const auto task = text("task");
  const auto found =
      std::find_if(kTasks.begin(), kTasks.end(), [&](const Task& one) { return one.name == task; });
  if (task.empty()) {
    wrong("task", "Task is required in the configuration file");
  } else if (found != kTasks.end()) {
    collector.take("task", json::Value(boost::json::string(found->trainer)), "trainer");
  } else if (task.starts_with("llm-")) {
    wrong("task", fmt::format("Invalid LLM training task: {}", task));
  } else {
    problems.add_named(Code::kUnsupported, "task",
                       fmt::format("Task `{}` is not supported: language models are trained here "
                                   "(llm-sft, llm)",
                                   task));
  }
  if (text("backend").empty()) {
    wrong("backend", "Backend is required in the configuration file");
  } else if (!text("backend").starts_with("local")) {
    problems.add_named(Code::kUnsupported, "backend",
                       fmt::format("backend={} is not supported: nothing runs in a cloud; use "
                                   "backend: local",
                                   text("backend")));
  }
  for (const auto& [key, field] :
       {std::pair("base_model", "model"), std::pair("project_name", "project_name"),
        std::pair("log", "log")}) {
    if (const auto* value = yaml.values.if_contains(key)) {
      collector.take(key, *value, field);
    } else {
      wrong(key, "is missing");
    }
  }
  collector.data();
  collector.params();
  collector.hub();
  return collector.finish();
}

Result<SourceDocument> aitraining_flags(std::span<const std::string> arguments) {
  SourceDocument out;
  std::string wrong;
  bool trains = false;
  const auto bad = [&](const std::string& message) {
    wrong += (wrong.empty() ? "" : "\n") + message;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("--") || argument.size() < 3) {
      bad(fmt::format("the argument '{}' belongs to no flag", argument));
      continue;
    }
    const auto equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    std::string field = field_of(flag);
    if (field == "train") {
      trains = true;
      continue;
    }
    if (field == "deploy") return error(Code::kUnsupported, "Deploy is not implemented yet");
    if (field == "inference" || field == "interactive" || field == "preview_trainer") {
      return error(Code::kUnsupported,
                   "{} is not supported: `troupe generate` uses a trained model", flag);
    }
    const bool negated = field.starts_with("no_") && is_switch(field.substr(3));
    if (negated) field.erase(0, 3);
    if (field == "backend") {
      const auto backend = equals != std::string::npos ? argument.substr(equals + 1)
                           : i + 1 < arguments.size()  ? arguments[++i]
                                                       : std::string();
      if (!backend.starts_with("local"))
        return error(Code::kUnsupported,
                     "--backend {} is not supported: nothing runs in a cloud; use --backend local",
                     backend);
      continue;
    }
    if (!aitraining_keys().has(field)) {
      auto names = aitraining_keys().paths();
      for (auto& name : names) std::replace(name.begin(), name.end(), '_', '-');
      auto shown = flag.substr(2);
      bad(fmt::format("unknown flag {}{}", flag, did_you_mean(shown, names)));
      // Its value is not another mistake.
      if (equals == std::string::npos && i + 1 < arguments.size() &&
          !arguments[i + 1].starts_with("--"))
        ++i;
      continue;
    }
    json::Value value = !negated;
    if (equals != std::string::npos) {
      value = resolve_yaml_scalar(argument.substr(equals + 1));
    } else if (!is_switch(field)) {
      if (i + 1 >= arguments.size() || arguments[i + 1].starts_with("--")) {
        bad(fmt::format("{} needs a value", flag));
        continue;
      }
      value = resolve_yaml_scalar(arguments[++i]);
    }
    out.values[field] = std::move(value);
    out.origins[field] = Origin{.kind = OriginKind::kFlag, .key = flag};
  }
  if (!trains) bad("--train is missing: training is what this command does");
  for (const auto& [field, flag] :
       {std::pair("model", "--model"), std::pair("data_path", "--data-path"),
        std::pair("project_name", "--project-name")})
    if (!out.values.contains(field)) bad(fmt::format("{} is missing", flag));
  if (!wrong.empty()) return Status(Code::kInvalidArgument, std::move(wrong));
  if (!out.values.contains("block_size")) out.values["block_size"] = 1024;
  return out;
}

Translation translate_aitraining(const SourceDocument& fields, const TranslationContext& context,
                                 Problems& problems) {
  Translation out;
  ForeignReader reader(aitraining_keys(), fields, context, problems, out);
  const ShownName shown = [&](const std::string& path) { return fields.shown(path); };
  aitraining_keys().check_each(fields.values, shown,
                               [&](const std::string& path, const Status& wrong) {
                                 problems.add_named(wrong.code(), path, wrong.message());
                               });
  AitrainingTranslator(reader).translate();
  out.add(aitraining_keys(), fields.values, shown,
          [&](const std::string& path) { return fields.origin_of(path).to_string(); });
  return out;
}

}  // namespace troupe::train
