#include "train/config/load.h"

#include <iterator>
#include <map>
#include <set>

#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "train/config/aitraining.h"
#include "train/config/arguments.h"
#include "train/config/axolotl.h"
#include "train/config/config_format.h"
#include "train/config/deepspeed.h"
#include "train/config/derived.h"
#include "train/config/foreign_keys.h"
#include "train/config/keys.h"
#include "train/config/launch_variables.h"
#include "train/config/problems.h"
#include "train/config/resolve.h"
#include "train/config/rules.h"
#include "train/config/sources.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

bool is_config_path(const std::string& argument) {
  return argument.find('=') == std::string::npos && !argument.starts_with("--") &&
         is_config_file(argument);
}

// The given keys, flat ("troupe.workers"), each canonical. Unknown ones and wrong values become
// problems.
class Reader {
 public:
  Reader(LoadedConfig& loaded, bool allow_extra, Problems& problems)
      : loaded_(loaded), allow_extra_(allow_extra), problems_(problems) {}

  json::Object read() {
    if (const auto foreign = foreign_config(loaded_.source.values)) {
      problems_.add(Code::kUnsupported, foreign->key, foreign->reason);
      return {};
    }
    for (const auto& member : loaded_.source.values) {
      const std::string name(member.key());
      if (name != "troupe") {
        read_key(name, member.value());
      } else if (member.value().is_object()) {
        for (const auto& ours : member.value().get_object()) {
          read_key("troupe." + std::string(ours.key()), ours.value());
        }
      } else if (!member.value().is_null()) {
        problems_.add(Code::kInvalidArgument, name,
                      "expected settings, as in troupe: {workers: 2}");
      }
    }
    return std::move(values_);
  }

 private:
  void read_key(const std::string& name, const json::Value& value) {
    const auto* key = find_key(canonical_key(name));
    if (!key) return unknown(name);
    if (values_.contains(json_view(key->name))) {
      problems_.add(Code::kInvalidArgument, name,
                    fmt::format("the same as {}, which stands there too", key->name));
      return;
    }
    auto canonical = canonical_value(*key, value);
    if (!canonical.ok()) {
      problems_.add(name, canonical.status());
      return;
    }
    values_[json_view(key->name)] = std::move(*canonical);
  }

  void unknown(const std::string& name) {
    if (allow_extra_) {
      loaded_.warnings.push_back(
          fmt::format("the unknown key '{}' is passed over because ALLOW_EXTRA_ARGS is on", name));
      return;
    }
    problems_.add(Code::kInvalidArgument, name, "unknown key" + did_you_mean(name, key_names()));
  }

  LoadedConfig& loaded_;
  bool allow_extra_;
  Problems& problems_;
  json::Object values_;
};

// Refuses values that are understood and not supported; defaults too (finetuning_type is lora).
void check_verdicts(const json::Object& values, Problems& problems) {
  for (const auto& key : key_table()) {
    const auto* given = values.if_contains(json_view(key.name));
    const auto verdict = verdict_of(key, given ? *given : key.default_value);
    if (verdict.treatment != Treatment::kRefused || problems.has(key.name)) continue;
    problems.add_named(Code::kUnsupported, key.name, verdict.note);
  }
}

void store_values(TrainConfig& config, const json::Object& values, Problems& problems) {
  for (const auto& key : key_table()) {
    const auto* given = values.if_contains(json_view(key.name));
    if (key.store) {
      // A refused value never reaches the configuration, nor does a field without one.
      const auto& value = given ? *given : key.default_value;
      if (verdict_of(key, value).treatment == Treatment::kRefused) continue;
      // Not given and without a default: the field's own initial value stands.
      if (value.is_null() && key.default_value.is_null()) continue;
      if (const auto stored = key.store(config, value); !stored.ok())
        problems.add(key.name, stored);
    } else if (given && !key.secret) {
      config.other[json_view(key.name)] = *given;
    }
  }
}

// Given keys that have no effect, in the words in which they were given. Another tool's key may
// have become several of ours: it has an effect where one of them has.
void say_keys_without_effect(LoadedConfig& loaded, const json::Object& given) {
  std::map<std::string, std::vector<std::string>> reasons;
  std::set<std::string> with_effect;
  for (const auto& key : key_table()) {
    const auto* value = given.if_contains(json_view(key.name));
    if (!value || asks_for_nothing(key, *value)) continue;
    const auto origin = loaded.source.origin_of(key.name);
    // The user has not written the defaults of another tool.
    if (origin.kind == OriginKind::kDefault) continue;
    const std::string name = origin.key.empty() ? key.name : origin.key;
    if (key.said) {
      reasons[key.reason].push_back(name);
    } else if (key.counts && !key.counts(loaded.config)) {
      reasons[key.idle_reason].push_back(name);
    } else {
      with_effect.insert(name);
    }
  }
  // Words of a list of which others have an effect.
  for (const std::string& word : loaded.config.training.report_to) {
    if (reports_to_tensorboard(loaded.config) && word != "tensorboard" && word != "all" &&
        word != "none") {
      reasons[kOwnLog].push_back("report_to: " + word);
    }
  }
  for (auto& [reason, names] : reasons) {
    std::erase_if(names, [&](const auto& name) { return with_effect.contains(name); });
    if (!names.empty()) loaded.notices.push_back(without_effect("", names, reason));
  }
}

