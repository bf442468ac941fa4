#include "tools/commands/stop.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "runtime/base/json.h"
#include "tools/commands/cluster_options.h"

namespace troupe::tools {
namespace {

// Long enough for actors that use their grace period.
constexpr double kStopTimeoutS = 30;

// Waits until the descriptor reads as ended: a pidfd of a process that is gone, a socket whose
// other side is.
Status wait_end(int fd, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, POLLIN | POLLRDHUP, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    const int ready = ::poll(&entry, 1, static_cast<int>(left.count()));
    if (ready > 0) return {};
    if (ready == 0 || (ready < 0 && errno != EINTR)) {
      return error(Code::kDeadlineExceeded,
                   "the head was told to stop the cluster, but has not ended in time; 'troupe "
                   "status' shows what is left");
    }
  }
}

Status stop(CommandContext& context, ClusterOptions options) {
  if (!options.timeout_s) options.timeout_s = kStopTimeoutS;
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe stop"));
  const auto& place = cluster->place;
  // This connection ends when the head does; the head's process itself is watched where it is ours.
  const UniqueFd watch = TROUPE_TRY(
      net::connect_blocking(place.address, "head", place.token.token, cluster->deadline));
  UniqueFd process;
  if (place.record && place.record->host_name == host_name()) {
    process = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, place.record->pid, 0)));
  }
  TROUPE_RETURN_IF_ERROR(
      cluster->head->stop(fmt::format("'troupe stop' on {}", host_name()), cluster->deadline));
  TROUPE_RETURN_IF_ERROR(wait_end(watch.get(), cluster->deadline));
  if (process.get() >= 0) TROUPE_RETURN_IF_ERROR(wait_end(process.get(), cluster->deadline));
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
  Command command(app, context, "stop", "Ends the whole cluster: actors, nodes, head.");
  declare_cluster_options(command, *options);
  command.example("troupe stop")
      .example("troupe stop --address 10.0.0.2:6379")
      .run([options, &context] { return stop(context, *options); });
}

}  // namespace troupe::tools
