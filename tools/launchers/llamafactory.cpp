// llamafactory-cli's command line, as its launcher.py and cli.py (0.9.5) read it.
#include <array>

#include "runtime/base/suggest.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/not_here.h"
#include "tools/launchers/script.h"

namespace troupe::tools {
namespace {

constexpr std::string_view kLlamaFactoryUsage =
    "llamafactory-cli, carried out by Troupe:\n"
    "  llamafactory-cli train FILE|--key value …    trains a model\n"
    "  llamafactory-cli export FILE|--key value …   merges adapters and writes the model\n"
    "  llamafactory-cli env                         what a report of a fault needs\n"
    "  llamafactory-cli version                     the version\n"
    "  llamafactory-cli help                        this text\n"
    "'troupe --help' shows what else there is.\n";

constexpr std::array kLlamaFactoryNotHere{
    NotHere{"api", "no model is served; 'troupe generate' continues a text"},
    NotHere{"chat", "there is no conversation at the terminal; 'troupe generate' continues a text"},
    NotHere{"webchat", "there is no page in a browser; 'troupe generate' continues a text"},
    NotHere{"webui", "there is no page in a browser; write a file, and 'troupe train' it"},
    NotHere{"eval", "LLaMA-Factory has given it up, too; use do_eval in a training's file"},
};

}  // namespace

Result<Invocation> llamafactory_cli(std::span<const std::string> words,
                                    const LauncherContext& context) {
  Invocation invocation;
  const std::string command = words.empty() ? "help" : words.front();
  const std::span<const std::string> rest = words.empty() ? words : words.subspan(1);
  TROUPE_RETURN_IF_ERROR(check_placeholders(rest));
  if (command == "help" || command == "--help" || command == "-h") {
    invocation.what = Answer{.text = std::string(kLlamaFactoryUsage)};
    return invocation;
  }
  if (command == "version" || command == "env") {
    invocation.what = TroupeCommand{.words = {command}, .environment = {}};
    return invocation;
  }
  if (command == "train" || command == "export") {
    if (context.environment.enabled("USE_V1")) {
      return Status(
          Code::kUnsupported,
          "USE_V1: the trainer of LLaMA-Factory's v1 has files of another form: unset it, "
          "and give a file of the present form");
    }
    if (rest.empty()) {
      return error(Code::kInvalidArgument,
                   "llamafactory-cli {}: give a .yaml or .json file, or --key value flags",
                   command);
    }
    TroupeCommand ours{.words = {command}, .environment = {}};
    ours.words.insert(ours.words.end(), rest.begin(), rest.end());
    invocation.what = std::move(ours);
    return invocation;
  }
  for (const NotHere& other : kLlamaFactoryNotHere) {
    if (command == other.command) {
      return error(Code::kUnsupported, "llamafactory-cli {}: {}", command, other.instead);
    }
  }
  return error(Code::kInvalidArgument, "Unknown command: {}.{}\n{}", command,
               did_you_mean(command, {"train", "export", "env", "version", "help"}),
               kLlamaFactoryUsage);
}

}  // namespace troupe::tools
