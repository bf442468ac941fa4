#pragma once
// Command lines as Python's argparse reads them: '-' and '_' are equal in long names, a value
// stands behind the flag or after '=', beginnings of names are enough where they are unambiguous,
// and everything from the first argument without a dash on is left to others.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/status.h"

namespace troupe::tools {

class FlagParser {
 public:
  // `program` begins messages; empty: whoever shows them says it. With `prefixes` beginnings of
  // names are taken.
  explicit FlagParser(std::string program, bool prefixes = true);
  FlagParser(const FlagParser&) = delete;
  FlagParser& operator=(const FlagParser&) = delete;

  // The first lines of help(), and its examples: lines, or several lines of one.
  FlagParser& about(std::string usage, std::string summary, std::vector<std::string> examples = {});
  // The heading in help() above the flags that are declared next.
  FlagParser& section(std::string title);

  // "nnodes", "redirects|r": the long name, and a letter for short. `type` and `help` are what
  // help() shows: "N", "nodes". What `into` holds now is shown as the default.
  FlagParser& value(std::string_view names, std::string& into, std::string type = {},
                    std::string help = {});
  FlagParser& value(std::string_view names, std::optional<std::string>& into, std::string type = {},
                    std::string help = {});
  FlagParser& toggle(std::string_view names, bool& into, std::string help = {});
  // Each flag is refused with these words, whatever its value.
  FlagParser& refused(std::string_view names, bool has_value, std::string why);
  // Taken, and without effect.
  FlagParser& inert(std::string_view names, bool has_value);

  // Values of flags that are not given, from PREFIX_NAME.
  Status read_environment(std::string_view prefix, const Environment& environment);
  // Returns the words from the first one without a dash on, or behind "--". kInvalidArgument.
  // It stops at --help, -h and --version, which every command line has.
  Result<std::vector<std::string>> parse(std::span<const std::string> words);
  bool help_wanted() const { return help_wanted_; }
  bool version_wanted() const { return version_wanted_; }
  // Every declared flag: those that do something by section, then the names of those that have no
  // effect and of those that are refused.
  std::string help() const;
  // The same without the first lines and the examples.
  std::string flags_help() const;
  // Whether a flag stood on the command line.
  bool given(std::string_view long_name) const;

 private:
  struct Flag {
    std::string shown;  // "--name", as it was declared
    std::string name;   // with '_'
    std::string letter;
    bool has_value = true;
    std::string refusal;
    bool inert = false;
    std::string section, type, help;
    std::function<Status(const std::string&)> set;
    bool given = false;
  };
  Flag& add(std::string_view names, bool has_value);
  // `written`: with its dashes, without a value.
  Result<Flag*> find(const std::string& written);
  Status take(Flag& flag, const std::string& value);

  const std::string prefix_;
  const bool prefixes_;
  std::vector<Flag> flags_;
  std::string usage_, summary_, section_ = "Flags";
  std::vector<std::string> examples_;
  bool help_wanted_ = false;
  bool version_wanted_ = false;
};

}  // namespace troupe::tools
