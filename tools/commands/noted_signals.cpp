#include "tools/commands/noted_signals.h"

#include <atomic>

namespace troupe::tools {
namespace {

std::atomic<int> noted;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler sets it");

}  // namespace

NotedSignals::NotedSignals(std::initializer_list<int> signals) {
  noted = 0;
  for (const int signal : signals) {
    Before before{signal, {}};
    ::sigaction(signal, nullptr, &before.action);
    if (before.action.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = [](int which) { noted = which; };
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
    before_.push_back(before);
  }
}

NotedSignals::~NotedSignals() {
  for (const Before& before : before_) ::sigaction(before.signal, &before.action, nullptr);
}

int NotedSignals::last() const { return noted; }

void NotedSignals::forget() { noted = 0; }

}  // namespace troupe::tools
