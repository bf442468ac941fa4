// llamafactory-cli's command line, as its launcher.py and cli.py (0.9.5) read it.
#include <algorithm>
#include <array>

#include "runtime/base/suggest.h"
#include "tools/launchers/help_text.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/script.h"
#include "train/config/key_groups.h"
#include "train/config/values.h"

namespace troupe::tools {
namespace {

constexpr std::array kLlamaFactoryCommands{
    SubCommand{"train", "FILE|--key value …", "trains a model"},
    SubCommand{"export", "FILE|--key value …", "merges adapters and writes the model"},
    SubCommand{"chat", "FILE [key=value …]", "talks with a model at the terminal"},
    SubCommand{"env", "", "what a report of a fault needs"},
    SubCommand{"version", "", "the version"},
    SubCommand{"help", "", "this text"},
};

constexpr std::array kLlamaFactoryNotHere{
    NotHere{"api", "no model is served; 'troupe chat' talks with one at the terminal"},
    NotHere{"webchat", "there is no page in a browser; 'troupe generate' continues a text"},
    NotHere{"webui", "there is no page in a browser; write a file, and 'troupe train' it"},
    NotHere{"eval", "LLaMA-Factory has given it up, too; use do_eval in a training's file"},
};

std::string llamafactory_usage() {
  return commands_help(
      "llamafactory-cli", "LLaMA-Factory's commands.", kLlamaFactoryCommands, kLlamaFactoryNotHere,
      {"llamafactory-cli train x.yaml", "llamafactory-cli train x.yaml learning_rate=1e-4",
       "llamafactory-cli export merge.yaml"});
}

// Every key that does something, with its meaning.
std::string train_help() {
  std::string sections;
  for (const train::KeyGroup& group : train::key_groups()) {
    std::vector<HelpRow> rows;
    for (const train::KeySpec& key : group.keys) {
      if (!train::acts_in_training(key)) continue;
      std::string right = key.meaning;
      std::vector<std::string> values;
      for (const std::string& value : key.allowed) {
        const auto verdict = train::verdict_of(key, train::to_value(value));
        if (verdict.treatment != train::Treatment::kRefused) values.push_back(value);
      }
      if (!values.empty()) right += fmt::format(" ({})", join_words(values));
      const auto given = train::value_text(key.default_value);
      if (!key.default_value.is_null() && !given.empty()) {
        right += fmt::format(" (default: {})", given);
      }
      rows.push_back({.left = "--" + key.name, .right = std::move(right)});
    }
    sections += help_section(group.title, rows);
  }
  return help_head("llamafactory-cli train FILE [key=value …] | --key value …",
                   "Trains a model as LLaMA-Factory's file says, or its keys as flags; these are "
                   "the keys that do something. The others are taken without effect or refused, "
                   "and 'troupe train FILE --explain' tells which and why.") +
         sections +
         help_examples({"llamafactory-cli train x.yaml",
                        "llamafactory-cli train x.yaml learning_rate=1e-4 --logging_steps 5"}) +
         help_end();
}

}  // namespace

Result<Invocation> llamafactory_cli(std::span<const std::string> words,
                                    const LauncherContext& context) {
  Invocation invocation;
  const std::string command = words.empty() ? "help" : words.front();
  const std::span<const std::string> rest = words.empty() ? words : words.subspan(1);
  TROUPE_RETURN_IF_ERROR(check_placeholders(rest));
  if (command == "help" || asks_for_help(command)) return help_answer(llamafactory_usage());
  if (command == "--version") return version_answer();
  if (command == "train" && std::any_of(rest.begin(), rest.end(), asks_for_help)) {
    return help_answer(train_help());
  }
  if (command == "version" || command == "env") {
    invocation.what = TroupeCommand{.words = {command}, .environment = {}};
    return invocation;
  }
  if (command == "train" || command == "export" || command == "chat") {
    if (context.environment.enabled("USE_V1")) {
      return Status(
          Code::kUnsupported,
          "USE_V1: the trainer of LLaMA-Factory's v1 has files of another form: unset it, "
          "and give a file of the present form");
    }
    if (rest.empty()) {
      return error(Code::kInvalidArgument,
                   "llamafactory-cli {}: give a .yaml or .json file, or --key value flags",
                   command);
    }
    TroupeCommand ours{.words = {command}, .environment = {}};
    ours.words.insert(ours.words.end(), rest.begin(), rest.end());
    invocation.what = std::move(ours);
    return invocation;
  }
  for (const NotHere& other : kLlamaFactoryNotHere) {
    if (command == other.command) {
      return error(Code::kUnsupported, "llamafactory-cli {}: {}", command, other.instead);
    }
  }
  return error(Code::kInvalidArgument, "Unknown command: {}{}\n{}", command,
               did_you_mean(command, {"train", "export", "chat", "env", "version", "help"}),
               llamafactory_usage());
}

}  // namespace troupe::tools
