#include "tools/commands/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "runtime/base/clock.h"
#include "tools/commands/repeated_signals.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {
namespace {

// Others are messages to programs that `work` runs, and each of them counts.
bool asks_to_end(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

}  // namespace

Status with_signals(const std::function<void(int signal)>& on_signal,
                    const std::function<Status()>& work, CommandContext& context,
                    std::initializer_list<int> signals) {
  sigset_t set, before;
  sigemptyset(&set);
  for (const int signal : signals) {
    // Under nohup a hangup is ignored, and stays so.
    struct sigaction before_us {};
    ::sigaction(signal, nullptr, &before_us);
    if (before_us.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  const UniqueFd arrived(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  const UniqueFd done(::eventfd(0, EFD_CLOEXEC));
  std::atomic<int> seen{0};
  std::thread watcher([&] {
    const SystemClock clock;
    RepeatedSignals repeated;
    for (;;) {
      pollfd fds[2] = {{arrived.get(), POLLIN, 0}, {done.get(), POLLIN, 0}};
      ::poll(fds, 2, -1);  // ends with the work
      if (fds[1].revents != 0) return;
      signalfd_siginfo info;
      if (::read(arrived.get(), &info, sizeof info) != sizeof info) continue;
      const int signal = static_cast<int>(info.ssi_signo);
      if (asks_to_end(signal) && repeated.is_repetition(signal, clock.now())) continue;
      seen = signal;
      on_signal(signal);
    }
  });
  Status status = work();
  const std::uint64_t one = 1;
  static_cast<void>(::write(done.get(), &one, sizeof one) < 0);
  watcher.join();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (seen != 0) context.exit_code = 128 + seen;
  return status;
}

}  // namespace troupe::tools
