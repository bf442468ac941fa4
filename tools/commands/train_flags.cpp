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

Status check_flags(const std::vector<std::string>& arguments, std::string_view command,
                   std::span<const TrainFlag> taken) {
  const auto find = [](std::span<const TrainFlag> flags, std::string_view name) {
    const auto found = std::find_if(flags.begin(), flags.end(),
                                    [&](const TrainFlag& flag) { return flag.name == name; });
    return found != flags.end() ? &*found : nullptr;
  };
  // AITraining's command line is a language of its own.
  if (std::find(arguments.begin(), arguments.end(), "--format=aitraining") != arguments.end()) {
    return {};
  }
  std::vector<std::string> words{"--help"};
  for (const TrainFlag& flag : taken) words.emplace_back(flag.name);
  const std::size_t flag_count = words.size();
  for (const std::string& key : train::key_names()) {
    words.push_back("--" + (key.starts_with("troupe.") ? key.substr(7) : key));
  }
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--")) continue;
    if (const TrainFlag* flag = find(taken, name)) {
      if (*flag->type == '\0' && name.size() < argument.size()) {
        return error(Code::kInvalidArgument, "{} takes no value, and has one in '{}'", name,
                     argument);
      }
      continue;
    }
    if (find(train_flags::kAll, name)) {
      return error(Code::kInvalidArgument, "{} is a flag of 'troupe train', not of 'troupe {}'",
                   name, command);
    }
    std::string key = name.substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    const bool theirs = train::axolotl_keys().has(key) || train::aitraining_keys().has(key);
    if (theirs || train::find_key(train::canonical_key(key))) continue;
    const auto near = nearest_word(name, words);
    const auto flags = std::span(words).first(flag_count);
    if (near && std::find(flags.begin(), flags.end(), *near) != flags.end()) {
      return error(Code::kInvalidArgument, "{} is no flag and no key; did you mean '{}'?", name,
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
