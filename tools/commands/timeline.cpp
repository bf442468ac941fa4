#include "tools/commands/timeline.h"

#include <memory>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "scheduler/client/cluster_record.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/cluster_trace.h"
#include "tools/commands/events.h"
#include "tools/commands/objects.h"
#include "tools/commands/run_trace.h"
#include "train/report/run_registry.h"

namespace troupe::tools {
namespace {

struct TimelineFlags {
  ClusterOptions cluster;
  std::string run;
  std::optional<std::string> output;
};

Result<json::Value> trace_of_cluster(CommandContext& context, const ClusterOptions& options) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe timeline"));
  // Events last: what they speak of is known then, or was forgotten.
  const auto nodes = TROUPE_TRY(cluster->head->nodes(cluster->deadline));
  const auto actors = TROUPE_TRY(cluster->head->actors(true, cluster->deadline));
  const auto work = TROUPE_TRY(cluster->head->work(cluster->deadline));
  std::vector<wire::NodeInfo> alive = nodes;
  std::erase_if(alive, [](const auto& node) { return node.state == wire::NodeState::kDead; });
  const auto stores = ask_stores(*cluster, alive, /*moves=*/true);
  std::vector<MovesOfNode> moves;
  for (std::size_t i = 0; i < alive.size(); ++i) {
    if (stores[i].ok()) {
      moves.push_back({alive[i].node_id, stores[i]->moves});
    } else {
      context.err << fmt::format("without what node {} has moved of objects: {}\n", alive[i].name,
                                 stores[i].status().to_string());
    }
  }
  const auto events = TROUPE_TRY(read_events(*cluster->head, 0, cluster->deadline));
  return cluster_trace(events, nodes, actors, SystemClock().unix_time_us(), work, moves);
}

// A directory that is there, before a run of that name.
Result<std::string> run_directory(CommandContext& context, const std::string& target) {
  if (context.files.exists(target)) return target;
  train::RunRegistry registry(
      context.files, join_path(TROUPE_TRY(scheduler::troupe_directory(context.environment)),
                               train::kRunsDirectory));
  return TROUPE_TRY(registry.find(target)).output_dir;
}

Result<json::Value> trace_of_run(CommandContext& context, const std::string& target) {
  const std::string directory = TROUPE_TRY(run_directory(context, target));
  const auto events = train::read_events(context.files, join_path(directory, train::kEventsFile));
  const auto steps = train::read_steps(context.files, join_path(directory, train::kStepsFile));
  if (!events.ok() && !steps.ok()) {
    return error(Code::kNotFound,
                 "{} has neither {} nor {}: it is not the output directory of a "
                 "run",
                 directory, train::kEventsFile, train::kStepsFile);
  }
  for (const Status& status : {events.status(), steps.status()}) {
    if (!status.ok() && status.code() != Code::kNotFound) {
      context.err << fmt::format("without what cannot be read: {}\n", status.to_string());
    }
  }
  if (events.ok()) {
    for (const Status& damaged : events->damaged) {
      context.err << fmt::format("passed over: {}\n", damaged.to_string());
    }
  }
  std::string name = target;
  if (events.ok()) {
    for (const auto& event : events->events) {
      if (!event.run.empty()) name = event.run;
    }
  }
  return run_trace(name, events.ok() ? events->events : std::vector<train::RunEvent>(),
                   steps.ok() ? *steps : std::vector<train::StepRecord>());
}

// Without a cluster that could be asked: the run that was started last.
Result<json::Value> trace_of_whatever_there_is(CommandContext& context,
                                               const ClusterOptions& options) {
  auto trace = trace_of_cluster(context, options);
  const Code code = trace.status().code();
  if (trace.ok() || options.address || (code != Code::kNotFound && code != Code::kUnavailable))
    return trace;
  train::RunRegistry registry(
      context.files, join_path(TROUPE_TRY(scheduler::troupe_directory(context.environment)),
                               train::kRunsDirectory));
  const auto records = registry.list();
  if (!records.ok() || records->empty()) return trace;
  context.err << fmt::format("no cluster runs here: this is {}, the run started last\n",
                             records->front().run);
  return trace_of_run(context, records->front().output_dir);
}

Status timeline(CommandContext& context, const TimelineFlags& flags) {
  const json::Value trace =
      TROUPE_TRY(flags.run.empty() ? trace_of_whatever_there_is(context, flags.cluster)
                                   : trace_of_run(context, flags.run));
  const std::string text = json::write(trace) + "\n";
  if (!flags.output) {
    context.out << text;
    return {};
  }
  TROUPE_RETURN_IF_ERROR(write_file_atomically(context.files, *flags.output, text));
  const std::size_t count = json::find(trace, "traceEvents")->as_array().size();
  if (flags.cluster.json) {
    context.out << json::write(json::Object{{"file", *flags.output}, {"trace_events", count}})
                << "\n";
  } else {
    context.out << fmt::format(
        "{} trace events are in {}: open it in https://ui.perfetto.dev or chrome://tracing\n",
        count, *flags.output);
  }
  return {};
}

}  // namespace

void add_timeline_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<TimelineFlags>();
  Command command(
      app, context, "timeline",
      "Writes a trace of a cluster or a training run, to be opened with ui.perfetto.dev.");
  command
      .option(
          "run", flags->run, "RUN|DIR",
          "a training run's id, or its output directory; without it, the cluster, and where none "
          "runs the run started last")
      .option("--output", flags->output, "FILE", "the file to write (default: standard output)");
  declare_cluster_options(command, flags->cluster);
  command.example("troupe timeline --output cluster.json")
      .example("troupe timeline runs/a --output run.json      its steps and recoveries")
      .note(
          "The cluster's trace reaches back as far as 'troupe events' does; beside that it has the "
          "last tasks of each\nprocess that submits some, of those that took 1 ms, and what each "
          "node's object store has moved last\n(from other nodes, to disk and back). With "
          "--output, --json "
          "prints the file's name and the number of events.")
      .run([flags, &context] { return timeline(context, *flags); });
}

}  // namespace troupe::tools
