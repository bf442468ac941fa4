#include "tools/commands/train.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "scheduler/client/cluster_record.h"
#include "tools/commands/detach.h"
#include "tools/commands/interrupts.h"
#include "tools/commands/noted_signals.h"
#include "tools/commands/outside_strikes.h"
#include "tools/commands/plan.h"
#include "tools/commands/slurm_step.h"
#include "tools/commands/train_cluster.h"
#include "tools/commands/train_flags.h"
#include "tools/commands/worker.h"
#include "tools/launchers/overlay_environment.h"
#include "train/config/config_format.h"
#include "train/config/explain.h"
#include "train/config/load.h"
#include "train/cuda/communicator/nccl_environment.h"
#include "train/hub/settings.h"
#include "train/trainer/driver.h"

namespace troupe::tools {
namespace {

constexpr const char* kDetachedLog = "train.log";

// The configuration file among the arguments; empty where there are flags alone.
std::string config_path(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return {};
  const std::string& first = arguments.front();
  return train::is_config_file(first) && !first.starts_with('-') ? train::absolute_path(first)
                                                                 : std::string();
}

train::RunRecord note_of_this_process(CommandContext& context,
                                      const std::vector<std::string>& arguments) {
  return {.config = config_path(arguments),
          .host_name = scheduler::host_name(),
          .pid = ::getpid(),
          .process_start = train::process_start_ticks(context.files, ::getpid())};
}

json::Object to_json(const train::TrainingSummary& summary) {
  json::Array recoveries;
  for (const auto& recovery : summary.recoveries) recoveries.push_back(train::to_json(recovery));
  return {{"run", summary.run},
          {"output_dir", summary.output_dir},
          {"steps", summary.steps},
          {"failures", summary.failures},
          {"seconds", summary.seconds},
          {"recovery", train::to_json(summary.recovery)},
          {"recoveries", std::move(recoveries)}};
}

// The log of a run without a terminal. A second machine may share the folder.
std::string detached_log(const train::LoadedConfig& loaded, bool joins) {
  const std::string number = loaded.launch.numbered_on_arrival()
                                 ? scheduler::host_name()
                                 : std::to_string(loaded.launch.node_rank);
  const std::string name =
      joins ? fmt::format("train-node-{}.log", number) : std::string(kDetachedLog);
  return join_path(loaded.config.training.output_dir, name);
}

Status detach(const train::LoadedConfig& loaded, bool joins,
              const std::vector<std::string>& arguments, bool json_wanted,
              CommandContext& context) {
  const std::string log = detached_log(loaded, joins);
  TROUPE_RETURN_IF_ERROR(context.files.create_directories(loaded.config.training.output_dir));
  std::vector<std::string> words = {"train"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const auto detached = TROUPE_TRY(run_detached(context, std::move(words), log));
  if (!detached) return {};
  const DetachedRun& run = *detached;
  if (json_wanted) {
    context.out << json::write(json::Object{{"run", run.run}, {"pid", run.pid}, {"log", log}})
                << "\n";
    return {};
  }
  context.out << fmt::format("{} goes on without this terminal, as process {}.\n",
                             run.run.empty() ? "This node of the run" : run.run, run.pid)
              << fmt::format("  follow:  tail -f {}\n", log);
  if (run.run.empty()) {
    context.out << fmt::format("  end:     kill -TERM {}\n", run.pid);
  } else {
    context.out << fmt::format("  ask:     troupe why {}\n", run.run)
                << fmt::format("  stop:    troupe stop {}    (kill -TERM {}; saves a checkpoint)\n",
                               run.run, run.pid);
  }
  return {};
}

// Faults that strike from outside, in a thread beside the driver. Null: there are none.
Result<std::unique_ptr<StrikesBeside>> strikes_of(const train::LoadedConfig& loaded,
                                                  bool embedded) {
  const auto& faults = loaded.config.troupe.chaos;
  for (const auto& fault : faults) {
    if (embedded || train::strikes_at_point(fault)) continue;
    return error(Code::kInvalidArgument,
                 "troupe.chaos: {} strikes processes of this machine by their number; on a running "
                 "cluster only faults at points are possible, as kill@step=4",
                 train::fault_text(fault));
  }
  return StrikesBeside::start(faults, loaded.config.training.output_dir);
}

Status train_here(std::vector<std::string> arguments, CommandContext& context,
                  const SlurmStep* step) {
  auto report = StartReport::take(arguments);
  TROUPE_RETURN_IF_ERROR(check_flags(arguments, "train", train_flags::kAll));
  const std::vector<std::string> all = arguments;
  const auto detach_wanted = take(arguments, train_flags::kDetach);
  const auto explain_wanted = take(arguments, train_flags::kExplain);
  const auto json_wanted = take(arguments, train_flags::kJson);
  const auto no_wait = take(arguments, train_flags::kNoWait);
  const auto requeued = take(arguments, train_flags::kRequeued);
  const auto hosts = TROUPE_TRY(take_hosts(context, arguments));
  const OverlayEnvironment variables(
      context.environment, hosts ? launch_variables(*hosts) : std::map<std::string, std::string>());
  CommandContext loading = with_environment(context, variables);
  const auto print = [&](const std::vector<train::ExplainRow>& rows) {
    context.out << (json_wanted ? json::write(train::explain_json(rows)) + "\n"
                                : train::explain_table(rows, false));
  };
  OnProblems on_problems;
  if (explain_wanted) {
    on_problems = [&](const train::LoadedConfig& understood, const train::Problems& problems) {
      print(train::explain_refused(understood, problems));
    };
  }
  auto run = TROUPE_TRY(load_run(arguments, loading,
                                 {.begins = true,
                                  .requeued = requeued,
                                  .on_problems = on_problems,
                                  .fetches = !explain_wanted}));
  const train::LoadedConfig& loaded = run.loaded;
  if (explain_wanted) {
    print(train::explain(loaded));
    return {};
  }
  const bool joins = TROUPE_TRY(joins_another(context, loaded));
  if (detach_wanted) {
    auto others = all;
    take(others, train_flags::kDetach);
    return detach(loaded, joins, others, json_wanted, context);
  }
  // No process that it starts asks a hub.
  for (const char* name : train::hub::kTokenVariables) ::unsetenv(name);
  if (joins) {
    if (report) report->started("");
    context.exit_code = TROUPE_TRY(join_as_worker(context, loaded, step != nullptr));
    return {};
  }
  const bool embedded = !train::resolve_address(loaded.config, loaded.launch);
  const bool trainers_here = embedded && (!hosts || hosts->own);
  const bool in_step = in_slurm_step(context.environment);
  const auto strikes = TROUPE_TRY(strikes_of(loaded, embedded));
  const SystemClock clock;
  train::StandardErrorOutput output;
  const int cores = cores_here(context.files);
  train::DriverEnvironment environment{.files = context.files,
                                       .clock = clock,
                                       .random = context.random,
                                       .output = output,
                                       .cores = cores};
  // On a cluster that runs already, and on other hosts, trainers are elsewhere.
  environment.check_disk = trainers_here;
  if (trainers_here) {
    environment.memory = TROUPE_TRY(memory_here(context.files));
    environment.gpus_here = [&context] { return gpus_here(context.environment); };
  } else {
    environment.communicator_variables = train::communicator_variables(environ);
  }
  environment.no_wait = no_wait;
  if (strikes) environment.struck_from_outside = [&] { return strikes->struck(); };
  environment.contents = std::move(run.contents);
  environment.note = note_of_this_process(context, arguments);
  if (report) environment.note.log = train::absolute_path(detached_log(loaded, false));
  std::optional<train::RunRegistry> registry;
  if (const auto home = scheduler::troupe_directory(context.environment); home.ok()) {
    environment.registry =
        &registry.emplace(context.files, join_path(*home, train::kRunsDirectory));
  }
  if (report) {
    environment.on_started = [&](const train::RunRecord& record) { report->started(record.run); };
  }
  // Until there is something to take down, Ctrl-C ends the process at once.
  Interrupts interrupts(clock, in_step);
  const auto code_of = [&](const Status& end, bool saved) {
    if (end.ok()) return 0;
    if (end.code() != Code::kCancelled) return exit_code(end.code());
    // A job that was told that its time is over, and keeps all that it did, has not failed.
    return in_step && saved ? 0 : interrupts.exit_code();
  };
  environment.end_reason = [&](const Status& end, bool saved) {
    return run_end_text(code_of(end, saved));
  };
  environment.remove_at_signal = [](const std::string& folder) {
    return std::make_shared<RemovedAtSignal>(folder);
  };
  environment.make_cluster = [&](int trainers) {
    interrupts.catch_signals();
    environment.interrupt_fd = interrupts.fd();
    output.hurry_when_readable(interrupts.fd());
    environment.take_interrupt = [&] {
      output.hurry();
      return interrupts.take();
    };
    return make_training_cluster(context, loaded, trainers, interrupts.fd(), output,
                                 hosts && hosts->starts_others() ? hosts.get() : nullptr);
  };
  environment.on_ended = [&] { interrupts.release(); };
  const auto summary = train::run_training(loaded, environment);
  if (summary.status().code() == Code::kCancelled) {
    context.exit_code = code_of(summary.status(), environment.saved_at_stop);
    if (context.exit_code == 0) {
      output.write(summary.status().message() + "\n");
      return {};
    }
    if (!output.writable())
      return {};  // nobody would read why, and the end would wait for a reader
  }
  if (!summary.ok()) return summary.status();
  if (json_wanted) {
    context.out << json::write(to_json(*summary)) << "\n";
  }
  return {};
}

Status train(std::vector<std::string> arguments, CommandContext& context) {
  const auto given = [&](const char* flag) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& word) {
      return word == flag || word.starts_with(std::string(flag) + "=");
    });
  };
  const bool elsewhere = given("--address") || given("--hostfile") || given("--hosts") ||
                         given("--explain") || given("troupe.address");
  const auto step = elsewhere ? nullptr : TROUPE_TRY(SlurmStep::enter(context));
  if (!step) return train_here(std::move(arguments), context, nullptr);
  if (!step->first_of_node()) {
    context.exit_code = TROUPE_TRY(step->wait_for_first());
    return {};
  }
  const OverlayEnvironment variables(context.environment, TROUPE_TRY(step->launch_variables()));
  CommandContext inner = with_environment(context, variables);
  const Status status = train_here(std::move(arguments), inner, step.get());
  context.exit_code = inner.exit_code;
  step->end(status.ok() || inner.exit_code != 0 ? inner.exit_code : exit_code(status.code()));
  return status;
}

}  // namespace

