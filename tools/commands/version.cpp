#include "tools/commands/version.h"

#include <memory>

#include "runtime/base/json.h"
#include "runtime/wire/types.h"

namespace troupe::tools {

std::string version_line() { return "troupe " TROUPE_VERSION; }

void add_version_command(CLI::App& app, CommandContext& context) {
  auto as_json = std::make_shared<bool>(false);
  Command(app, context, "version",
          "Prints the version, the wire protocol's version and the compiler.")
      .flag("--json", *as_json, "print one line of JSON instead of text")
      .example("troupe version")
      .run([as_json, &context] {
        if (*as_json) {
          context.out << json::write(json::Object{{"version", TROUPE_VERSION},
                                                  {"protocol", wire::kProtocolVersion},
                                                  {"compiler", __VERSION__}})
                      << "\n";
        } else {
          context.out << fmt::format("{}\nprotocol {}\ncompiler {}\n", version_line(),
                                     wire::kProtocolVersion, __VERSION__);
        }
        return Status();
      });
}

}  // namespace troupe::tools
