// aitraining's command line (and autotrain's, the older one): what trains a language model goes to
// `troupe train --format aitraining`, which knows its words; the rest is refused there by name.
#include "tools/launchers/launchers.h"
#include "tools/launchers/script.h"

namespace troupe::tools {

Result<Invocation> aitraining(std::span<const std::string> words, const LauncherContext&) {
  TROUPE_RETURN_IF_ERROR(check_placeholders(words));
  if (words.empty()) {
    return Status(Code::kInvalidArgument,
                  "aitraining: no command: aitraining llm --train --model M --data-path D "
                  "--project-name P, or aitraining --config FILE");
  }
  TroupeCommand command{.words = {"train", "--format=aitraining"}, .environment = {}};
  command.words.insert(command.words.end(), words.begin(), words.end());
  return Invocation{std::move(command), {}};
}

}  // namespace troupe::tools
