#include "tools/commands/train_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/suggest.h"
#include "tools/launchers/help_text.h"
#include "train/config/aitraining.h"
#include "train/config/axolotl.h"
#include "train/config/key_groups.h"
#include "train/config/keys.h"

namespace troupe::tools {

bool take(std::vector<std::string>& arguments, const TrainFlag& flag) {
  return std::erase(arguments, flag.name) > 0;
}

namespace {

const TrainFlag* find_flag(std::span<const TrainFlag> flags, std::string_view name) {
  const auto found = std::find_if(flags.begin(), flags.end(),
                                  [&](const TrainFlag& flag) { return flag.name == name; });
  return found != flags.end() ? &*found : nullptr;
}

// Of whichever tool: whose file it is, is known later.
bool is_key(const std::string& name) {
  return train::find_key(train::canonical_key(name)) || train::find_key("troupe." + name) ||
         train::axolotl_keys().has(name) || train::aitraining_keys().has(name);
}

// The names, without "--", that a mistyped flag may have meant, flags first.
std::vector<std::string> flags_and_keys(std::span<const TrainFlag> flags) {
  std::vector<std::string> words;
  for (const TrainFlag& flag : flags) words.emplace_back(flag.name + 2);
  for (const std::string& key : train::key_names()) {
    words.push_back(key.starts_with("troupe.") ? key.substr(7) : key);
  }
  for (std::string& key : train::axolotl_keys().paths()) words.push_back(std::move(key));
  return words;
}

}  // namespace

Status check_flags(const std::vector<std::string>& arguments, std::string_view command,
                   std::span<const TrainFlag> taken) {
  // AITraining's command line is a language of its own.
  if (std::find(arguments.begin(), arguments.end(), "--format=aitraining") != arguments.end()) {
    return {};
  }
  std::vector<TrainFlag> flags(taken.begin(), taken.end());
  flags.push_back({"--help", "", ""});
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--")) continue;
    if (const TrainFlag* flag = find_flag(flags, name)) {
      if (*flag->type == '\0' && name.size() < argument.size()) {
        return error(Code::kInvalidArgument, "{} takes no value, and has one in '{}'", name,
                     argument);
      }
      continue;
    }
    if (find_flag(train_flags::kAll, name)) {
      return error(Code::kInvalidArgument, "{} is a flag of 'troupe train', not of 'troupe {}'",
                   name, command);
    }
    std::string key = name.substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    if (is_key(key) || (key.starts_with("no_") && is_key(key.substr(3)))) continue;
    const auto near = nearest_word(key, flags_and_keys(flags));
    if (near && find_flag(flags, "--" + *near)) {
      return error(Code::kInvalidArgument, "{} is no flag and no key; did you mean '--{}'?", name,
                   *near);
    }
  }
  return {};
}

std::string train_flags_help(std::span<const TrainFlag> flags) {
  std::vector<HelpRow> rows;
  for (const TrainFlag& flag : flags) {
    rows.push_back(
        {.left = fmt::format("{}{}{}", flag.name, *flag.type == '\0' ? "" : " ", flag.type),
         .right = flag.help});
  }
  return help_section("Flags", rows);
}

std::string train_keys_help() {
  std::string text =
      "\nKeys that do something, as key=value or --key value (those of Troupe's own also without\n"
      "'troupe.'). 'troupe run -- llamafactory-cli train --help' tells what each one means.\n";
  for (const train::KeyGroup& group : train::key_groups()) {
    std::vector<std::string> names;
    for (const train::KeySpec& key : group.keys) {
      if (train::acts_in_training(key)) names.push_back(key.name);
    }
    text += help_names(group.title, names).substr(1);
  }
  return text;
}

}  // namespace troupe::tools
