#include "tools/launchers/script.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "runtime/base/suggest.h"
#include "train/config/config_format.h"

namespace troupe::tools {
namespace {

// Their training programs, as `python -m` and the launchers' -m name them.
constexpr std::array kTrainingModules{"axolotl.cli.train", "llamafactory.launcher",
                                      "llamafactory.train", "llamafactory.train.tuner",
                                      "llmtuner.launcher"};
// What their training scripts import. A script that imports something else of those packages is a
// program of the user's: an evaluation, or a conversion.
constexpr std::array kTrainingImports{
    "axolotl.cli",        "axolotl.train", "llamafactory.cli",  "llamafactory.launcher",
    "llamafactory.train", "llmtuner.cli",  "llmtuner.launcher", "llmtuner.train"};
// Their scripts' names: one of these may be missing where the package is not installed.
constexpr std::array kTrainingScripts{"finetune.py", "launcher.py", "train.py", "train_bash.py"};
constexpr std::size_t kScriptBytesMax = 1u << 20;

// "import M", "from M import x" and "from P import run_exp" of a training's module, at the
// beginning of a line and outside of texts in three quotation marks. Empty: none.
std::string_view training_import(std::string_view text) {
  std::string_view quote;  // of the text that goes on
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    const std::string_view line = text.substr(from, end - from);
    from = end + 1;
    const bool in_text = !quote.empty();
    for (std::size_t at = 0; at + 3 <= line.size();) {
      const std::string_view three = line.substr(at, 3);
      const bool opens = quote.empty() && (three == "\"\"\"" || three == "'''");
      if (!opens && (quote.empty() || three != quote)) {
        ++at;
        continue;
      }
      quote = opens ? three : std::string_view();
      at += 3;
    }
    if (in_text) continue;
    std::string_view rest = line;
    if (rest.starts_with("from ")) {
      rest.remove_prefix(5);
    } else if (rest.starts_with("import ")) {
      rest.remove_prefix(7);
    } else {
      continue;
    }
    const std::string_view module = rest.substr(0, rest.find_first_of(" ,;\r\t"));
    for (const std::string_view known : kTrainingImports) {
      if (module == known || (module.starts_with(known) && module[known.size()] == '.'))
        return module;
    }
    const bool package = module == "llamafactory" || module == "llmtuner";
    if (package && rest.find("run_exp") != std::string_view::npos) return module;
  }
  return {};
}

// Whether the arguments are a training's: a file of settings first, or flags of known keys.
bool looks_like_training(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return false;
  if (train::is_config_file(arguments.front()) && !arguments.front().starts_with('-')) return true;
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
    const auto name = std::filesystem::path(script.name).filename().string();
    const bool known =
        std::find(kTrainingScripts.begin(), kTrainingScripts.end(), name) != kTrainingScripts.end();
    if (!known || !looks_like_training(training.arguments)) {
      return error(Code::kNotFound, "{} is not there{}: give the script's path", script.name,
                   known
                       ? ", and its arguments are no training's (a .yaml file, or --stage and its "
                         "like)"
                       : "");
    }
    training.notices.push_back(fmt::format(
        "{} is not there; its arguments are LLaMA-Factory's, so Troupe trains", script.name));
    return std::optional(std::move(training));
  }
  const auto text = context.files.read(script.name, kScriptBytesMax);
  if (!text.ok()) return std::optional<OwnTraining>();  // a directory, or no text: Python will say
  const auto module = training_import(*text);
  if (module.empty()) return std::optional<OwnTraining>();
  training.notices.push_back(
      fmt::format("{} imports {}: Troupe trains in its place", script.name, module));
  return std::optional(std::move(training));
}

}  // namespace

Status check_placeholders(std::span<const std::string> arguments) {
  if (std::find(arguments.begin(), arguments.end(), "...") == arguments.end()) return {};
  return Status(Code::kInvalidArgument,
                "the argument '...' stands for others in a text: write what is meant in its place");
}

Result<std::optional<OwnTraining>> own_training(const Script& script,
                                                const LauncherContext& context) {
  // Python reads it from standard input.
  if (script.name == "-") return std::optional<OwnTraining>();
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
