#pragma once
// One process of an actor, from its start to the certainty that its whole process group is gone.

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"
#include "runtime/process/child.h"
#include "runtime/process/executable.h"
#include "runtime/process/host_channel.h"
#include "runtime/process/output.h"
#include "runtime/process/spawn.h"
#include "runtime/wire/host_messages.h"

namespace troupe::scheduler {

// Loop thread only.
class HostProcess {
 public:
  struct Handlers {
    std::function<void(wire::HostMessage, UniqueFd)> on_message;
    std::function<void(std::string_view line)> on_line;  // of its output
    // The process and its whole group are gone, its output is read. Last.
    std::function<void(wire::ExitStatus)> on_gone;
  };

  // Starts "PROGRAM host --actor TYPE --run RUN --rank N" and tells it what to host.
  // `saved_state`: a descriptor for HostStart::has_saved_state, else -1.
  static Result<std::unique_ptr<HostProcess>> start(net::EventLoop& loop,
                                                    process::Executable& executable,
                                                    const wire::HostStart& start, int saved_state,
                                                    Handlers handlers);
  // Kills what still runs and waits for its end.
  ~HostProcess();
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;

  pid_t pid() const { return child_.pid; }
  Status send(const wire::HostMessage& message, int fd = -1) { return channel_->send(message, fd); }
  // SIGKILL to the whole group.
  void kill();

 private:
  HostProcess(net::EventLoop& loop, process::Child child, UniqueFd socket, UniqueFd output,
              Handlers handlers);
  void ended(wire::ExitStatus exit);
  void group_gone(wire::ExitStatus exit, Status status);

  net::EventLoop& loop_;
  process::Child child_;
  std::unique_ptr<process::HostChannel> channel_;
  std::unique_ptr<process::LineReader> output_;
  Handlers handlers_;
  bool ended_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::scheduler
