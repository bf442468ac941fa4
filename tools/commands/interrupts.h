#pragma once
// The signals by which a user ends `troupe train`, as requests.

#include <optional>

#include "runtime/base/clock.h"
#include "tools/commands/repeated_signals.h"
#include "train/trainer/progress_lines.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {

// Ctrl-C, SIGTERM and a terminal that goes as something to read, instead of the process's end.
// Threads started later inherit the blocked signals; actor processes are started with none blocked.
// One thread. `clock` outlives it.
class Interrupts {
 public:
  // `in_step`: SLURM's signals before the end of a job, which may come one after the other.
  Interrupts(const Clock& clock, bool in_step) : clock_(clock), in_step_(in_step) {}
  void catch_signals();
  // From here on they end the process, as where nothing is left to take down. Repetitions of a
  // signal that was taken are forgotten.
  void release();
  // Readable when a signal has come; -1 before catch_signals().
  int fd() const { return signals_.get(); }
  // What the next signal asks for; kNone where it repeats the one before.
  train::Interrupt take();
  // The exit code for a process that such a signal ended (128 + its number).
  int exit_code();

 private:
  // The next signal that is a request of its own.
  std::optional<int> next_request();

  const Clock& clock_;
  const bool in_step_;
  UniqueFd signals_;
  RepeatedSignals repeated_;
  int last_ = 0;
};

}  // namespace troupe::tools
