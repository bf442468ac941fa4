#include "scheduler/node/host_process.h"

#include <signal.h>

#include <utility>

#include "runtime/memory/unix_socket.h"

namespace troupe::scheduler {
namespace {

constexpr int kHostSocket = 3;
// A host that does not read for so long has hung.
constexpr int kSendTimeoutMs = 1000;
// How long SIGKILL may take: longer only where a process hangs in the kernel.
constexpr Duration kKillTimeout = std::chrono::seconds(5);

std::vector<std::string> command_line(const process::Executable& executable,
                                      const wire::ActorSpec& spec) {
  const std::string& path = executable.path();
  return {path.substr(path.rfind('/') + 1), "host",   "--actor",
          spec.type,                        "--run",  spec.run.empty() ? "-" : spec.run,
          "--rank",                         std::to_string(spec.rank)};
}

}  // namespace

Result<std::unique_ptr<HostProcess>> HostProcess::start(net::EventLoop& loop,
                                                        process::Executable& executable,
                                                        const wire::HostStart& start,
                                                        int saved_state, Handlers handlers) {
  auto sockets = TROUPE_TRY(memory::socket_pair());
  auto output = TROUPE_TRY(process::make_pipe());
  process::SpawnOptions options;
  options.path = executable.path();
  options.executable_fd = executable.fd();
  options.argv = command_line(executable, start.spec);
  options.environment = start.spec.environment;
  options.descriptors = {{.parent = output.writer.get(), .child = 1},
                         {.parent = output.writer.get(), .child = 2},
                         {.parent = sockets.second.get(), .child = kHostSocket}};
  options.parent_death_signal = SIGKILL;
  auto child = TROUPE_TRY(process::spawn(options));
  std::unique_ptr<HostProcess> host(new HostProcess(loop, std::move(child),
                                                    std::move(sockets.first),
                                                    std::move(output.reader), std::move(handlers)));
  // A process that ended already is told by its end.
  static_cast<void>(host->send(start, saved_state));
  return host;
}

HostProcess::HostProcess(net::EventLoop& loop, process::Child child, UniqueFd socket,
                         UniqueFd output, Handlers handlers)
    : loop_(loop),
      child_(std::move(child)),
      channel_(std::make_unique<process::HostChannel>(loop, std::move(socket), kSendTimeoutMs)),
      handlers_(std::move(handlers)) {
  channel_->start(
      [this](wire::HostMessage message, UniqueFd fd) {
        handlers_.on_message(std::move(message), std::move(fd));
      },
      [](Status) {});  // the process's end is seen by its pidfd
  output_ = std::make_unique<process::LineReader>(
      loop, std::move(output),
      process::LineReader::Handlers{
          .on_line = [this](std::string_view line) { handlers_.on_line(line); }, .on_end = {}});
  process::watch_exit(loop, child_, [this](wire::ExitStatus exit) { ended(exit); });
}

HostProcess::~HostProcess() {
  channel_->stop();
  if (!ended_) {
    process::stop_watching(loop_, child_);
    static_cast<void>(process::kill_group(child_.pid, SIGKILL));
    static_cast<void>(process::wait(child_, Deadline::after(kKillTimeout)));
    static_cast<void>(process::kill_group(child_.pid, SIGKILL));
  }
}

void HostProcess::kill() {
  if (!ended_) static_cast<void>(process::kill_group(child_.pid, SIGKILL));
}

void HostProcess::ended(wire::ExitStatus exit) {
  ended_ = true;
  // The lease is free, and the memory goes to the next process, only when nobody of the group runs.
  process::kill_group_until_empty(
      loop_, child_.pid, Deadline::after(kKillTimeout, loop_.clock()),
      [this, exit, alive = std::weak_ptr<bool>(alive_)](Status status) {
        if (!alive.expired()) group_gone(exit, std::move(status));
      });
}

void HostProcess::group_gone(wire::ExitStatus exit, Status status) {
  const std::weak_ptr<bool> alive = alive_;
  channel_->drain();
  if (alive.expired()) return;
  channel_->stop();
  output_->drain();
  if (!status.ok()) handlers_.on_line("the process group is not gone: " + status.to_string());
  auto on_gone = std::move(handlers_.on_gone);
  on_gone(exit);
}

}  // namespace troupe::scheduler
