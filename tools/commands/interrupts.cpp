#include "tools/commands/interrupts.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace troupe::tools {

void Interrupts::catch_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  // Under nohup it is ignored, and stays so.
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  if (in_step_) {
    for (const int signal : {SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

void Interrupts::release() {
  const auto request = next_request();
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  if (request && sigismember(&set, *request)) ::raise(*request);
}

std::optional<int> Interrupts::next_request() {
  signalfd_siginfo info;
  while (::read(fd(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (!repeated_.is_repetition(signal, clock_.now())) return signal;
  }
  return std::nullopt;
}

train::Interrupt Interrupts::take() {
  const auto signal = next_request();
  if (!signal) return train::Interrupt::kNone;
  // A hangup often comes with others; the first signal is the reason.
  const bool again = last_ != 0;
  if (!again || *signal == SIGINT) last_ = *signal;
  if (in_step_ && again && *signal != SIGINT) return train::Interrupt::kNone;
  return *signal == SIGINT ? train::Interrupt::kEnd : train::Interrupt::kSaveThenEnd;
}

int Interrupts::exit_code() {
  if (last_ == 0) take();  // seen, and not taken yet
  // Nothing came here: another of the run's machines was told to end.
  return 128 + (last_ != 0 ? last_ : SIGTERM);
}

}  // namespace troupe::tools
