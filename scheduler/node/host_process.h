#pragma once
// One process of an actor: spawned, spoken to, its output read, its end made sure of.

#include <functional>
#include <memory>
#include <string>

#include "runtime/process/child.h"
#include "runtime/process/executable.h"
#include "runtime/process/host_channel.h"
#include "runtime/process/spawn.h"
#include "scheduler/node/host_parent.h"
#include "scheduler/node/log_pipes.h"
#include "troupe/log.h"

namespace troupe::scheduler {

class HostProcess {
 public:
  // Loop thread. None comes from within a call, or after the destructor.
  struct Handlers {
    std::function<void(wire::HostMessage, UniqueFd)> on_message;
    std::function<void(Status)> on_channel_end;
    // It has read of what waited for it; so many bytes are left.
    std::function<void(std::size_t left_bytes)> on_read;
    std::function<void(wire::ExitStatus)> on_leader_end;
    // After on_leader_end, when nothing of its group runs, killed or not, and after all that it
    // said and wrote has been delivered.
    std::function<void()> on_group_gone;
  };
  // What a process needs of its node. `parent` outlives it; `log` gets what it writes.
  struct Place {
    net::EventLoop& loop;
    HostParent& parent;
    HostId host = 0;
    std::shared_ptr<ActorLog> log;
    Logger logger;
    // A job's: it has no socket to us.
    bool program = false;
    // It is one, and reads our standard input, in a session of its own.
    bool reads_input = false;
  };
  // Runs `image` in host mode, in `working_directory` (empty: the daemon's). Loop thread, as
  // everything.
  static Result<std::unique_ptr<HostProcess>> spawn(Place place, process::Executable& image,
                                                    const wire::ActorSpec& spec, Handlers handlers,
                                                    const std::string& working_directory = {});
  // Runs a program of somebody else's: what it writes goes to the log, its standard input is empty
  // or ours, and it has no socket to us (on_channel_end comes at once). Of `program` the
  // descriptors are set here; place.program is true.
  static Result<std::unique_ptr<HostProcess>> spawn_program(Place place,
                                                            process::SpawnOptions program,
                                                            Handlers handlers);
  // One that the parent held while there was no daemon.
  static std::unique_ptr<HostProcess> adopt(Place place, pid_t pid, HostEnds ends,
                                            Handlers handlers);
  // SIGKILL to whatever still runs of it, and a short wait for that.
  ~HostProcess();
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;

  pid_t pid() const;
  // Never waits: what the process's socket does not take is kept and sent as it reads. `fd` may be
  // -1; it stays the caller's. Failures as of process::HostChannel::queue. Of all messages a
  // program hears HostStop alone: as SIGTERM to its process group.
  Status tell(const wire::HostMessage& message, int fd);
  // To its process group; nothing where it is no program, or has ended.
  void signal_program(int signal);
  // What it was told and has not read, as far as its socket did not take it.
  std::size_t unread_bytes() const;
  std::size_t unread_connections() const;
  // SIGKILL to the group until nothing of it runs.
  void kill_group();
  // Takes the lines that it has written by now.
  void read_output();

 private:
  struct State;
  static Result<std::unique_ptr<HostProcess>> start(Place place, process::SpawnOptions options,
                                                    Handlers handlers);
  explicit HostProcess(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace troupe::scheduler
