#include "tools/commands/noted_signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "runtime/base/signal_block.h"

namespace troupe::tools {
namespace {

std::atomic<int> noted;
std::atomic<int> noted_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler sets them");

void write_one(int fd) {
  const std::uint64_t one = 1;
  (void)!::write(fd, &one, sizeof one);
}

}  // namespace

NotedSignals::NotedSignals(std::initializer_list<int> signals)
    : came_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  noted = 0;
  noted_fd = came_.get();
  MutexLock lock(mutex_);
  for (const int signal : signals) {
    Before before{signal, {}};
    ::sigaction(signal, nullptr, &before.action);
    if (before.action.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = [](int which) {
      const int before_it = errno;  // of what it interrupts
      noted = which;
      write_one(noted_fd);
      errno = before_it;
    };
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
    before_.push_back(before);
  }
}

NotedSignals::~NotedSignals() {
  give_back();
  noted_fd = -1;
}

int NotedSignals::last() const { return noted; }

void NotedSignals::forget() { noted = 0; }

void NotedSignals::give_back() {
  MutexLock lock(mutex_);
  for (const Before& before : before_) ::sigaction(before.signal, &before.action, nullptr);
  before_.clear();
}

RemovedAtSignal::RemovedAtSignal(std::string folder)
    : folder_(std::move(folder)), over_(::eventfd(0, EFD_CLOEXEC)) {
  const SignalBlock block;  // signals are other threads'
  thread_ = std::thread([this] { wait_for_signal(); });
}

// A signal that came before is still seen, one that comes later does what it did.
RemovedAtSignal::~RemovedAtSignal() {
  signals_.give_back();
  write_one(over_.get());
  thread_.join();
}

void RemovedAtSignal::wait_for_signal() {
  pollfd entries[] = {{signals_.fd(), POLLIN, 0}, {over_.get(), POLLIN, 0}};
  while (::poll(entries, 2, -1) <= 0) continue;
  const int signal = signals_.last();
  if (signal == 0) return;
  std::error_code failed;
  // Something may still be written into it meanwhile.
  constexpr int kAttempts = 5;
  for (int i = 0; i < kAttempts && std::filesystem::exists(folder_, failed); ++i)
    std::filesystem::remove_all(folder_, failed);
  signals_.give_back();
  ::kill(::getpid(), signal);
  // Not before that has ended the process; where somebody handles the signal, it goes on.
  ::poll(nullptr, 0, 1000);
}

}  // namespace troupe::tools