void add_train_command(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<std::vector<std::string>>();
  Command(app, context, "train",
          "Trains a model by a configuration of LLaMA-Factory, Axolotl or AITraining.")
      .pass_through(*arguments, "[CONFIG] [KEY=VALUE]...")
      .flags_help(train_flags_help(train_flags::kAll) + train_keys_help())
      .example("troupe train examples/train/pretrain_tiny.yaml")
      .example("troupe train x.yaml learning_rate=1e-4 troupe.workers=4")
      .example("troupe train x.yaml --chaos 'kill@step=40,rank=1'")
      .example("troupe train x.yaml --address 10.0.0.2:6379    on a running cluster")
      .example("troupe train x.yaml --hostfile hosts  on the hosts of a file, over ssh")
      .example("troupe train x.yaml --no-wait         refused where the cluster has no room now")
      .example(
          "USE_RAY=1 NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.2 MASTER_PORT=6379 \\\n"
          "  troupe train x.yaml                   the second of two machines")
      .example(
          "USE_RAY=1 NNODES=2 RDZV_ID=job MASTER_ADDR=10.0.0.2 MASTER_PORT=6379 \\\n"
          "  troupe train x.yaml                   the same on all; a third one stands by")
      .example("troupe train x.yaml --detach          goes on when the terminal is gone")
      .example("troupe train x.yaml --explain         what becomes of every key")
      .example(
          "srun troupe train x.yaml ${SLURM_RESTART_COUNT:+--requeued}\n"
          "                                      a job queued again goes on from its checkpoint")
      .note(
          "Without --detach the run ends with its terminal: SIGHUP and SIGTERM save a checkpoint "
          "and\nend it; Ctrl-C, or a second SIGTERM a second later or more, ends it at once; and "
          "kill -9\nleaves no process behind. With it, the run has a session of its own and writes "
          "to\nOUTPUT_DIR/train.log; the command waits until it has started, and says how to "
          "follow, to\nask for and to stop it.")
      .run([arguments, &context] { return train(*arguments, context); });
}

}  // namespace troupe::tools
