#pragma once
// How a run's progress is shown: one line that is redrawn on a terminal, plain lines elsewhere.
//
//   [=========>               ]  37/100  loss 2.1345  0:01:30 left  lr 3.000e-04  12.3k tokens/s
//   61 GFLOP/s (54 %)  0:00:52
//
//   step 40/100  loss 2.1345  lr 3.000e-04  12.3k tokens/s  61 GFLOP/s (54 % of GEMM)
//   fwd 31 % bwd 58 % comm 6 % opt 4 %  0:01:30 left  0:00:52 elapsed       (one line)

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "train/report/step_seconds.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

// Where progress is written.
class ProgressOutput {
 public:
  virtual ~ProgressOutput() = default;
  virtual bool is_terminal() const = 0;
  // Columns of the terminal now: it may be resized.
  virtual int width() const = 0;
  virtual void write(std::string_view text) = 0;
};

// Standard error. It waits for a reader (a terminal that is stopped, a pipe that is full) until the
// program is to end: then what cannot be written is dropped.
class StandardErrorOutput final : public ProgressOutput {
 public:
  bool is_terminal() const override;
  int width() const override;
  // Any thread.
  void write(std::string_view text) override;
  // The program is to end from now on, or once this descriptor is readable. Any thread.
  void hurry() { hurries_ = true; }
  void hurry_when_readable(int fd) { hurry_fd_ = fd; }
  // Whether somebody reads.
  bool writable() const;

 private:
  std::atomic<int> hurry_fd_{-1};
  std::atomic<bool> hurries_{false};
  std::atomic<bool> nobody_reads_{false};  // seen in a hurry
};

// A finished step.
struct ProgressUpdate {
  std::int64_t step = 0;  // steps done; may go back after a recovery
  std::optional<double> loss;
  std::optional<double> learning_rate;
  std::int64_t tokens = 0;  // trained on in this step, all ranks
  // Where the step's time went, and its arithmetic; shown where there are any. gemm_share is 0
  // where no rate was measured.
  StepSeconds seconds;
  StepRates rates;
};

// Thread-safe. `clock` and `output` must outlive it.
class ProgressReporter {
 public:
  // `first_step`: the steps that were done before this run began (a resumed one).
  ProgressReporter(const Clock& clock, ProgressOutput& output, std::int64_t total_steps,
                   std::int64_t first_step = 0);

  // After every step. On a terminal the line is redrawn, at most every 100 ms and for the last
  // step.
  void update(const ProgressUpdate& update);
  // At every log event (logging_steps): elsewhere than on a terminal, writes a line about the last
  // update; arithmetic and phases are those of all steps since the last such line, as is `loss`,
  // the one that is logged (nothing: that of the last update).
  void log(std::optional<double> loss = {});
  // Writes a line of someone else (a warning, an event) without spoiling the progress line.
  void message(std::string_view line);
  // Leaves the last progress line standing. Nothing but message() has an effect afterwards.
  void finish();

  // Seconds since construction, and those that the rest will take at the present rate (0 where
  // nothing is known yet).
  double elapsed_s() const;
  double remaining_s() const;
  // Tokens per second over the last steps.
  double tokens_per_s() const;

 private:
  struct Sample {
    TimePoint time;
    std::int64_t step;
    std::int64_t tokens;  // of all steps so far
  };
  double elapsed_locked() const TROUPE_REQUIRES(mutex_);
  double remaining_locked() const TROUPE_REQUIRES(mutex_);
  double tokens_per_s_locked() const TROUPE_REQUIRES(mutex_);
  std::string bar(int width) const TROUPE_REQUIRES(mutex_);
  std::string plain_line(std::optional<double> loss) const TROUPE_REQUIRES(mutex_);
  void draw() TROUPE_REQUIRES(mutex_);

  const Clock& clock_;
  ProgressOutput& output_;
  const std::int64_t total_steps_;
  const TimePoint start_;
  mutable Mutex mutex_;
  ProgressUpdate last_ TROUPE_GUARDED_BY(mutex_);
  std::int64_t tokens_ TROUPE_GUARDED_BY(mutex_) = 0;
  // Since the last log event: seconds, and the rates times their step's seconds.
  StepSeconds logged_seconds_ TROUPE_GUARDED_BY(mutex_);
  StepRates logged_work_ TROUPE_GUARDED_BY(mutex_);
  std::deque<Sample> window_ TROUPE_GUARDED_BY(mutex_);
  std::optional<TimePoint> drawn_ TROUPE_GUARDED_BY(mutex_);
  bool finished_ TROUPE_GUARDED_BY(mutex_) = false;
};

}  // namespace troupe::train
