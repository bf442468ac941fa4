#include "tools/launchers/help_text.h"

#include <algorithm>

#include "runtime/base/suggest.h"
#include "tools/launchers/flag_parser.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kLeftWidth = 36;  // with its indent and the space behind it

// The characters that a terminal shows of UTF-8.
std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// Words in lines, the later ones indented; `at`: where the first line has already come to.
std::string wrapped(std::string_view text, std::size_t at, std::size_t indent) {
  std::string out;
  bool first = true;
  for (const std::string& word : split_words(text, ' ')) {
    const std::size_t width = columns(word);
    if (!first && at + 1 + width > kWidth) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (!first) {
      out += ' ';
      ++at;
    }
    out += word;
    at += width;
    first = false;
  }
  return out + "\n";
}

}  // namespace

std::string help_head(std::string_view usage, std::string_view summary) {
  return fmt::format("{}Usage: {}\n", wrapped(summary, 0, 0), usage);
}

std::string help_section(std::string_view title, const std::vector<HelpRow>& rows) {
  if (rows.empty()) return {};
  std::string text = fmt::format("\n{}:\n", title);
  for (const HelpRow& row : rows) {
    text += "  " + row.left;
    const std::size_t width = 2 + columns(row.left);
    if (width + 2 > kLeftWidth) {
      text += "\n" + std::string(kLeftWidth, ' ');
    } else {
      text += std::string(kLeftWidth - width, ' ');
    }
    text += wrapped(row.right, kLeftWidth, kLeftWidth);
  }
  return text;
}

std::string help_names(std::string_view intro, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  return "\n" + wrapped(fmt::format("{}: {}", intro, join_words(names)), 0, 2);
}

std::string help_answers() {
  return help_section("Answers", {{"-h, --help", "this text; behind a command, that one's"},
                                  {"--version", "the version of Troupe"}});
}

std::string help_examples(const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  std::string text = "\nExamples:\n";
  for (const std::string& line : lines) text += "  " + line + "\n";
  return text;
}

std::string help_end() {
  return "\nCarried out by Troupe: 'troupe --help' shows what else there is.\n";
}

std::string commands_help(std::string_view program, std::string_view summary,
                          std::span<const SubCommand> commands, std::span<const NotHere> not_here,
                          const std::vector<std::string>& examples) {
  std::vector<HelpRow> rows;
  for (const SubCommand& command : commands) {
    rows.push_back({.left = fmt::format("{} {} {}", program, command.name, command.words),
                    .right = command.summary});
  }
  std::vector<std::string> others;
  for (const NotHere& other : not_here) others.emplace_back(other.command);
  return help_head(fmt::format("{} COMMAND …", program), summary) + help_section("Commands", rows) +
         help_answers() + help_names("Refused here, each with what to do instead", others) +
         help_examples(examples) + help_end();
}

bool asks_for_help(std::string_view word) { return word == "--help" || word == "-h"; }

Invocation help_answer(std::string text) { return {Answer{.text = std::move(text)}, {}}; }

Invocation version_answer() { return {TroupeCommand{.words = {"version"}, .environment = {}}, {}}; }

std::optional<Invocation> information(const FlagParser& parser) {
  if (parser.version_wanted()) return version_answer();
  if (parser.help_wanted()) return help_answer(parser.help());
  return std::nullopt;
}

}  // namespace troupe::tools
