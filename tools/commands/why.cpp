#include "tools/commands/why.h"

#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/limits.h"
#include "scheduler/client/cluster_record.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/why_waiting.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/report/format.h"
#include "train/report/run_registry.h"
#include "train/report/story.h"

namespace troupe::tools {
namespace {

struct WhyOptions {
  std::string target;
  ClusterOptions cluster;  // and --json
};

// Its bytes are not read: that is `troupe verify`'s work.
std::string newest_checkpoint_in(FileSystem& files, const std::string& output_dir) {
  const auto names = train::find_checkpoints(files, output_dir);
  if (!names.ok()) return {};
  for (auto it = names->rbegin(); it != names->rend(); ++it) {
    const std::string path = join_path(output_dir, it->name);
    const auto manifest = train::read_manifest(files, path);
    if (manifest.ok() && train::check_structure(files, path, manifest).ok()) return path;
  }
  return {};
}

// What the log's last whole line says; 0 where there is none.
std::int64_t total_steps_in(FileSystem& files, const std::string& output_dir) {
  const auto text =
      files.read(join_path(output_dir, train::kTrainerLogFile), limits::kJsonFileBytesMax);
  if (!text.ok()) return 0;
  const auto end = text->rfind('\n');
  if (end == std::string::npos || end == 0) return 0;
  const auto begin = text->rfind('\n', end - 1);
  const auto line = train::parse_python_json(
      std::string_view(*text).substr(begin + 1, end - begin - 1), train::kTrainerLogFile);
  return line.ok() ? json::find_integer(*line, "total_steps").value_or(0) : 0;
}

void take_note(train::StorySources& sources, FileSystem& files, const train::RunRecord& record) {
  sources.driver = train::driver_state(files, record, scheduler::host_name());
  sources.driver_pid = record.pid;
  sources.driver_started_unix_us = record.started_unix_us;
  if (record.ended()) {
    sources.driver_end = record.end;
    sources.driver_ended_unix_us = record.ended_unix_us;
  }
}

Result<train::RunRegistry> registry_of(CommandContext& context) {
  return train::RunRegistry(context.files,
                            join_path(TROUPE_TRY(scheduler::troupe_directory(context.environment)),
                                      train::kRunsDirectory));
}

bool has_story(FileSystem& files, const std::string& directory) {
  return files.exists(join_path(directory, train::kEventsFile)) ||
         files.exists(join_path(directory, train::kStepsFile));
}

// The directory of a run is meant before a run of that name. Any other directory or file is not: an
// actor may have its name.
Result<train::StorySources> find_sources(const std::string& target, CommandContext& context) {
  train::StorySources sources;
  FileSystem& files = context.files;
  auto registry = registry_of(context);
  if (!target.empty() && files.exists(target)) {
    sources.output_dir = target;
    if (registry.ok()) {
      if (const auto record = registry->find_output(train::absolute_path(target));
          record.ok() && *record) {
        take_note(sources, files, **record);
      }
    }
    if (sources.driver_started_unix_us != 0 || has_story(files, target)) return sources;
    sources = {};
  }
  TROUPE_RETURN_IF_ERROR(registry.status());
  train::RunRecord record;
  if (target.empty()) {
    auto records = TROUPE_TRY(registry->list());
    if (records.empty()) {
      return error(Code::kNotFound,
                   "no run of this user is known; name an output directory: troupe why DIR");
    }
    record = std::move(records.front());
  } else {
    record = TROUPE_TRY(registry->find(target));
  }
  if (!files.exists(record.output_dir)) {
    return error(Code::kNotFound, "the output directory of {} is not there any more: {}",
                 record.run, record.output_dir);
  }
  sources.run = record.run;
  sources.output_dir = record.output_dir;
  take_note(sources, files, record);
  return sources;
}

Status why(const WhyOptions& options, CommandContext& context) {
  FileSystem& files = context.files;
  auto found = find_sources(options.target, context);
  // No run: then an actor or a placement group is meant.
  if (found.status().code() == Code::kNotFound && !options.target.empty()) {
    const auto told = tell_waiting(context, options.cluster, options.target);
    if (told.ok() && *told) return {};
    const Code code = told.status().code();
    const bool no_cluster = code == Code::kNotFound || code == Code::kUnavailable;
    if (!told.ok() && (!no_cluster || options.cluster.address)) return told.status();
    if (files.exists(options.target)) {
      return error(Code::kNotFound, "{} has no {}: it is not the output directory of a run{}",
                   options.target, train::kEventsFile,
                   told.ok()
                       ? ", and the cluster has no run, actor, placement group, supervisor or "
                         "job of that name"
                       : "");
    }
    if (told.ok()) {
      return error(Code::kNotFound,
                   "there is no run, actor, placement group or supervisor '{}', and no job: "
                   "'troupe actors --all', 'troupe groups --all' and 'troupe jobs --all' list "
                   "those of the cluster",
                   options.target);
    }
    // Without a cluster to ask, what is known of runs is the better answer.
    return found.status();
  }
  auto sources = TROUPE_TRY(std::move(found));
  auto events = train::read_events(files, join_path(sources.output_dir, train::kEventsFile));
  auto steps = train::read_steps(files, join_path(sources.output_dir, train::kStepsFile));
  if (!events.ok() && !steps.ok() && sources.driver_started_unix_us == 0) {
    return error(Code::kNotFound, "{} has no {}: it is not the output directory of a run",
                 sources.output_dir, train::kEventsFile);
  }
  if (events.ok()) sources.events = std::move(*events);
  if (steps.ok()) {
    sources.steps = std::move(*steps);
  } else if (steps.status().code() != Code::kNotFound) {
    sources.events.damaged.push_back(steps.status());
  }
  sources.total_steps = total_steps_in(files, sources.output_dir);
  sources.newest_checkpoint = newest_checkpoint_in(files, sources.output_dir);
  sources.now_unix_us = SystemClock().unix_time_us();
  const auto story = TROUPE_TRY(train::read_story(sources));
  context.out << (options.cluster.json ? json::write(train::to_json(story)) + "\n"
                                       : train::tell(story));
  return {};
}

}  // namespace

void add_why_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<WhyOptions>();
  Command command(app, context, "why",
                  "Explains what happened to a training run or a job, or what an actor waits for.");
  command.option("what", options->target, "RUN|DIR|ACTOR|GROUP|SUPERVISOR|JOB",
                 "a run's id, or its output directory; or the name or id of an actor, placement "
                 "group, supervisor or job of a running cluster; without it, the run started last");
  declare_cluster_options(command, options->cluster);
  command.example("troupe why run-44593e6e")
      .example("troupe why trainer-0")
      .example("troupe why runs/a")
      .run([options, &context] { return why(*options, context); });
}

}  // namespace troupe::tools
