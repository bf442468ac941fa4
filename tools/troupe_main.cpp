// The program `troupe`: the commands of tools/commands, and the process of the trainer actors.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <new>
#include <stdexcept>

#include "tools/commands/registry.h"
#include "tools/commands/run.h"
#include "tools/launchers/invocation.h"
#include "tools/launchers/slurm.h"
#include "train/trainer/controller.h"
#include "train/trainer/predictor_actor.h"
#include "troupe/actor.h"
#include "troupe/train/trainer_actor.h"

namespace {

// A file that is opened later must not get the number of a standard stream that was closed.
void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0) return;
  }
}

// Whoever read standard output (`| head`) has gone: nothing to complain of.
bool reader_has_gone() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&output, 1, 0) > 0 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

constexpr int kOutOfMemory = 5;
constexpr int kNotWritten = 5;

}  // namespace

// SLURM sends its signals to every process of a step: to the keepers and actors that a task
// started, too. What becomes of the run is for the first task to say; these are ended by their
// node.
void leave_slurm_signals_to_tasks() {
  if (!troupe::tools::in_slurm_step(troupe::SystemEnvironment())) return;
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
}

int main(int argc, char** argv) {
  open_standard_streams();
  if (troupe::detail::is_host_command(argc, argv)) leave_slurm_signals_to_tasks();
  // --- host mode --------------------------------------------------------------------------------
  // The process of an actor is this program again ("troupe host --actor TYPE …"): host_main stands
  // here, before anything else, with the list of actor classes that this program can host.
  if (const auto exit_code = troupe::host_main(
          argc, argv,
          troupe::actors<troupe::train::TrainController, troupe::train::TrainerActor,
                         troupe::train::PredictorActor>)) {
    return *exit_code;
  }

  // --- commands ---------------------------------------------------------------------------------
  std::ios::sync_with_stdio(false);
  troupe::PosixFileSystem files;
  const troupe::SystemEnvironment environment;
  troupe::SystemRandom random;
  troupe::tools::CommandContext context{.files = files,
                                        .environment = environment,
                                        .random = random,
                                        .in = std::cin,
                                        .out = std::cout,
                                        .err = std::cerr,
                                        .out_is_terminal = ::isatty(STDOUT_FILENO) == 1,
                                        .err_is_terminal = ::isatty(STDERR_FILENO) == 1};
  int exit_code = 0;
  try {
    // Under another launcher's name (a link) it does what that would have done.
    const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
    const std::string name = argc > 0 ? argv[0] : "";
    exit_code = troupe::tools::find_launcher(name) != nullptr
                    ? troupe::tools::run_as_launcher(context, name, arguments)
                    : troupe::tools::troupe_main(context, arguments);
  } catch (const std::bad_alloc&) {
    std::cerr << "troupe: there is not enough memory for what was asked" << std::endl;
    return kOutOfMemory;
  } catch (const std::length_error&) {
    std::cerr << "troupe: what was asked is larger than any memory" << std::endl;
    return kOutOfMemory;
  }
  if (std::cout.flush().fail() && exit_code == 0) {
    if (reader_has_gone()) return 128 + SIGPIPE;
    std::cerr << "troupe: standard output could not be written" << std::endl;
    return kNotWritten;
  }
  return exit_code;
}
