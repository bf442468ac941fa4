#include "tools/commands/run.h"

#include <stdlib.h>

#include <algorithm>
#include <memory>

#include "scheduler/node/resources_detect.h"
#include "tools/commands/elastic_agent.h"
#include "tools/commands/registry.h"
#include "tools/commands/slurm_step.h"
#include "tools/launchers/invocation.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/overlay_environment.h"

namespace troupe::tools {
namespace {

LauncherContext launcher_context(CommandContext& context) {
  return {.environment = context.environment, .files = context.files, .gpus_here = [&context] {
            // As nodes count them: a program of the user's needs no library of ours for a GPU.
            const auto here = scheduler::detect_gpus(context.files, context.environment,
                                                     scheduler::SystemMachine());
            return static_cast<int>(here.gpus.devices.size());
          }};
}

Result<int> carry_out(CommandContext& context, Invocation invocation) {
  for (const std::string& notice : invocation.notices) context.err << "troupe: " << notice << "\n";
  if (const auto* dialogue = std::get_if<Dialogue>(&invocation.what)) {
    TROUPE_RETURN_IF_ERROR(dialogue->hold(context.in, context.out));
    return 0;
  }
  if (const auto* answer = std::get_if<Answer>(&invocation.what)) {
    context.out << answer->text;
    return answer->exit_code;
  }
  if (auto* ours = std::get_if<TroupeCommand>(&invocation.what)) {
    const OverlayEnvironment environment(context.environment, ours->environment);
    // Libraries and children read this one from the process's own.
    if (const auto visible = ours->environment.find("CUDA_VISIBLE_DEVICES");
        visible != ours->environment.end()) {
      ::setenv("CUDA_VISIBLE_DEVICES", visible->second.c_str(), 1);
    }
    CommandContext inner = with_environment(context, environment);
    return troupe_main(inner, std::move(ours->words));
  }
  auto& ranks = std::get<RankCommand>(invocation.what);
  auto address = ranks.address;
  if (!address) address = context.environment.get("TROUPE_ADDRESS");
  if (address && address->empty()) address.reset();
  const bool several = ranks.options.nodes_max > 1 && !ranks.options.starts_hosts;
  std::unique_ptr<SlurmStep> step;
  if (!address && (several || ranks.options.machines_from_slurm)) {
    step = TROUPE_TRY(SlurmStep::enter(context));
  }
  if (!step) return run_ranks(context, ranks.options, address);
  if (ranks.options.machines_from_slurm && !step->first_of_node()) return step->wait_for_first();
  const OverlayEnvironment shared(context.environment, TROUPE_TRY(step->share_token()));
  CommandContext inner = with_environment(context, shared);
  const auto code = run_ranks(inner, ranks.options, address);
  step->end(code.ok() ? *code : 1);
  return code;
}

Status run(CommandContext& context, std::span<const std::string> words) {
  if (words.empty()) {
    return Status(
        Code::kInvalidArgument,
        "no program: troupe run [flags] PROGRAM [arguments], or troupe run -- COMMAND LINE");
  }
  const LauncherContext world = launcher_context(context);
  if (words.size() == 1 && words.front() == "--launchers") {
    for (const std::string& name : launcher_names()) context.out << name << "\n";
    return {};
  }
  auto invocation = read_run_words(words, world);
  if (!invocation.ok()) {
    // The command's own name is said by who prints it.
    constexpr std::string_view kOwnName = "troupe run: ";
    const Status refused = invocation.status();
    if (!refused.message().starts_with(kOwnName)) return refused;
    return Status(refused.code(), refused.message().substr(kOwnName.size()));
  }
  context.exit_code = TROUPE_TRY(carry_out(context, std::move(*invocation)));
  return {};
}

}  // namespace

Result<Invocation> read_run_words(std::span<const std::string> words,
                                  const LauncherContext& world) {
  const bool flags = words.front().starts_with('-') || words.front().ends_with(".py");
  return flags ? troupe_run(words, world) : interpret(words, world);
}

int run_as_launcher(CommandContext& context, const std::string& name,
                    std::span<const std::string> arguments) {
  const Interpreter interpreter = find_launcher(name);
  const LauncherContext world = launcher_context(context);
  auto invocation = interpreter(arguments, world);
  if (!invocation.ok()) {
    context.err << "troupe: " << invocation.status().message() << std::endl;
    return exit_code_of(invocation.status());
  }
  const auto exit_code = carry_out(context, std::move(*invocation));
  if (exit_code.ok()) return *exit_code;
  context.err << "troupe: " << exit_code.status().to_string() << std::endl;
  return 1;
}

void add_run_command(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<std::vector<std::string>>();
  Command(app, context, "run",
          "Starts a program as several ranks, as torchrun does, or runs another launcher's command "
          "line.")
      .pass_through(*arguments, "PROGRAM [ARGUMENT]... | -- LAUNCHER [ARGUMENT]...", false)
      .flags_help(troupe_run_flags())
      .example("troupe run --nproc-per-node 4 train.py --lr 0.1")
      .example("troupe run --nproc-per-node 2 --max-restarts 3 ./simulate")
      .example(
          "troupe run --nnodes 2 --node-rank 1 --master-addr 10.0.0.2 --master-port 29500 train.py")
      .example(
          "troupe run --nnodes 4:8 --nproc-per-node 8 --address 10.0.0.2:6379 train.py\n"
          "                                         on nodes of a running cluster")
      .example("troupe run -- torchrun --nproc-per-node 2 src/train.py x.yaml")
      .example("troupe run -- llamafactory-cli train x.yaml")
      .example("troupe run --launchers                   whose command lines are understood")
      .note(
          "torchrun's flags may also stand as PET_… in the environment. Each rank finds RANK,\n"
          "LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and what else torchrun sets in its environment.\n"
          "When one fails all are ended, what it wrote last is shown, and all begin again while\n"
          "--max-restarts lasts: in Python interpreters that have done the script's imports\n"
          "meanwhile. The exit code is that of the rank that failed first (128 + the signal).\n"
          "SIGTERM, SIGINT and others are passed on to the ranks, which have 30 s to end.")
      .run([arguments, &context] { return run(context, *arguments); });
}

}  // namespace troupe::tools
