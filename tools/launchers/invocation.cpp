#include "tools/launchers/invocation.h"

#include <array>

#include "runtime/base/suggest.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/script.h"

namespace troupe::tools {
namespace {

struct Launcher {
  const char* name;
  const char* module;  // of python -m; empty: none
  Interpreter interpret;
};
constexpr std::array kLaunchers{
    Launcher{"torchrun", "torch.distributed.run", torchrun},
    Launcher{"llamafactory-cli", "llamafactory.cli", llamafactory_cli},
    Launcher{"lmf", "", llamafactory_cli},
    Launcher{"axolotl", "axolotl.cli.main", axolotl},
    Launcher{"aitraining", "autotrain.cli.autotrain", aitraining},
    Launcher{"autotrain", "", aitraining},
    Launcher{"accelerate", "accelerate.commands.accelerate_cli", accelerate},
    Launcher{"accelerate-launch", "accelerate.commands.launch", accelerate_launch},
    Launcher{"accelerate-config", "accelerate.commands.config", accelerate_config},
    Launcher{"deepspeed", "deepspeed.launcher.runner", deepspeed},
    Launcher{"ds", "", deepspeed},
};

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool is_python(std::string_view name) {
  name = base_name(name);
  if (!name.starts_with("python")) return false;
  return name.substr(6).find_first_not_of("0123456789.") == std::string_view::npos;
}

Result<Invocation> with_python(std::span<const std::string> words, const LauncherContext& context) {
  // Flags of the interpreter that take no value stand before the script.
  std::size_t i = 1;
  while (i < words.size() && (words[i] == "-u" || words[i] == "-B" || words[i] == "-O")) ++i;
  Script script;
  const bool module = i + 1 < words.size() && words[i] == "-m";
  if (module) ++i;
  if (i < words.size() && (module || !words[i].starts_with('-'))) {
    const auto rest = words.subspan(i + 1);
    for (const Launcher& launcher : kLaunchers) {
      if (module && words[i] == launcher.module) return launcher.interpret(rest, context);
    }
    script = {.name = words[i],
              .module = module,
              .no_python = false,
              .arguments = {rest.begin(), rest.end()}};
    if (auto training = TROUPE_TRY(own_training(script, context))) {
      TroupeCommand command{.words = {"train"}, .environment = {}};
      command.words.insert(command.words.end(), training->arguments.begin(),
                           training->arguments.end());
      return Invocation{std::move(command), std::move(training->notices)};
    }
  }
  RunOptions options;
  options.program.assign(words.begin(), words.end());
  options.substitutes_local_rank = false;
  return Invocation{RankCommand{std::move(options), std::nullopt}, {}};
}

}  // namespace

std::vector<std::string> launcher_names() {
  std::vector<std::string> names;
  for (const Launcher& launcher : kLaunchers) names.emplace_back(launcher.name);
  return names;
}

Interpreter find_launcher(std::string_view name) {
  for (const Launcher& launcher : kLaunchers) {
    if (base_name(name) == launcher.name) return launcher.interpret;
  }
  return nullptr;
}

Result<Invocation> interpret(std::span<const std::string> words, const LauncherContext& context) {
  if (words.empty()) return Status(Code::kInvalidArgument, "no program to run");
  if (const Interpreter launcher = find_launcher(words.front())) {
    return launcher(words.subspan(1), context);
  }
  if (is_python(words.front())) return with_python(words, context);
  RunOptions options;
  options.program.assign(words.begin(), words.end());
  options.substitutes_local_rank = false;
  return Invocation{RankCommand{std::move(options), std::nullopt}, {}};
}

int exit_code_of(const Status& refused) { return refused.code() == Code::kInvalidArgument ? 2 : 1; }

}  // namespace troupe::tools
