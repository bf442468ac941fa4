#include "tools/commands/repeated_signals.h"

#include <fmt/format.h>
#include <signal.h>

namespace troupe::tools {

bool RepeatedSignals::is_repetition(int signal, TimePoint now) {
  const auto [last, first] = counted_.try_emplace(signal == SIGHUP ? SIGTERM : signal, now);
  if (first) return false;
  if (now - last->second < kRepeatedWithin) return true;
  last->second = now;
  return false;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return fmt::format("SIG{}", name != nullptr ? name : "?");
}

}  // namespace troupe::tools
