// axolotl's command line, as its cli/main.py has it: train, preprocess, merge-lora,
// merge-sharded-fsdp-weights; the rest is refused by name.
#include <algorithm>
#include <array>

#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "tools/launchers/help_text.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/script.h"
#include "train/config/axolotl.h"
#include "train/config/source.h"

namespace troupe::tools {
namespace {

constexpr std::array kAxolotlCommands{
    SubCommand{"train", "CONFIG [--key value …] [-- LAUNCHER'S WORDS]", "trains a model"},
    SubCommand{"preprocess", "CONFIG [--key value …]",
               "reads and checks settings and data, and tells what the samples are"},
    SubCommand{"merge-lora", "CONFIG [--key value …]", "merges an adapter into its base"},
    SubCommand{"merge-sharded-fsdp-weights", "CONFIG [--key value …]",
               "makes a model of a sharded checkpoint"},
};

// Flags that are no keys of the file. A launcher's are passed on to it under this name.
struct LauncherFlag {
  const char* name;
  const char* type;
  const char* help;
  const char* of_launcher = "";
};
constexpr std::array kLauncherFlags{
    LauncherFlag{"--launcher", "accelerate|torchrun|python",
                 "whose words stand behind '--' (default: accelerate)"},
    LauncherFlag{"--num-processes", "N", "trainers", "--num_processes"},
    LauncherFlag{"--main-process-port", "PORT", "of the first machine", "--main_process_port"},
};
constexpr std::array kRefusedFlags{"--cloud", "--sweep"};

constexpr std::array kAxolotlNotHere{
    NotHere{"evaluate", "give val_set_size or test_datasets in a training's file"},
    NotHere{"inference", "use 'troupe generate --model DIR'"},
    NotHere{"lm-eval", "no evaluation harness is here; use 'troupe generate --model DIR'"},
    NotHere{"quantize", "models are written in their own precision; leave it out"},
    NotHere{"fetch", "nothing is fetched; give the path of a file that you have"},
    NotHere{"vllm-serve", "no model is served; use 'troupe generate --model DIR'"},
    NotHere{"delinearize-llama4", "mixtures of experts are not there; use its own program"},
    NotHere{"agent-docs", "'troupe --help' tells of the commands"},
    NotHere{"config-schema", "'troupe train FILE --explain' tells what becomes of every key"},
};

// The words of a command: CONFIG, then overrides in the file's keys, flags of axolotl's own, and
// behind "--" the words for the launcher.
struct TrainWords {
  std::string config;
  std::vector<std::string> overrides;
  std::string launcher = "accelerate";
  std::vector<std::string> launcher_words;
};

Result<std::string> value_behind(std::span<const std::string> words, std::size_t& i) {
  const std::size_t equals = words[i].find('=');
  if (equals != std::string::npos) return words[i].substr(equals + 1);
  if (i + 1 == words.size()) {
    return error(Code::kInvalidArgument, "axolotl: Option '{}' requires an argument.", words[i]);
  }
  return words[++i];
}

Result<TrainWords> read_words(const std::string& command, std::span<const std::string> words) {
  TrainWords result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    std::string name = word.substr(0, word.find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    const auto flag = std::find_if(kLauncherFlags.begin(), kLauncherFlags.end(),
                                   [&](const LauncherFlag& one) { return name == one.name; });
    if (word == "--") {
      result.launcher_words.assign(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
      break;
    }
    if (flag != kLauncherFlags.end()) {
      auto value = TROUPE_TRY(value_behind(words, i));
      if (*flag->of_launcher == '\0') {
        result.launcher = std::move(value);
      } else {
        result.launcher_words.insert(result.launcher_words.end(),
                                     {flag->of_launcher, std::move(value)});
      }
    } else if (std::find(kRefusedFlags.begin(), kRefusedFlags.end(), name) != kRefusedFlags.end()) {
      return error(
          Code::kUnsupported,
          "axolotl {}: {}: a run is one configuration on your own machines; write one file "
          "for each",
          command, name);
    } else if (result.config.empty() && !word.starts_with('-')) {
      result.config = word;
    } else {
      result.overrides.push_back(word);
    }
  }
  if (result.config.empty()) {
    return Status(Code::kInvalidArgument, "axolotl: Missing argument 'CONFIG'.");
  }
  return result;
}

Invocation command_of(std::vector<std::string> words, std::span<const std::string> more) {
  words.insert(words.end(), more.begin(), more.end());
  return {TroupeCommand{.words = std::move(words), .environment = {}}, {}};
}

Result<Invocation> train(const TrainWords& given, const LauncherContext& context) {
  if (given.launcher == "python" || given.launcher_words.empty()) {
    return command_of({"train", given.config, "--format=axolotl"}, given.overrides);
  }
  // The launcher's own words say how many processes there are, and where.
  std::vector<std::string> words = given.launcher_words;
  for (const char* word : {"-m", "axolotl.cli.train"}) words.emplace_back(word);
  words.push_back(given.config);
  words.insert(words.end(), given.overrides.begin(), given.overrides.end());
  const Interpreter launcher = find_launcher(given.launcher);
  if (launcher == nullptr || (given.launcher != "torchrun" && given.launcher != "accelerate")) {
    return error(Code::kInvalidArgument,
                 "axolotl: Invalid value for '--launcher': '{}' is not one of 'accelerate', "
                 "'torchrun', 'python'.",
                 given.launcher);
  }
  if (given.launcher == "accelerate") words.insert(words.begin(), "launch");
  return launcher(words, context);
}

// A text among the file's outermost keys, or what is given instead on the command line.
Result<std::string> setting(const train::SourceDocument& file, const TrainWords& given,
                            const std::string& key, const std::string& otherwise) {
  for (std::size_t i = 0; i < given.overrides.size(); ++i) {
    std::string name = given.overrides[i].substr(0, given.overrides[i].find('='));
    std::replace(name.begin(), name.end(), '-', '_');
    if (name == "__" + key) return value_behind(given.overrides, i);
  }
  const auto* value = file.values.if_contains(key);
  if (value == nullptr || value->is_null()) return otherwise;
  if (!value->is_string()) {
    return error(Code::kInvalidArgument, "{}: {}: a text is expected", given.config, key);
  }
  return std::string(value->get_string());
}

Result<Invocation> merge(const std::string& command, const TrainWords& given,
                         const LauncherContext& context) {
  const auto text = TROUPE_TRY(context.files.read(given.config, limits::kConfigBytesMax));
  const auto file = TROUPE_TRY(train::parse_document(text, given.config));
  const std::string out = TROUPE_TRY(setting(file, given, "output_dir", "./model-out"));
  if (command == "merge-sharded-fsdp-weights") {
    return command_of({"merge", out, join_path(out, "merged")}, {});
  }
  const std::string base = TROUPE_TRY(setting(file, given, "base_model", ""));
  if (base.empty()) {
    return error(Code::kInvalidArgument, "{}: base_model: it names no model", given.config);
  }
  const std::string adapter = TROUPE_TRY(setting(file, given, "lora_model_dir", out));
  return command_of({"export", "--model_name_or_path", base, "--adapter_name_or_path", adapter,
                     "--export_dir", join_path(out, "merged")},
                    {});
}

std::string axolotl_usage() {
  return commands_help("axolotl", "Axolotl's commands.", kAxolotlCommands, kAxolotlNotHere,
                       {"axolotl train config.yml", "axolotl train config.yml --micro-batch-size 4",
                        "axolotl preprocess config.yml"});
}

// The keys of CONFIG that do something, by the first part of their meaning's row.
std::string help_of(const SubCommand& command) {
  const train::ForeignKeys& keys = train::axolotl_keys();
  std::vector<std::string> used;
  for (const std::string& path : keys.paths()) {
    const bool outermost = path.find('.') == std::string::npos;
    if (outermost && keys.treated(path).treatment == train::Treatment::kImplemented) {
      used.push_back(path);
    }
  }
  const bool trains = std::string_view(command.name) == "train";
  std::vector<HelpRow> rows;
  for (const LauncherFlag& flag : kLauncherFlags) {
    rows.push_back({.left = fmt::format("{} {}", flag.name, flag.type), .right = flag.help});
  }
  return help_head(fmt::format("axolotl {} {}", command.name, command.words), command.summary) +
         (trains ? help_section("Flags", rows) : "") +
         help_names("Keys of CONFIG that do something, also as --key value", used) +
         (trains ? help_names("Refused here, each with what to do instead",
                              {kRefusedFlags.begin(), kRefusedFlags.end()})
                 : "") +
         help_examples({fmt::format("axolotl {} config.yml", command.name)}) +
         "\n'troupe train CONFIG --explain' tells what becomes of every key in it.\n" + help_end();
}

}  // namespace

Result<Invocation> axolotl(std::span<const std::string> words, const LauncherContext& context) {
  std::vector<std::string> known;
  for (const SubCommand& command : kAxolotlCommands) known.emplace_back(command.name);
  const std::string command = words.empty() ? "--help" : words.front();
  if (asks_for_help(command)) return help_answer(axolotl_usage());
  if (command == "--version") return version_answer();
  for (const NotHere& other : kAxolotlNotHere) {
    if (command != other.command) continue;
    return error(Code::kUnsupported, "axolotl {}: {}", command, other.instead);
  }
  if (std::find(known.begin(), known.end(), command) == known.end()) {
    for (const NotHere& other : kAxolotlNotHere) known.emplace_back(other.command);
    return error(Code::kInvalidArgument, "axolotl: No such command '{}'.{}", command,
                 did_you_mean(command, known));
  }
  const auto launchers_words = std::find(words.begin(), words.end(), "--");
  if (std::any_of(words.begin(), launchers_words, asks_for_help)) {
    return help_answer(
        help_of(*std::find_if(kAxolotlCommands.begin(), kAxolotlCommands.end(),
                              [&](const SubCommand& one) { return command == one.name; })));
  }
  const auto given = TROUPE_TRY(read_words(command, words.subspan(1)));
  TROUPE_RETURN_IF_ERROR(check_placeholders(given.overrides));
  if (command == "train") return train(given, context);
  if (command == "preprocess") {
    return command_of({"data", given.config, "--format=axolotl"}, given.overrides);
  }
  return merge(command, given, context);
}

}  // namespace troupe::tools
