// aitraining's command line (and autotrain's, the older one): what trains a language model goes to
// `troupe train --format aitraining`, which knows its words; the rest is refused there by name.
#include <algorithm>
#include <array>

#include "tools/launchers/help_text.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/script.h"
#include "train/config/aitraining.h"

namespace troupe::tools {
namespace {

constexpr std::array kAitrainingCommands{
    SubCommand{"llm", "--train --model M …", "trains a language model; its flags: llm --help"},
    SubCommand{"--config", "FILE.yaml", "trains as a file says"},
};
constexpr std::array kAitrainingNotHere{
    NotHere{"chat", "'troupe chat --model DIR' talks with a model"},
    NotHere{"tui", "give flags or a file"}, NotHere{"app", "give flags or a file"},
    NotHere{"api", "nothing is served"}, NotHere{"setup", "nothing is to be set up"}};

const std::vector<std::string> kExamples{
    "aitraining llm --train --model ./tiny --data-path ./data --project-name ./out",
    "aitraining --config sft.yaml"};

std::string aitraining_usage() {
  return commands_help("aitraining", "AITraining's commands.", kAitrainingCommands,
                       kAitrainingNotHere, kExamples);
}

// The flags of `aitraining llm`: the fields of its table, those of one meaning in one row.
std::string llm_help() {
  const train::ForeignKeys& keys = train::aitraining_keys();
  std::vector<HelpRow> rows;
  std::vector<std::string> inert, refused;
  for (const std::string& field : keys.paths()) {
    std::string flag = "--" + field;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const auto treated = keys.treated(field);
    if (treated.treatment == train::Treatment::kInert) {
      inert.push_back(flag);
    } else if (treated.treatment == train::Treatment::kRefused) {
      refused.push_back(flag);
    } else {
      if (!treated.allowed.empty()) flag += " " + treated.allowed;
      rows.push_back({.left = std::move(flag), .right = treated.note});
    }
  }
  return help_head("aitraining llm --train --model M --data-path D --project-name P [flags]",
                   "Trains a language model on the rows of a folder.") +
         help_section("Flags", rows) + help_names("Taken, and without effect here", inert) +
         help_names("Refused here, each with what to do instead", refused) +
         help_examples({kExamples.front()}) + help_end();
}

}  // namespace

Result<Invocation> aitraining(std::span<const std::string> words, const LauncherContext&) {
  TROUPE_RETURN_IF_ERROR(check_placeholders(words));
  if (words.empty()) {
    return Status(Code::kInvalidArgument,
                  "aitraining: no command: aitraining llm --train --model M --data-path D "
                  "--project-name P, or aitraining --config FILE");
  }
  if (asks_for_help(words.front())) return help_answer(aitraining_usage());
  if (words.front() == "--version" || words.front() == "-v") return version_answer();
  if (words.front() == "llm" && std::any_of(words.begin(), words.end(), asks_for_help)) {
    return help_answer(llm_help());
  }
  // Other commands are refused by who reads the words: for their name, not for --help.
  const bool other_command = !words.front().starts_with('-') && words.front() != "llm";
  if (other_command) words = words.first(1);
  TroupeCommand command{.words = {"train", "--format=aitraining"}, .environment = {}};
  command.words.insert(command.words.end(), words.begin(), words.end());
  return Invocation{std::move(command), {}};
}

}  // namespace troupe::tools
