// Signals as requests: which count, and what the command's exit code is.

#include "tools/commands/interrupts.h"

#include <doctest/doctest.h>
#include <signal.h>

namespace troupe::tools {
namespace {

using train::Interrupt;

// The signals go to this thread, which has them blocked.
struct Fixture {
  explicit Fixture(bool in_step = false) : interrupts(clock, in_step) {
    interrupts.catch_signals();
  }
  ~Fixture() { interrupts.release(); }
  Interrupt sent(int signal) {
    ::raise(signal);
    return interrupts.take();
  }
  ManualClock clock;
  Interrupts interrupts;
};

TEST_CASE("the same signal twice within moments is one request; later it is a second one") {
  Fixture f;
  CHECK(f.sent(SIGTERM) == Interrupt::kSaveThenEnd);
  CHECK(f.sent(SIGTERM) == Interrupt::kNone);
  f.clock.advance(RepeatedSignals::kRepeatedWithin - Duration(1));
  CHECK(f.sent(SIGTERM) == Interrupt::kNone);
  f.clock.advance(Duration(1));
  CHECK(f.sent(SIGTERM) == Interrupt::kSaveThenEnd);
  CHECK(f.interrupts.exit_code() == 128 + SIGTERM);
}

TEST_CASE("SIGHUP beside SIGTERM is one request, Ctrl-C is always another one") {
  Fixture f;
  CHECK(f.sent(SIGTERM) == Interrupt::kSaveThenEnd);
  CHECK(f.sent(SIGHUP) == Interrupt::kNone);
  CHECK(f.sent(SIGINT) == Interrupt::kEnd);
  CHECK(f.sent(SIGINT) == Interrupt::kNone);
  CHECK(f.interrupts.exit_code() == 128 + SIGINT);
}

TEST_CASE("a step of SLURM is told several times, and saves once") {
  Fixture f(true);
  CHECK(f.sent(SIGUSR1) == Interrupt::kSaveThenEnd);
  f.clock.advance(std::chrono::seconds(30));
  CHECK(f.sent(SIGTERM) == Interrupt::kNone);
  CHECK(f.interrupts.exit_code() == 128 + SIGUSR1);
}

TEST_CASE("a repetition that nobody took does not end the process when signals end it again") {
  Fixture f;
  CHECK(f.sent(SIGINT) == Interrupt::kEnd);
  ::raise(SIGINT);
  f.interrupts.release();
  CHECK(f.interrupts.exit_code() == 128 + SIGINT);
}

}  // namespace
}  // namespace troupe::tools
