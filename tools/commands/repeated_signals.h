#pragma once
// Tells a second request to end from a repetition of the first one.

#include <chrono>
#include <map>
#include <string>

#include "runtime/base/clock.h"

namespace troupe::tools {

// One request may arrive as several signals within moments: `timeout` signals its command and then
// the process group in which the command is; Ctrl-C reaches a script and the command, to which the
// script passes it on; systemd sends SIGHUP right after SIGTERM. Only a later signal is the second
// request, by which a user asks to end at once. One thread.
class RepeatedSignals {
 public:
  // So long after a signal that counted, the same one is a repetition of it.
  static constexpr Duration kRepeatedWithin = std::chrono::seconds(1);

  // Whether `signal`, taken at `now`, repeats an earlier one. SIGHUP and SIGTERM are the same
  // request.
  bool is_repetition(int signal, TimePoint now);

 private:
  std::map<int, TimePoint> counted_;  // when each was last taken as a request
};

// "SIGTERM"
std::string signal_name(int signal);

}  // namespace troupe::tools
