#include "tools/commands/help.h"

#include <memory>

#include "tools/commands/run.h"
#include "tools/launchers/invocation.h"

namespace troupe::tools {

void add_help_command(CLI::App& app, CommandContext& context) {
  auto name = std::make_shared<std::string>();
  Command(app, context, "help", "Explains a command.")
      .option("command", *name, " ", "the command to explain (default: list all commands)")
      .example("troupe help head")
      .example("troupe help torchrun          which of another launcher's flags have an effect")
      .run([name, &app, &context] {
        if (find_launcher(*name) == nullptr) return print_help(app, context, *name);
        const std::vector<std::string> asked{"--help"};
        context.exit_code = run_as_launcher(context, *name, asked);
        return Status();
      });
}

}  // namespace troupe::tools
