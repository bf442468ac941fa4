#include "tools/commands/help.h"

#include <memory>

namespace troupe::tools {

void add_help_command(CLI::App& app, CommandContext& context) {
  auto name = std::make_shared<std::string>();
  Command(app, context, "help", "What a command does.")
      .option("command", *name, " ", "the command; without it, a list of all")
      .example("troupe help head")
      .run([name, &app, &context] { return print_help(app, context, *name); });
}

}  // namespace troupe::tools
