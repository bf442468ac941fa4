#include "tools/commands/train_flags.h"

#include <fmt/format.h>

#include "tools/launchers/help_text.h"
#include "train/config/key_groups.h"

namespace troupe::tools {

bool take(std::vector<std::string>& arguments, const TrainFlag& flag) {
  return std::erase(arguments, flag.name) > 0;
}

std::string train_flags_help() {
  std::vector<HelpRow> rows;
  for (const TrainFlag& flag : train_flags::kAll) {
    rows.push_back(
        {.left = fmt::format("{}{}{}", flag.name, *flag.type == '\0' ? "" : " ", flag.type),
         .right = flag.help});
  }
  std::string text =
      help_section("Flags", rows) +
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
