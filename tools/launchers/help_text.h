#pragma once
// The parts that the help texts of launchers' command lines are made of. Each part ends with a line
// break, begins with an empty line where it follows another one, and is empty where it has nothing
// to tell.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launchers/invocation.h"

namespace troupe::tools {

class FlagParser;

struct HelpRow {
  std::string left;   // "--nnodes N"
  std::string right;  // "how many nodes"
};

// A command of a launcher's that is carried out.
struct SubCommand {
  const char* name;
  const char* words;  // what stands behind it: "CONFIG [--key value …]"
  const char* summary;
};
// One that is not, and what is to be done instead.
struct NotHere {
  const char* command;
  const char* instead;
};

std::string help_head(std::string_view usage, std::string_view summary);
// Rows in two columns.
std::string help_section(std::string_view title, const std::vector<HelpRow>& rows);
// "intro: a, b, c", in lines that fit a terminal.
std::string help_names(std::string_view intro, const std::vector<std::string>& names);
// --help and --version, which every command line has.
std::string help_answers();
std::string help_examples(const std::vector<std::string>& lines);
// Where else help is to be found.
std::string help_end();

// A launcher's commands: those that are carried out with a line each, the others by name.
std::string commands_help(std::string_view program, std::string_view summary,
                          std::span<const SubCommand> commands, std::span<const NotHere> not_here,
                          const std::vector<std::string>& examples);

// Whether a word asks for help: "--help", "-h".
bool asks_for_help(std::string_view word);
Invocation help_answer(std::string text);
// The version of this program, whatever the launcher's would have been.
Invocation version_answer();
// What --help or --version among the words of a parser asked for; nothing: neither stood there.
std::optional<Invocation> information(const FlagParser& parser);

}  // namespace troupe::tools