// `fsdp_config` may be the path of a JSON file; its content takes its place.
void read_fsdp_config(json::Object& values, FileSystem& files, Problems& problems) {
  const auto* given = values.if_contains("fsdp_config");
  if (!given || given->is_object() || given->is_null()) return;
  auto config = read_deepspeed(*given, files);
  if (config.ok()) {
    values["fsdp_config"] = std::move(*config);
    return;
  }
  problems.add("fsdp_config", config.status());
  values.erase("fsdp_config");
}

// What was given, before any of it is understood.
struct Given {
  SourceDocument source;
  bool is_fields = false;  // of AITraining: the fields of flags already
  std::string name;        // the file
  ConfigFormat format = ConfigFormat::kLlamaFactory;
  std::vector<std::string> notices;
  Status arguments;  // what was wrong with the command line
};

Translation translate_aitraining_document(const Given& given, const TranslationContext& context,
                                          Problems& problems) {
  Translation ours;
  SourceDocument theirs = given.source;
  theirs.values = take_our_settings(
      given.source, [](const std::string& key) { return is_aitraining_key(key); }, ours, problems);
  Problems problems_of_fields(theirs);
  const auto fields = given.is_fields ? theirs : aitraining_fields(theirs, problems_of_fields);
  problems.take(std::move(problems_of_fields));
  Problems problems_of_translation(fields);
  auto out = translate_aitraining(fields, context, problems_of_translation);
  problems.take(std::move(problems_of_translation));
  put_over(ours.document, out.document);
  return out;
}

// Another tool's document in our keys. The places of its own keys stay known beside them.
Translation translate(const Given& given, const LoadOptions& options, FileSystem& files,
                      Problems& problems) {
  const TranslationContext context{files, format_title(given.format), given.name,
                                   options.gpu_count};
  if (given.format == ConfigFormat::kAitraining)
    return translate_aitraining_document(given, context, problems);
  auto out = translate_axolotl(given.source, context, problems);
  for (const auto& [path, origin] : given.source.origins)
    out.document.origins.emplace(path, origin);
  return out;
}

Status refused(const LoadedConfig& loaded, const Problems& problems, const LoadOptions& options) {
  if (options.on_problems) options.on_problems(loaded, problems);
  return problems.status();
}

Result<LoadedConfig> resolve(Given given_settings, const Environment& environment,
                             FileSystem& files, const LoadOptions& options) {
  LoadedConfig loaded;
  loaded.notices = std::move(given_settings.notices);
  Problems problems_of_theirs(given_settings.source);
  if (given_settings.format == ConfigFormat::kLlamaFactory) {
    loaded.source = given_settings.source;
  } else {
    auto translated = translate(given_settings, options, files, problems_of_theirs);
    loaded.source = std::move(translated.document);
    loaded.facts = std::move(translated.facts);
    for (auto& notice : translated.notices) loaded.notices.push_back(std::move(notice));
  }
  Problems problems(loaded.source);
  problems.take(std::move(problems_of_theirs));
  const Status& arguments = given_settings.arguments;
  if (!arguments.ok()) problems.add_named(arguments.code(), "arguments", arguments.message());
  loaded.launch = read_launch_environment(environment, problems);
  auto variables = judge_launch_variables(environment, problems);
  std::move(variables.facts.begin(), variables.facts.end(), std::back_inserter(loaded.facts));
  std::move(variables.notices.begin(), variables.notices.end(), std::back_inserter(loaded.notices));
  Reader reader(loaded, environment.enabled("ALLOW_EXTRA_ARGS"), problems);
  auto values = reader.read();
  // A foreign file would only add noise about each of its keys.
  if (foreign_config(loaded.source.values)) return problems.status();
  read_fsdp_config(values, files, problems);
  const json::Object given = values;
  for (const auto& member : options.defaults)
    if (!values.contains(member.key())) values[member.key()] = member.value();
  auto plain = values;
  plain.erase("deepspeed");
  store_values(loaded.config, plain, problems);
  loaded.config.model.is_from_program = options.brings_model;
  loaded.config.data.is_from_program = options.brings_data;
  if (options.locate) options.locate(loaded, problems);
  if (options.purpose != LoadPurpose::kTraining) {
    if (options.purpose == LoadPurpose::kExport) check_export(loaded.config, given, problems);
    if (options.purpose == LoadPurpose::kChat) check_chat(loaded.config, given, problems);
    check_verdicts(given, problems);
    if (options.check_paths) check_model_path(loaded.config, files, problems);
    if (!problems.empty()) return refused(loaded, problems, options);
    return loaded;
  }
  resolve_defaults(loaded, values);
  resolve_sources(loaded, values, environment, files, options.gpu_count, problems);
  check_launch(loaded.launch, loaded.config, environment, problems);
  check_combinations(loaded.config, given, problems);
  say_keys_without_effect(loaded, given);
  check_verdicts(given, problems);
  if (options.check_paths) check_paths(loaded.config, files, problems);
  if (options.check_contents) options.check_contents(loaded, problems);
  if (!problems.empty()) return refused(loaded, problems, options);
  loaded.world_size = resolve_world_size(loaded.config, loaded.launch, options.gpu_count);
  return loaded;
}

