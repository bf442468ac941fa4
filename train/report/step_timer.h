#pragma once
// Where the time of a step goes, and what that makes in tokens and arithmetic per second.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"

namespace troupe::train {

enum class StepPhase {
  kData,           // choosing samples, batches
  kForward,        //
  kBackward,       // with the forward passes that checkpointing repeats
  kCommunication,  // collectives, the waiting for other ranks in them included
  kOptimizer,      // norm, clipping, AdamW
  kCheckpoint,     // what saving holds the step up for
  kStall,          // waiting for anything else
};
inline constexpr std::size_t kStepPhaseCount = 7;
// "data", "forward", …: the keys of steps.jsonl.
std::string_view step_phase_name(StepPhase phase);

// Seconds of a step by phase, on one rank.
struct StepSeconds {
  double data = 0;
  double forward = 0;
  double backward = 0;
  double communication = 0;
  double optimizer = 0;
  double checkpoint = 0;
  double stall = 0;

  double& of(StepPhase phase);
  double of(StepPhase phase) const;
  double total() const;
  StepSeconds& operator+=(const StepSeconds& other);
  friend bool operator==(const StepSeconds&, const StepSeconds&) = default;
};
// {"data": 0.001, "forward": …}: microseconds are kept. And back; absent keys are 0.
json::Object to_json(const StepSeconds& seconds);
StepSeconds step_seconds_from_json(const json::Value& value);
// "forward 31 %, backward 58 %, communication 6 %": phases of at least 0.5 %, in their order; empty
// without time. `brief`: "fwd 31 % bwd 58 % comm 6 %".
std::string describe_phases(const StepSeconds& seconds, bool brief);

// Attributes time to phases: at any moment one phase is current. One thread.
class StepTimer {
 public:
  // `clock` must outlive the timer, which begins in kStall.
  explicit StepTimer(const Clock& clock);

  // From now on time belongs to `phase`. Returns the phase it belonged to.
  StepPhase enter(StepPhase phase);
  // The time since construction or the last take(), all of it: the phases' sum is the step.
  StepSeconds take();

 private:
  const Clock& clock_;
  StepPhase phase_ = StepPhase::kStall;
  TimePoint since_;
  StepSeconds seconds_;
};

// A phase inside another: communication in the midst of a backward pass.
class TimedPhase {
 public:
  TimedPhase(StepTimer& timer, StepPhase phase) : timer_(timer), outer_(timer.enter(phase)) {}
  ~TimedPhase() { timer_.enter(outer_); }
  TimedPhase(const TimedPhase&) = delete;
  TimedPhase& operator=(const TimedPhase&) = delete;

 private:
  StepTimer& timer_;
  const StepPhase outer_;
};

// A step's work per second, all ranks together.
struct StepRates {
  double tokens_per_s = 0;
  double gflops = 0;      // 10⁹ floating-point operations per second
  double gemm_share = 0;  // of the rate that matrix products alone reach; 0: not measured
  // By rank 0 in the step, by the formulas of its collectives; not a rate, but like the others no
  // part of what equal runs have in common: it depends on the strategy.
  std::uint64_t bytes_sent = 0;
  friend bool operator==(const StepRates&, const StepRates&) = default;
};
// `flops`: of the whole step, all ranks. `gemm_flops_per_s`: all ranks together, 0: not measured.
StepRates step_rates(std::int64_t tokens, double flops, double gemm_flops_per_s,
                     const StepSeconds& seconds);

}  // namespace troupe::train
