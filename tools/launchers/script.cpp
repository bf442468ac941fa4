#include "tools/launchers/script.h"

#include <algorithm>
#include <array>

#include "runtime/base/suggest.h"

namespace troupe::tools {
namespace {

// Their training programs, as `python -m` and the launchers' -m name them.
constexpr std::array kTrainingModules{"axolotl.cli.train", "llamafactory.launcher",
                                      "llamafactory.train", "llamafactory.train.tuner",
                                      "llmtuner.launcher"};
// Packages whose training loop is done here.
constexpr std::array kTrainingPackages{"llamafactory", "axolotl", "llmtuner"};
constexpr std::size_t kScriptBytesMax = 1u << 20;

bool imports(std::string_view text, std::string_view package) {
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    std::string_view line = trim(text.substr(from, end - from));
    from = end + 1;
    for (const std::string_view word : {"import ", "from "}) {
      if (!line.starts_with(word)) continue;
      const std::string_view rest = trim(line.substr(word.size()));
      if (!rest.starts_with(package)) continue;
      const char after = rest.size() > package.size() ? rest[package.size()] : ' ';
      if (after == ' ' || after == '.' || after == ',' || after == '\r') return true;
    }
  }
  return false;
}

bool is_config(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json");
}

// Whether the arguments are a training's: a file of settings first, or flags of known keys.
bool looks_like_training(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return false;
  if (is_config(arguments.front()) && !arguments.front().starts_with('-')) return true;
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& word) {
    if (!word.starts_with("--")) return false;
    std::string name = word.substr(2, word.find('=') - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    return name == "stage" || name == "do_train" || name == "model_name_or_path";
  });
}

// Removes the flag that launchers add to a script's arguments, which is no setting.
void drop_local_rank(std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size();) {
    const std::string& word = arguments[i];
    if (word == "--local_rank" || word == "--local-rank") {
      arguments.erase(
          arguments.begin() + static_cast<std::ptrdiff_t>(i),
          arguments.begin() + static_cast<std::ptrdiff_t>(std::min(i + 2, arguments.size())));
    } else if (word.starts_with("--local_rank=") || word.starts_with("--local-rank=")) {
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

Result<std::optional<OwnTraining>> recognise(const Script& script, const LauncherContext& context) {
  OwnTraining training;
  training.arguments = script.arguments;
  drop_local_rank(training.arguments);
  if (script.module) {
    const auto known = std::find(kTrainingModules.begin(), kTrainingModules.end(), script.name);
    if (known == kTrainingModules.end()) return std::optional<OwnTraining>();
    return std::optional(std::move(training));
  }
  if (script.no_python) return std::optional<OwnTraining>();
  if (!context.files.exists(script.name)) {
    if (!looks_like_training(training.arguments)) {
      return error(Code::kNotFound,
                   "{} is not there, and its arguments are no training's (a .yaml file, or --stage "
                   "and its like): give the script's path",
                   script.name);
    }
    training.notices.push_back(fmt::format(
        "{} is not there; its arguments are LLaMA-Factory's, so Troupe trains", script.name));
    return std::optional(std::move(training));
  }
  const auto text = context.files.read(script.name, kScriptBytesMax);
  if (!text.ok()) return std::optional<OwnTraining>();  // a directory, or no text: Python will say
  for (const char* package : kTrainingPackages) {
    if (!imports(*text, package)) continue;
    training.notices.push_back(
        fmt::format("{} imports {}: Troupe trains in its place", script.name, package));
    return std::optional(std::move(training));
  }
  return std::optional<OwnTraining>();
}

}  // namespace

Status check_placeholders(std::span<const std::string> arguments) {
  if (std::find(arguments.begin(), arguments.end(), "...") == arguments.end()) return {};
  return Status(Code::kInvalidArgument,
                "the argument '...' stands for others in a text: write what is meant in its place");
}

Result<std::optional<OwnTraining>> own_training(const Script& script,
                                                const LauncherContext& context) {
  auto training = TROUPE_TRY(recognise(script, context));
  if (training) TROUPE_RETURN_IF_ERROR(check_placeholders(training->arguments));
  return training;
}

std::vector<std::string> program_of(const Script& script, const LauncherContext& context) {
  std::vector<std::string> words;
  if (!script.no_python) {
    const auto given = context.environment.get("PYTHON_EXEC").value_or("");
    const auto virtual_env = context.environment.get("VIRTUAL_ENV").value_or("");
    words.push_back(!given.empty()         ? given
                    : !virtual_env.empty() ? join_path(virtual_env, "bin/python")
                                           : std::string("python3"));
    words.push_back("-u");
    if (script.module) words.push_back("-m");
  }
  words.push_back(script.name);
  words.insert(words.end(), script.arguments.begin(), script.arguments.end());
  return words;
}

}  // namespace troupe::tools
