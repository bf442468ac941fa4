#include "tools/commands/stop.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "runtime/base/json.h"
#include "tools/commands/cluster_options.h"
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
      context.files, join_path(TROUPE_TRY(troupe_directory(context.environment)), kRunsDirectory));
  const auto record = TROUPE_TRY(registry.find(run));
  if (record.host_name != host_name() && !record.ended()) {
    return error(Code::kFailedPrecondition, "{} runs on {}: stop it there", record.run,
                 record.host_name);
  }
  const Deadline deadline = Deadline::after(TROUPE_TRY(seconds_option(
      options.timeout_s,
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(kStopRunTimeoutS)))));
  // Opened before the process is told from a later one of its number.
  const UniqueFd process(
      static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(record.pid), 0)));
  if (!process.valid() ||
      train::driver_state(context.files, record, host_name()) != train::DriverState::kRuns) {
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
  const UniqueFd watch = TROUPE_TRY(
      net::connect_blocking(place.address, "head", place.token.token, cluster->deadline,
                            [&]() -> net::EventLoop& { return cluster->thread->loop(); }));
  UniqueFd process;
  if (place.record && place.record->host_name == host_name()) {
    process = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, place.record->pid, 0)));
  }
  TROUPE_RETURN_IF_ERROR(
      cluster->head->stop(fmt::format("'troupe stop' on {}", host_name()), cluster->deadline));
  constexpr std::string_view kLate =
      "the head was told to stop the cluster, but has not ended in time; 'troupe status' shows "
      "what "
      "is left";
  TROUPE_RETURN_IF_ERROR(wait_end(watch.get(), cluster->deadline, kLate));
  if (process.get() >= 0) {
    TROUPE_RETURN_IF_ERROR(wait_end(process.get(), cluster->deadline, kLate));
  }
  const std::string address = format_address(place.address.host, place.address.port);
  if (options.json) {
    context.out << json::write(json::Object{{"stopped", address}}) << "\n";
  } else {
    context.out << fmt::format("The cluster of {} has ended.\n", address);
  }
  return {};
}

}  // namespace

void add_stop_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  auto run = std::make_shared<std::string>();
  Command command(app, context, "stop",
                  "Ends the whole cluster: actors, nodes, head. Or one training run.");
  command.option("run", *run, "RUN",
                 "a run of this machine: it saves a checkpoint and ends (see 'troupe why')");
  declare_cluster_options(command, *options);
  command.example("troupe stop")
      .example("troupe stop --address 10.0.0.2:6379")
      .example("troupe stop run-44593e6e")
      .run([options, run, &context] {
        return run->empty() ? end_cluster(context, *options) : stop_run(context, *run, *options);
      });
}

}  // namespace troupe::tools
