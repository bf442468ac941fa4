#include "tools/commands/stop.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "runtime/base/json.h"
#include "scheduler/client/jobs.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/job_end.h"
#include "train/report/run_registry.h"

namespace troupe::tools {
namespace {

// Long enough for actors that use their grace period.
constexpr double kStopTimeoutS = 30;
// Long enough for a step and a checkpoint of a large model.
constexpr double kStopRunTimeoutS = 600;

// Waits until the descriptor reads as ended: a pidfd of a process that is gone, a socket whose
// other side is.
Status wait_end(int fd, Deadline deadline, std::string_view otherwise) {
  for (;;) {
    pollfd entry{fd, POLLIN | POLLRDHUP, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    const int ready = ::poll(&entry, 1, static_cast<int>(left.count()));
    if (ready > 0) return {};
    if (ready == 0 || (ready < 0 && errno != EINTR)) {
      return Status(Code::kDeadlineExceeded, std::string(otherwise));
    }
  }
}

// SIGTERM for the run's driver, which saves and ends.
Status stop_run(CommandContext& context, const std::string& run, const ClusterOptions& options) {
  train::RunRegistry registry(
      context.files, join_path(TROUPE_TRY(scheduler::troupe_directory(context.environment)),
                               train::kRunsDirectory));
  const auto record = TROUPE_TRY(registry.find_named(run));
  if (record.host_name != scheduler::host_name() && !record.ended()) {
    return error(Code::kFailedPrecondition, "{} runs on {}: stop it there", record.run,
                 record.host_name);
  }
  const Deadline deadline = Deadline::after(TROUPE_TRY(seconds_option(
      options.timeout_s,
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(kStopRunTimeoutS)))));
  // Opened before the process is told from a later one of its number.
  const UniqueFd process(
      static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(record.pid), 0)));
  if (!process.valid() || train::driver_state(context.files, record, scheduler::host_name()) !=
                              train::DriverState::kRuns) {
    return error(Code::kNotFound, "{} does not run any more; 'troupe why {}' tells its story",
                 record.run, record.run);
  }
  if (::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0) != 0) {
    return errno_status(errno, "stop", fmt::format("process {}", record.pid));
  }
  TROUPE_RETURN_IF_ERROR(
      wait_end(process.get(), deadline,
               fmt::format("{} was told to save and to end, but has not ended in time; 'troupe why "
                           "{}' says where it is",
                           record.run, record.run)));
  const auto ended = TROUPE_TRY(registry.find(record.run));
  const std::string how = ended.end.ok() ? "it had finished" : ended.end.message();
  if (options.json) {
    context.out << json::write(json::Object{{"stopped", record.run}, {"how", how}}) << "\n";
  } else {
    context.out << fmt::format("{} has ended: {}\n", record.run, how);
  }
  return {};
}

Status end_cluster(CommandContext& context, ClusterOptions options) {
  if (!options.timeout_s) options.timeout_s = kStopTimeoutS;
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe stop"));
  const auto& place = cluster->place;
  // This connection ends when the head does; the head's process itself is watched where it is ours.
  const ByteStream watch = TROUPE_TRY(
      net::connect_blocking(place.address, "head", place.token.token, cluster->deadline));
  UniqueFd process;
  if (place.record && place.record->host_name == scheduler::host_name()) {
    process = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, place.record->pid, 0)));
  }
  TROUPE_RETURN_IF_ERROR(cluster->head->stop(
      fmt::format("'troupe stop' on {}", scheduler::host_name()), cluster->deadline));
  constexpr std::string_view kLate =
      "the head was told to stop the cluster, but has not ended in time; 'troupe status' shows "
      "what "
      "is left";
  TROUPE_RETURN_IF_ERROR(wait_end(watch.fd(), cluster->deadline, kLate));
  if (process.get() >= 0) {
    TROUPE_RETURN_IF_ERROR(wait_end(process.get(), cluster->deadline, kLate));
  }
  const std::string address = scheduler::format_address(place.address.host, place.address.port);
  if (options.json) {
    context.out << json::write(json::Object{{"stopped", address}}) << "\n";
  } else {
    context.out << fmt::format("The cluster of {} has ended.\n", address);
  }
  return {};
}

// A job of the cluster: SIGTERM for its program, and what is in it ends with that.
Status end_job(CommandContext& context, const std::string& name, ClusterOptions options,
               const std::optional<double>& grace_s) {
  const Duration grace = TROUPE_TRY(grace_option(grace_s));
  if (!options.timeout_s) {
    options.timeout_s = kStopTimeoutS + std::chrono::duration<double>(grace).count();
  }
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe stop"));
  const auto job = TROUPE_TRY(find_job(*cluster, name));
  JobEnd end(*cluster->head, job);
  TROUPE_RETURN_IF_ERROR(scheduler::stop_job(
      *cluster->head, job.job_id, grace, fmt::format("'troupe stop' on {}", scheduler::host_name()),
      cluster->deadline));
  if (!end.wait(cluster->deadline)) {
    return error(Code::kDeadlineExceeded,
                 "job {} was told to stop, but has not ended in time; 'troupe why {}' says where "
                 "it is",
                 job.job_id.brief(), job.job_id.brief());
  }
  const auto ended = TROUPE_TRY(end.info(cluster->deadline));
  if (options.json) {
    context.out << json::write(to_json(ended)) << "\n";
  } else {
    context.out << fmt::format("Job {} ({}) has ended: {}\n", ended.name, ended.job_id.brief(),
                               how_it_ended(ended));
  }
  return {};
}

Status stop_one(CommandContext& context, const std::string& what, const ClusterOptions& options,
                const std::optional<double>& grace_s) {
  const Status run = stop_run(context, what, options);
  if (run.code() != Code::kNotFound) return run;
  const Status job = end_job(context, what, options, grace_s);
  // Without a cluster to ask, or a job of that name there, what is known of runs is the answer.
  const bool unknown = job.code() == Code::kNotFound || job.code() == Code::kUnavailable;
  return unknown && !options.address ? run : job;
}

}  // namespace

void add_stop_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  auto what = std::make_shared<std::string>();
  auto grace_s = std::make_shared<std::optional<double>>();
  Command command(app, context, "stop",
                  "Ends a whole cluster (actors, nodes, head), or one training run, or one job.");
  command
      .option("what", *what, "RUN|DIR|JOB",
              "a run of this machine, or its output directory: it saves a checkpoint and ends (see "
              "'troupe why'); or the id or name of a job of the cluster (see 'troupe jobs')")
      .option("--grace", *grace_s, "SECONDS",
              "how long a job's program may take to end after SIGTERM (default 10); 0: SIGKILL at "
              "once");
  declare_cluster_options(command, *options);
  command.example("troupe stop")
      .example("troupe stop --address 10.0.0.2:6379")
      .example("troupe stop run-44593e6e")
      .example("troupe stop runs/a")
      .example("troupe stop 1a2b3c4d --grace 60")
      .run([options, what, grace_s, &context]() -> Status {
        if (!what->empty()) return stop_one(context, *what, *options, *grace_s);
        if (!*grace_s) return end_cluster(context, *options);
        return Status(Code::kInvalidArgument, "--grace is for a job: name one");
      });
}

}  // namespace troupe::tools
