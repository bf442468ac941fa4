#include "tools/commands/jobs.h"

#include <algorithm>
#include <memory>

#include "runtime/base/clock.h"
#include "scheduler/client/jobs.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/job_end.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

// "2026-02-06 19:00:00"
std::string start_of(const wire::JobInfo& job) {
  if (job.started_unix_us == 0) return {};
  std::string text = format_unix_time_us(job.started_unix_us).substr(0, 19);
  std::replace(text.begin(), text.end(), 'T', ' ');
  return text;
}

std::string duration_of(const wire::JobInfo& job, std::int64_t now_unix_us) {
  if (job.started_unix_us == 0) return {};
  return format_age((job.ended_unix_us != 0 ? job.ended_unix_us : now_unix_us) -
                    job.started_unix_us);
}

std::string exit_of(const wire::JobInfo& job) {
  if (!job.exit) return {};
  return job.exit->signal != 0 ? fmt::format("signal {}", job.exit->signal)
                               : std::to_string(job.exit->exit_code);
}

std::string why_of(const wire::JobInfo& job) {
  if (job.stopping && !job.ended()) return "is to stop: " + job.why;
  if (job.driver.empty() && job.why.empty()) return "a driver that connected by itself";
  return in_short(job.why);
}

Status show_jobs(CommandContext& context, const ClusterOptions& options, bool all) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe jobs"));
  const auto jobs = TROUPE_TRY(scheduler::list_jobs(*cluster->head, all, cluster->deadline));
  if (options.json) {
    json::Array list;
    for (const auto& job : jobs) list.push_back(to_json(job));
    context.out << json::write(json::Object{{"jobs", std::move(list)}}) << "\n";
    return {};
  }
  if (jobs.empty()) {
    context.out << (all ? "No jobs.\n" : "No jobs now; --all shows those that ended, too.\n");
    return {};
  }
  const NodeNames names(TROUPE_TRY(cluster->head->nodes(cluster->deadline)));
  const std::int64_t now = SystemClock().unix_time_us();
  Table table({"ID", "NAME", "STATE", "PRIORITY", "STARTED (UTC)", "DURATION", "NODE", "EXIT",
               "ACTORS", "WHY"});
  for (const auto& job : jobs) {
    table.add({job.job_id.brief(), job.name, std::string(wire::job_state_name(job.state)),
               std::to_string(job.priority), start_of(job), duration_of(job, now),
               names.of(job.node_id), exit_of(job), std::to_string(job.actors_alive), why_of(job)});
  }
  table.print(context.out);
  return {};
}

}  // namespace

void add_jobs_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  auto all = std::make_shared<bool>(false);
  Command command(app, context, "jobs",
                  "Lists the jobs: submitted programs, and drivers that connected by themselves.");
  declare_cluster_options(command, *options);
  command.flag("--all", *all, "list those that have ended, too (the newest 1,000)")
      .example("troupe jobs")
      .example("troupe jobs --all --json")
      .note(
          "'troupe logs JOB' shows what a job's program wrote, 'troupe why JOB' what it waits for "
          "or how\nit ended, 'troupe stop JOB' ends it.")
      .run([options, all, &context] { return show_jobs(context, *options, *all); });
}

}  // namespace troupe::tools
