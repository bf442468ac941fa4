#include "runtime/process/child_program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>

#include "runtime/base/file_system.h"
#include "runtime/process/child.h"
#include "runtime/process/executable.h"

namespace troupe::process {

Result<std::unique_ptr<ChildProgram>> ChildProgram::start(const ChildOptions& options) {
  const auto program =
      TROUPE_TRY(options.program.empty() ? Executable::self() : Executable::open(options.program));
  const UniqueFd output(::open(options.output_path.c_str(),
                               O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  if (!output.valid()) return errno_status(errno, "write", options.output_path);
  const UniqueFd none(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  SpawnOptions spawn{.path = program->path(),
                     .executable_fd = program->fd(),
                     .argv = {"troupe"},
                     .environment = options.environment,
                     .parent_death_signal = SIGKILL};
  spawn.argv.insert(spawn.argv.end(), options.arguments.begin(), options.arguments.end());
  spawn.descriptors = {{.parent = none.get(), .child = 0},
                       {.parent = output.get(), .child = 1},
                       {.parent = output.get(), .child = 2}};
  return std::unique_ptr<ChildProgram>(new ChildProgram(TROUPE_TRY(process::spawn(spawn))));
}

ChildProgram::~ChildProgram() {
  if (ended_) return;
  static_cast<void>(kill_group(child_.pid, SIGKILL));
  static_cast<void>(wait(Deadline::after(std::chrono::seconds(5))));
}

Result<int> ChildProgram::wait(Deadline deadline) {
  if (ended_) return exit_code_;
  const auto exit = TROUPE_TRY(process::wait(child_, deadline));
  ended_ = true;
  exit_code_ = exit.signal != 0 ? 128 + exit.signal : exit.exit_code;
  return exit_code_;
}

void ChildProgram::signal(int signal) {
  if (!ended_) ::kill(child_.pid, signal);
}

std::map<std::string, std::string> own_environment(const std::string& home) {
  std::map<std::string, std::string> environment = {{"HOME", home}, {"TMPDIR", home}};
  for (const char* name :
       {"USE_RAY", "FORCE_TORCHRUN", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR",
        "MASTER_PORT", "RDZV_ID", "MIN_NNODES", "MAX_NNODES", "MAX_RESTARTS", "TROUPE_ADDRESS"}) {
    environment[name] = "";
  }
  return environment;
}

Result<std::string> make_folder(const std::string& parent, const std::string& prefix) {
  std::string path = join_path(parent, prefix + "XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) return errno_status(errno, "make the folder", path);
  return path;
}

}  // namespace troupe::process