// Settles the format and puts the command line's settings in, in the words of that format.
Result<Given> with_arguments(Given given, std::span<const std::string> arguments) {
  std::vector<std::string> settings(arguments.begin(), arguments.end());
  const auto wanted = TROUPE_TRY(take_format(settings));
  const auto detected = detect_format(given.source.values);
  given.format = wanted.value_or(detected.format);
  if (given.format != ConfigFormat::kLlamaFactory) {
    given.notices.push_back(
        wanted ? fmt::format("{} is read as a file of {}", given.name, format_title(given.format))
               : fmt::format("{} is a file of {} ({}); --format says it otherwise", given.name,
                             format_title(given.format), join_words(detected.marks)));
  }
  KeyTypes types;
  if (given.format == ConfigFormat::kAitraining) {
    types = [](const std::string& key) -> std::optional<ValueType> {
      if (is_aitraining_key(key.substr(0, key.find('.')))) return ValueType::kAny;
      return std::nullopt;
    };
  } else if (given.format == ConfigFormat::kAxolotl) {
    types = [](const std::string& key) -> std::optional<ValueType> {
      const auto dot = key.find('.');
      if (axolotl_keys().has(key) || axolotl_keys().has(key.substr(0, dot))) return ValueType::kAny;
      return std::nullopt;
    };
  }
  given.arguments = apply_arguments(given.source, settings, types);
  return given;
}

}  // namespace

Result<LoadedConfig> load_train_config_text(std::string_view text, std::string_view name,
                                            std::span<const std::string> arguments,
                                            const Environment& environment, FileSystem& files,
                                            const LoadOptions& options) {
  Given given{.source = TROUPE_TRY(parse_document(text, name)),
              .name = std::string(name),
              .notices = {},
              .arguments = {}};
  return resolve(TROUPE_TRY(with_arguments(std::move(given), arguments)), environment, files,
                 options);
}

Result<LoadedConfig> load_train_config(std::span<const std::string> arguments,
                                       const Environment& environment, FileSystem& files,
                                       const LoadOptions& options) {
  if (!arguments.empty() && is_config_path(arguments.front())) {
    const auto text = files.read(arguments.front(), limits::kConfigBytesMax);
    if (!text.ok()) return text.status().prefixed("configuration");
    return load_train_config_text(*text, arguments.front(), arguments.subspan(1), environment,
                                  files, options);
  }
  if (arguments.empty()) {
    return error(Code::kInvalidArgument,
                 "no configuration: give a .yaml, .yml or .json file, or --key value flags");
  }
  if (arguments.front() == "--format=aitraining") {
    return load_aitraining(arguments.subspan(1), environment, files, options);
  }
  Given given{.source = {}, .name = {}, .notices = {}, .arguments = {}};
  return resolve(TROUPE_TRY(with_arguments(std::move(given), arguments)), environment, files,
                 options);
}

Result<LoadedConfig> load_aitraining(std::span<const std::string> arguments,
                                     const Environment& environment, FileSystem& files,
                                     const LoadOptions& options) {
  if (!arguments.empty() &&
      (arguments.front() == "--config" || arguments.front().starts_with("--config="))) {
    const auto equals = arguments.front().find('=');
    const std::size_t used = equals == std::string::npos ? 2 : 1;
    if (arguments.size() < used)
      return error(Code::kInvalidArgument, "--config needs the path of a YAML file");
    const std::string path = used == 1 ? arguments.front().substr(equals + 1) : arguments[1];
    const auto text = files.read(path, limits::kConfigBytesMax);
    if (!text.ok()) return text.status().prefixed("configuration");
    std::vector<std::string> more(arguments.begin() + static_cast<std::ptrdiff_t>(used),
                                  arguments.end());
    more.emplace_back("--format=aitraining");
    return load_train_config_text(*text, path, more, environment, files, options);
  }
  const std::string command = arguments.empty() ? "" : arguments.front();
  if (command != "llm") {
    return error(command.empty() ? Code::kInvalidArgument : Code::kUnsupported,
                 "'{}' is not supported: language models are trained here, by `aitraining llm "
                 "--train --model M --data-path D --project-name P` or `aitraining --config FILE`",
                 command);
  }
  std::vector<std::string> flags;
  std::vector<std::string> ours;  // settings of ours have no flag there
  for (const auto& argument : arguments.subspan(1))
    (argument.starts_with("troupe.") ? ours : flags).push_back(argument);
  Given given{.source = TROUPE_TRY(aitraining_flags(flags)),
              .is_fields = true,
              .name = "the command line",
              .format = ConfigFormat::kAitraining,
              .notices = {},
              .arguments = {}};
  given.arguments = apply_arguments(given.source, ours);
  return resolve(std::move(given), environment, files, options);
}

}  // namespace troupe::train
