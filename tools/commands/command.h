#pragma once
// How a command of `troupe` is declared: its options, its help with examples, what it runs.
//
//   void add_hello_command(CLI::App& app, CommandContext& context) {
//     auto name = std::make_shared<std::string>();
//     Command(app, context, "hello", "Greets.")
//         .option("--name", *name, "NAME", "whom")
//         .example("troupe hello --name World")
//         .run([name, &context] { context.out << "Hello " << *name << "\n"; return Status(); });
//   }
//
// CLI11 parses; only command.cpp and registry.cpp include it (it costs seconds a file). A command
// that needs more of it may include it, too: `Command::app()`.

#include <cstdint>
#include <functional>
#include <istream>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"

namespace CLI {
class App;
}

namespace troupe::tools {

// The world a command runs in. Outlives every command; tests make their own.
struct CommandContext {
  FileSystem& files;
  const Environment& environment;
  Random& random;  // fit for secrets
  std::istream& in;
  std::ostream& out;  // results
  std::ostream& err;  // messages
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  // What the process ends with where `selected` returns ok: for commands whose work can fail in
  // ways of its own. 0 unless set.
  int exit_code = 0;

  // What stands behind "--", where the command takes all arguments as they stand (pass_through).
  std::vector<std::string> behind_mark;
  // Set by parsing: the command that the arguments name, and what it does.
  std::string selected_name;
  std::function<Status()> selected;
};

// The same with another environment and other streams, which outlive it.
inline CommandContext context_with(CommandContext& context, const Environment& environment,
                                   std::ostream& out, std::ostream& err) {
  return {.files = context.files,
          .environment = environment,
          .random = context.random,
          .in = context.in,
          .out = out,
          .err = err,
          .out_is_terminal = context.out_is_terminal,
          .err_is_terminal = context.err_is_terminal};
}
inline CommandContext with_environment(CommandContext& context, const Environment& environment) {
  return context_with(context, environment, context.out, context.err);
}
inline CommandContext with_streams(CommandContext& context, std::ostream& out, std::ostream& err) {
  return context_with(context, context.environment, out, err);
}

// A subcommand while it is declared. Values are written at parsing and must live until then, which
// is what the shared options of the example are for. `names` as CLI11 writes them: "-n,--bytes", or
// "actor" without dashes for a positional argument.
class Command {
 public:
  Command(CLI::App& app, CommandContext& context, const std::string& name,
          const std::string& summary);

  Command& option(const std::string& names, std::string& value, const std::string& type,
                  const std::string& help);
  Command& option(const std::string& names, std::optional<std::string>& value,
                  const std::string& type, const std::string& help);
  Command& option(const std::string& names, std::optional<double>& value, const std::string& type,
                  const std::string& help);
  Command& option(const std::string& names, std::optional<std::uint16_t>& value,
                  const std::string& type, const std::string& help);
  Command& option(const std::string& names, std::uint64_t& value, const std::string& type,
                  const std::string& help);
  // "a=1,b=2", or the option several times.
  Command& option(const std::string& names, std::vector<std::string>& values,
                  const std::string& type, const std::string& help);
  // The option several times, each value as it stands.
  Command& repeated(const std::string& names, std::vector<std::string>& values,
                    const std::string& type, const std::string& help);
  // A first argument without a name, and all behind it as they stand. "--" before them, which is
  // left out, keeps those that look like options from being taken for the command's.
  Command& rest(const std::string& name, std::vector<std::string>& values, const std::string& help);
  // Arguments without a name, each as it stands; options may stand among them.
  Command& arguments(const std::string& name, std::vector<std::string>& values,
                     const std::string& type, const std::string& help);
  // An argument without a name that must be there.
  Command& argument(const std::string& name, std::string& value, const std::string& help);
  Command& flag(const std::string& names, bool& value, const std::string& help);
  // A line, or lines, of the help's "Examples" section.
  Command& example(const std::string& line);
  // A paragraph below the examples.
  Command& note(const std::string& text);
  // Every argument, options too, goes to `values` as it stands: for commands that parse their own.
  // `usage` is what the help's first line says of them: "[CONFIG] [KEY=VALUE]...". With `helps`,
  // --help and -h anywhere among them print the command's help.
  Command& pass_through(std::vector<std::string>& values, const std::string& usage,
                        bool helps = true);
  // A part of the help before the examples: the flags of a command that parses its own.
  Command& flags_help(const std::string& text);
  // What the command does. A failure is printed as "troupe NAME: message" and becomes the exit code
  // of its code.
  void run(std::function<Status()> work);

  CLI::App& app() { return *app_; }

 private:
  CLI::App* app_;
  CommandContext& context_;
  void write_footer();
  std::string flags_;
  std::string examples_;
  std::string notes_;
};

// Parses the arguments (without the program's name): nothing where context.selected is the command
// that they name, else the process's exit code, with help or what is wrong printed.
std::optional<int> parse_command_line(CLI::App& app, CommandContext& context,
                                      std::vector<std::string> arguments);

// Parses the arguments (without the program's name), runs the command they name and returns the
// process's exit code. Help and version go to context.out, what is wrong to context.err.
int run_command_line(CLI::App& app, CommandContext& context, std::vector<std::string> arguments);

// What `troupe NAME --help` prints; the list of commands where `name` is empty. kInvalidArgument
// for a name that no command has.
Status print_help(const CLI::App& app, CommandContext& context, const std::string& name);

// The candidate that `word` was most likely meant to be; nothing where none comes near.
std::optional<std::string> nearest(const std::string& word,
                                   const std::vector<std::string>& candidates);

}  // namespace troupe::tools
