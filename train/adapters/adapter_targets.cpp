#include "train/adapters/adapter_targets.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "runtime/base/suggest.h"
#include "train/model/model_family.h"
#include "train/model/parameter_layout.h"
#include "train/tokenizer/regex.h"

namespace troupe::train {
namespace {

bool ends_with_name(std::string_view module, std::string_view name) {
  return module == name || (module.size() > name.size() && module.ends_with(name) &&
                            module[module.size() - name.size() - 1] == '.');
}

std::string_view last_component(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight".
std::string_view module_of(std::string_view parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

// Expressions are compiled once and matched against module names.
class ModuleMatcher {
 public:
  static Result<ModuleMatcher> make(const ModuleSelection& selection, std::string_view key) {
    ModuleMatcher matcher(selection);
    if (!selection.expression.empty()) {
      auto compiled = Regex::compile(fmt::format("\\A(?:{})\\z", selection.expression));
      if (!compiled.ok()) return compiled.status().prefixed(key);
      matcher.regex_ = std::move(*compiled);
    }
    return matcher;
  }

  Result<bool> matches(std::string_view module) {
    if (regex_) return TROUPE_TRY(regex_->find(module, 0, scratch_)).has_value();
    return std::any_of(selection_.names.begin(), selection_.names.end(),
                       [&](const std::string& name) { return ends_with_name(module, name); });
  }

 private:
  explicit ModuleMatcher(const ModuleSelection& selection) : selection_(selection) {}
  ModuleSelection selection_;
  std::optional<Regex> regex_;
  RegexScratch scratch_;
};

// Of rank_pattern and alpha_pattern: PEFT's get_pattern_key.
class ValuePattern {
 public:
  static Result<ValuePattern> make(const json::Object& pattern, std::string_view key) {
    ValuePattern out;
    for (const auto& member : pattern) {
      const std::string_view name = member.key();
      auto compiled =
          Regex::compile(name.starts_with('^') ? fmt::format("\\A(?:{})", name)
                                               : fmt::format("\\A(.*\\.)?({})\\z", name));
      if (!compiled.ok()) return compiled.status().prefixed(key);
      out.rows_.emplace_back(std::move(*compiled), member.value().to_number<double>());
    }
    return out;
  }

  Result<double> value_for(std::string_view module, double otherwise) {
    for (const auto& [regex, value] : rows_)
      if (TROUPE_TRY(regex.find(module, 0, scratch_))) return value;
    return otherwise;
  }

 private:
  std::vector<std::pair<Regex, double>> rows_;
  RegexScratch scratch_;
};

// PEFT prints a set of names, Python's way.
std::string python_set(const ModuleSelection& selection) {
  if (!selection.expression.empty()) return selection.expression;
  std::string text;
  for (const std::string& name : selection.names)
    text += fmt::format("{}'{}'", text.empty() ? "" : ", ", name);
  return "{" + text + "}";
}

// The names that targets can have, each once, in the model's order.
std::vector<std::string> target_names(const ModelConfig& model) {
  std::vector<std::string> names;
  for (const LinearModule& module : linear_modules(model)) {
    const std::string name(last_component(module.name));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

Status no_target_found(const ModelConfig& model, const ModuleSelection& selection) {
  return error(Code::kInvalidArgument,
               "Target modules {} not found in the base model. Please check the target modules and "
               "try again. There are {}.",
               python_set(selection), join_words(target_names(model)));
}

// The output head's module, tied or not.
std::string head_module(const ModelConfig& model) {
  ModelConfig untied = model;
  untied.tie_word_embeddings = false;
  return end_names(untied).output;
}

// Embeddings and the head: modules that could have adapters, and have none here.
std::vector<std::string> end_modules(const ModelConfig& model) {
  const EndNames ends = end_names(model);
  std::vector<std::string> modules = {ends.token_embedding, head_module(model)};
  if (!ends.position_embedding.empty()) modules.push_back(ends.position_embedding);
  return modules;
}

// Every module of the model, containers too, as named_modules() lists their names.
std::vector<std::string> module_names(const ModelConfig& model, const ParameterLayout& layout) {
  std::vector<std::string> names;
  std::set<std::string, std::less<>> seen;
  const auto add = [&](std::string_view name) {
    if (seen.emplace(name).second) names.emplace_back(name);
  };
  for (const ParameterInfo& parameter : layout.parameters()) {
    const std::string_view module = module_of(parameter.name);
    for (std::size_t dot = module.find('.'); dot != std::string_view::npos;
         dot = module.find('.', dot + 1))
      add(module.substr(0, dot));
    add(module);
  }
  add(head_module(model));
  return names;
}

// The layers that LLaMA Pro's block expansion put in.
Result<std::vector<std::int64_t>> expanded_layers(const ModelConfig& model, std::int64_t count) {
  if (count < 1)
    return error(Code::kInvalidArgument,
                 "use_llama_pro needs freeze_trainable_layers of at least 1, found {}", count)
        .with("key", "use_llama_pro");
  if (model.num_hidden_layers % count != 0)
    return error(Code::kInvalidArgument,
                 "`num_layers` {} should be divisible by `num_layer_trainable` {}.",
                 model.num_hidden_layers, count)
        .with("key", "use_llama_pro");
  const std::int64_t stride = model.num_hidden_layers / count;
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = stride - 1; layer < model.num_hidden_layers; layer += stride)
    layers.push_back(layer);
  return layers;
}

// Sets the tensors of modules that are trained whole.
Status add_saved_modules(const ModelConfig& model, const AdapterConfig& adapter,
                         Trainables& trainables) {
  if (adapter.modules_to_save.empty()) return {};
  const ParameterLayout layout(model);
  const std::vector<std::string> modules = module_names(model, layout);
  std::vector<std::string> saved;
  for (const std::string& target : adapter.modules_to_save) {
    bool found = false;
    for (const std::string& module : modules)
      if (module.ends_with(target)) {
        saved.push_back(module);
        found = true;
      }
    if (found) continue;
    std::vector<std::string> names;
    for (const std::string& module : modules)
      if (std::string name(last_component(module));
          name.find_first_not_of("0123456789") != std::string::npos &&
          std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(std::move(name));
    return error(
        Code::kInvalidArgument,
        "additional_target (modules_to_save) '{}' is no module of the model; there are {}{}",
        target, join_words(names), did_you_mean(target, names));
  }
  const auto is_saved = [&](std::string_view parameter) {
    return std::any_of(saved.begin(), saved.end(), [&](const std::string& module) {
      return parameter.size() > module.size() && parameter.starts_with(module) &&
             parameter[module.size()] == '.';
    });
  };
  for (const LoraModule& lora : trainables.lora)
    if (is_saved(lora.module + ".weight"))
      return error(
          Code::kUnsupported,
          "{} is both a target of LoRA and trained whole (additional_target): name it once",
          lora.module);
  for (const ParameterInfo& parameter : layout.parameters())
    if (is_saved(parameter.name)) trainables.tensors.push_back(parameter.name);
  if (!model.tie_word_embeddings) return {};
  // PEFT copies each module it trains whole: a tied matrix becomes two.
  const std::string head = head_module(model) + ".weight";
  const bool trains_head = is_saved(head);
  if (trains_head) trainables.tensors.push_back(head);
  trainables.unties_head = trains_head || is_saved(end_names(model).token_embedding + ".weight");
  return {};
}

}  // namespace

std::vector<LinearModule> linear_modules(const ModelConfig& model) {
  const ParameterLayout layout(model);
  std::vector<LinearModule> modules;
  for (std::size_t unit = 1; unit + 1 < layout.units().size(); ++unit)
    for (const ParameterInfo& parameter : layout.parameters(static_cast<int>(unit))) {
      if (parameter.shape.size() != 2) continue;
      LinearModule module{std::string(module_of(parameter.name)), parameter.shape[1],
                          parameter.shape[0], model.transposed_weights};
      if (module.transposed) std::swap(module.in, module.out);
      modules.push_back(std::move(module));
    }
  return modules;
}

Result<AdapterConfig> make_adapter_config(const ModelConfig& model, const LoraRequest& request) {
  AdapterConfig config;
  config.rank = request.rank;
  config.lora_alpha =
      static_cast<double>(request.alpha.value_or(0) != 0 ? *request.alpha : 2 * request.rank);
  config.lora_dropout = request.dropout;
  config.use_rslora = request.use_rslora;
  config.use_dora = request.use_dora;
  if (request.pissa) config.init_lora_weights = request.pissa->init_lora_weights();
  config.fan_in_fan_out = model.transposed_weights;
  config.modules_to_save = request.additional_targets;
  ModuleSelection& selection = config.target_modules;
  if (request.targets == std::vector<std::string>{"all"}) {
    if (model.transposed_weights)
      return error(Code::kInvalidArgument,
                   "No `target_modules` passed but also no `target_parameters` found. Please check "
                   "the values for these arguments. (lora_target: all takes linear modules, and {} "
                   "has Conv1D instead; write lora_target: {})",
                   model.model_type, join_words(target_names(model), ","));
    selection.names = target_names(model);
  } else {
    selection.names = request.targets;
  }

  const std::vector<LinearModule> modules = linear_modules(model);
  if (request.llama_pro_layers) {
    const auto layers = TROUPE_TRY(expanded_layers(model, *request.llama_pro_layers));
    std::vector<std::string> names;
    for (const LinearModule& module : modules) {
      const bool named = std::any_of(
          selection.names.begin(), selection.names.end(),
          [&](const std::string& name) { return module.name.find(name) != std::string::npos; });
      const bool expanded = std::any_of(layers.begin(), layers.end(), [&](std::int64_t layer) {
        return module.name.find(fmt::format(".{}.", layer)) != std::string::npos;
      });
      if (named && expanded) names.push_back(module.name);
    }
    if (names.empty()) return no_target_found(model, selection);
    selection.names = std::move(names);
  } else if (selection.names.size() == 1 &&
             selection.names[0].find_first_of("*+?[](){}|^$\\") != std::string::npos) {
    selection = {{}, selection.names[0]};
  }
  const auto names_end_module = [&, ends = end_modules(model)](const std::string& name) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](const std::string& module) { return ends_with_name(module, name); });
  };
  // PEFT passes over a name that matches nothing where another one matches; most often it is
  // misspelt.
  for (const std::string& name : selection.names)
    if (std::none_of(
            modules.begin(), modules.end(),
            [&](const LinearModule& module) { return ends_with_name(module.name, name); }) &&
        !names_end_module(name))
      return no_target_found(model, {{name}, {}});
  Trainables none;
  TROUPE_RETURN_IF_ERROR(add_saved_modules(model, config, none).with("key", "additional_target"));
  const Trainables trainables = TROUPE_TRY(lora_trainables(model, config));
  if (!request.pissa) return config;
  for (const LinearModule& module : modules)
    for (const LoraModule& lora : trainables.lora)
      if (lora.module == module.name)
        TROUPE_RETURN_IF_ERROR(check_pissa_rank({.module = module.name,
                                                 .rank = lora.rank,
                                                 .in = module.in,
                                                 .out = module.out,
                                                 .scale = lora.scale})
                                   .with("key", "pissa_init"));
  return config;
}

Result<Trainables> lora_trainables(const ModelConfig& model, const AdapterConfig& adapter) {
  if (adapter.target_modules.empty())
    return error(
        Code::kInvalidArgument,
        "No `target_modules` passed but also no `target_parameters` found. Please check the "
        "values for these arguments.");
  auto targets = TROUPE_TRY(ModuleMatcher::make(adapter.target_modules, "target_modules"));
  auto excluded = TROUPE_TRY(ModuleMatcher::make(adapter.exclude_modules, "exclude_modules"));
  auto ranks = TROUPE_TRY(ValuePattern::make(adapter.rank_pattern, "rank_pattern"));
  auto alphas = TROUPE_TRY(ValuePattern::make(adapter.alpha_pattern, "alpha_pattern"));

  for (const std::string& module : end_modules(model))
    if (TROUPE_TRY(targets.matches(module)) && !TROUPE_TRY(excluded.matches(module)))
      return error(Code::kUnsupported,
                   "low-rank adapters of {} are not supported: name it in additional_target, which "
                   "trains it whole",
                   module);

  Trainables trainables;
  trainables.everything = false;
  for (const LinearModule& module : linear_modules(model)) {
    if (TROUPE_TRY(excluded.matches(module.name)) || !TROUPE_TRY(targets.matches(module.name)))
      continue;
    LoraModule lora;
    lora.module = module.name;
    lora.rank = static_cast<std::int64_t>(
        TROUPE_TRY(ranks.value_for(module.name, static_cast<double>(adapter.rank))));
    const double alpha = TROUPE_TRY(alphas.value_for(module.name, adapter.lora_alpha));
    const auto rank = static_cast<double>(lora.rank);
    lora.scale = alpha / (adapter.use_rslora ? std::sqrt(rank) : rank);
    lora.dropout = adapter.lora_dropout;
    lora.dora = adapter.use_dora;
    trainables.lora.push_back(std::move(lora));
  }
  if (trainables.lora.empty()) return no_target_found(model, adapter.target_modules);
  TROUPE_RETURN_IF_ERROR(add_saved_modules(model, adapter, trainables));
  return trainables;
}

Result<Trainables> freeze_trainables(const ModelConfig& model, const FreezeRequest& request) {
  const ParameterLayout layout(model);
  // Names directly under a layer, and the last names of modules outside of layers.
  std::vector<std::string> in_layers, outside;
  const auto add_name = [](std::vector<std::string>& names, std::string_view name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  };
  for (const ParameterInfo& parameter : layout.parameters()) {
    const std::string_view name = parameter.name;
    if (parameter.unit == 0 || parameter.unit + 1 == static_cast<int>(layout.units().size())) {
      add_name(outside, last_component(module_of(name)));
    } else if (const auto at = name.find(".0."); at != std::string_view::npos) {
      const std::string_view rest = name.substr(at + 3);
      add_name(in_layers, rest.substr(0, rest.find('.')));
    }
  }
  const auto not_found = [](std::string_view key, std::string_view name,
                            const std::vector<std::string>& names) {
    return error(Code::kInvalidArgument, "Module {} is not found, please choose from {}", name,
                 join_words(names))
        .with("key", key);
  };

  std::vector<std::int64_t> layers;
  const std::int64_t count = model.num_hidden_layers;
  if (request.use_llama_pro) {
    layers = TROUPE_TRY(expanded_layers(model, request.layers));
  } else {
    const bool last = request.layers > 0;
    const std::int64_t wanted = last ? std::min(request.layers, count)
                                     : (request.layers < -count ? count : -request.layers);
    for (std::int64_t i = 0; i < wanted; ++i) layers.push_back(last ? count - wanted + i : i);
  }

  std::vector<std::string> parts;
  for (const std::string& module : request.modules) {
    if (module != "all" && std::find(in_layers.begin(), in_layers.end(), module) == in_layers.end())
      return not_found("freeze_trainable_modules", module, in_layers);
    for (const std::int64_t layer : layers)
      parts.push_back(fmt::format(".{}.{}", layer, module == "all" ? "" : module));
  }
  for (const std::string& module : request.extra_modules) {
    if (std::find(outside.begin(), outside.end(), module) == outside.end())
      return not_found("freeze_extra_modules", module, outside);
    parts.push_back(module);
  }

  Trainables trainables;
  trainables.everything = false;
  for (const ParameterInfo& parameter : layout.parameters())
    if (std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
          return parameter.name.find(part) != std::string::npos;
        }))
      trainables.tensors.push_back(parameter.name);
  if (trainables.tensors.empty())
    return error(Code::kInvalidArgument,
                 "freeze_trainable_layers={} leaves nothing to train: give another number, or "
                 "freeze_extra_modules",
                 request.layers);
  return trainables;
}

Result<Trainables> matching_trainables(const ModelConfig& model,
                                       const std::vector<std::string>& expressions,
                                       std::vector<std::string>& notes) {
  const ParameterLayout layout(model);
  RegexScratch scratch;
  std::vector<bool> trained(layout.parameters().size());
  for (const std::string& expression : expressions) {
    const auto regex = Regex::compile(fmt::format("\\A(?:{})", expression));
    if (!regex.ok()) return regex.status();
    bool found = false;
    for (std::size_t i = 0; i < trained.size(); ++i) {
      if (!TROUPE_TRY(regex->find(layout.parameters()[i].name, 0, scratch))) continue;
      trained[i] = found = true;
    }
    if (!found) notes.push_back(fmt::format("no tensor's name begins as '{}' says", expression));
  }
  Trainables trainables;
  trainables.everything = false;
  for (std::size_t i = 0; i < trained.size(); ++i)
    if (trained[i]) trainables.tensors.push_back(layout.parameters()[i].name);
  if (trainables.tensors.empty()) {
    return error(
        Code::kInvalidArgument, "no tensor's name begins as {} says; the model's are {} … {}",
        join_words(expressions), layout.parameters().front().name, layout.parameters().back().name);
  }
  return trainables;
}

}  // namespace troupe::train
