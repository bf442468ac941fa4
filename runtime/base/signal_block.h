#pragma once

#include <signal.h>

namespace troupe {

// Blocks every signal for the calling thread while it lives. A thread started meanwhile inherits
// that: the kernel hands a signal of the process to any thread that does not block it, so a helper
// thread that does not would take Ctrl-C past the thread that waits for it in a signalfd.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalBlock() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_;
};

}  // namespace troupe
