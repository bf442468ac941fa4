// axolotl's command line, as its cli/main.py has it: train, preprocess, merge-lora,
// merge-sharded-fsdp-weights; the rest is refused by name.
#include <algorithm>
#include <array>

#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/not_here.h"
#include "tools/launchers/script.h"
#include "train/config/source.h"

namespace troupe::tools {
namespace {

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
    const std::string name = word.substr(0, word.find('='));
    if (word == "--") {
      result.launcher_words.assign(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
      break;
    }
    if (name == "--launcher") {
      result.launcher = TROUPE_TRY(value_behind(words, i));
    } else if (name == "--num-processes" || name == "--num_processes") {
      result.launcher_words.push_back("--num_processes");
      result.launcher_words.push_back(TROUPE_TRY(value_behind(words, i)));
    } else if (name == "--main-process-port" || name == "--main_process_port") {
      result.launcher_words.push_back("--main_process_port");
      result.launcher_words.push_back(TROUPE_TRY(value_behind(words, i)));
    } else if (name == "--cloud" || name == "--sweep") {
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

}  // namespace

Result<Invocation> axolotl(std::span<const std::string> words, const LauncherContext& context) {
  std::vector<std::string> known{"train", "preprocess", "merge-lora", "merge-sharded-fsdp-weights"};
  const std::string command = words.empty() ? "--help" : words.front();
  if (command == "--help" || command == "-h") {
    return Invocation{
        Answer{.text = fmt::format("axolotl, carried out by Troupe:\n  axolotl COMMAND CONFIG "
                                   "[--key value …] [-- LAUNCHER'S WORDS]\n  commands: {}\n",
                                   join_words(known)),
               .exit_code = 0},
        {}};
  }
  if (command == "--version") return command_of({"version"}, {});
  for (const NotHere& other : kAxolotlNotHere) {
    if (command != other.command) continue;
    return error(Code::kUnsupported, "axolotl {}: {}", command, other.instead);
  }
  if (std::find(known.begin(), known.end(), command) == known.end()) {
    for (const NotHere& other : kAxolotlNotHere) known.emplace_back(other.command);
    return error(Code::kInvalidArgument, "axolotl: No such command '{}'.{}", command,
                 did_you_mean(command, known));
  }
  const auto given = TROUPE_TRY(read_words(command, words.subspan(1)));
  TROUPE_RETURN_IF_ERROR(check_placeholders(given.overrides));
  if (command == "train") return train(given, context);
  if (command == "preprocess") {
    Invocation invocation = command_of({"plan", given.config, "--format=axolotl"}, given.overrides);
    invocation.notices.push_back(
        "the data are tokenised when the training starts; here settings and data are read and "
        "checked, and nothing is kept");
    return invocation;
  }
  return merge(command, given, context);
}

}  // namespace troupe::tools
