// accelerate's command line: its sub-commands (accelerate 1.11, commands/accelerate_cli.py).
#include <algorithm>
#include <array>

#include "runtime/base/suggest.h"
#include "tools/launchers/flag_parser.h"
#include "tools/launchers/help_text.h"
#include "tools/launchers/launchers.h"

namespace troupe::tools {
namespace {

constexpr std::array kAccelerateCommands{
    SubCommand{"launch", "[flags] SCRIPT …", "trains, or runs the script in ranks"},
    SubCommand{"config", "[--config_file FILE]", "asks, and writes the file of launch"},
    SubCommand{"config default", "[flags]", "writes it without asking"},
    SubCommand{"env", "", "what a report of a fault needs"},
    SubCommand{"merge-weights", "CHECKPOINT_DIR OUT", "makes a model of a checkpoint"},
};

constexpr std::array kAccelerateNotHere{
    NotHere{"estimate-memory",
            "no model is fetched to be measured; 'troupe plan FILE' says what a training's file "
            "will need on every rank"},
    NotHere{"to-fsdp2",
            "files of both versions of FSDP are read as they are: set fsdp_version: 2, with "
            "fsdp_reshard_after_forward: true for FULL_SHARD and HYBRID_SHARD, else false"},
    NotHere{"test",
            "its own script is not here; 'troupe train examples/train/pretrain_tiny.yaml "
            "troupe.workers=2' tries what there is"},
    NotHere{"tpu-config", "no TPU is used"},
};

std::string accelerate_usage() {
  return commands_help("accelerate", "accelerate's commands.", kAccelerateCommands,
                       kAccelerateNotHere,
                       {"accelerate launch --num_processes 2 train.py",
                        "accelerate config default --mixed_precision bf16"});
}

Result<Invocation> merge_weights(std::span<const std::string> words,
                                 const LauncherContext& context) {
  FlagParser parser("accelerate merge-weights", false);
  parser
      .about("accelerate merge-weights CHECKPOINT_DIR OUT",
             "Writes one model's folder of a sharded checkpoint that Troupe wrote.")
      .refused("unsafe_serialization", false,
               "weights are written as safetensors, never pickled; leave it out")
      .refused("remove_checkpoint_dir", false,
               "checkpoints are not removed for others; leave it out, and remove it when the model "
               "is good");
  // Its flags may stand behind the folders.
  std::vector<std::string> ordered(words.begin(), words.end());
  std::stable_partition(ordered.begin(), ordered.end(),
                        [](const std::string& word) { return word.starts_with('-'); });
  const auto rest = TROUPE_TRY(parser.parse(ordered));
  if (auto told = information(parser)) return std::move(*told);
  if (rest.size() != 2) {
    return Status(Code::kInvalidArgument,
                  "accelerate merge-weights: error: give CHECKPOINT_DIR and OUTPUT_PATH");
  }
  for (const std::string& folder : {rest[0], join_path(rest[0], "pytorch_model_fsdp_0")}) {
    const std::string metadata = join_path(folder, ".metadata");
    if (!context.files.exists(metadata)) continue;
    return error(Code::kUnsupported,
                 "{} is pickled, which can run any program and is not read: merge this one with "
                 "PyTorch, or save with Troupe, whose sharded checkpoints are merged",
                 metadata);
  }
  return Invocation{TroupeCommand{.words = {"merge", rest[0], rest[1]}, .environment = {}}, {}};
}

}  // namespace

Result<Invocation> accelerate(std::span<const std::string> words, const LauncherContext& context) {
  if (words.empty()) return Invocation{Answer{.text = accelerate_usage(), .exit_code = 1}, {}};
  if (asks_for_help(words.front())) return help_answer(accelerate_usage());
  if (words.front() == "--version") return version_answer();
  const std::string& command = words.front();
  const auto rest = words.subspan(1);
  if (command == "launch") return accelerate_launch(rest, context);
  if (command == "config") return accelerate_config(rest, context);
  if (command == "merge-weights") return merge_weights(rest, context);
  if (command == "env") {
    TroupeCommand env{.words = {"env"}, .environment = {}};
    env.words.insert(env.words.end(), rest.begin(), rest.end());
    return Invocation{std::move(env), {}};
  }
  for (const NotHere& other : kAccelerateNotHere) {
    if (command == other.command) {
      return error(Code::kUnsupported, "accelerate {}: {}", command, other.instead);
    }
  }
  return error(Code::kInvalidArgument, "accelerate: error: invalid choice: '{}'{}\n{}", command,
               did_you_mean(command, {"launch", "config", "env", "merge-weights"}),
               accelerate_usage());
}

}  // namespace troupe::tools
