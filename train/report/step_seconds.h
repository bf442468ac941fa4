#pragma once
// Where the time of a step goes, and what that makes in tokens and arithmetic per second.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace troupe::train {

// Seconds of a step by phase, on one rank.
struct StepSeconds {
  double data = 0;           // choosing samples, batches
  double forward = 0;        //
  double backward = 0;       // with the forward passes that checkpointing repeats
  double communication = 0;  // collectives, the waiting for other ranks in them included
  double optimizer = 0;      // norm, clipping, update
  double checkpoint = 0;     // what saving holds the step up for
  double stall = 0;          // the rest of the step: waiting for anything else

  double total() const;
  StepSeconds& operator+=(const StepSeconds& other);
  friend bool operator==(const StepSeconds&, const StepSeconds&) = default;
};
// What a step's loop spent on an operator, or on another part of the step, by its name.
struct OperatorSeconds {
  std::string name;
  double seconds = 0;
  friend bool operator==(const OperatorSeconds&, const OperatorSeconds&) = default;
};

// {"data": 0.001, "forward": …}: microseconds are kept. And back; absent keys are 0.
json::Object to_json(const StepSeconds& seconds);
StepSeconds step_seconds_from_json(const json::Value& value);
// {"gemm nt": 0.1, …} in their order, and back; members that are no numbers are left out.
json::Object to_json(const std::vector<OperatorSeconds>& operators);
std::vector<OperatorSeconds> operator_seconds_from_json(const json::Value& value);
// "fwd 31 % bwd 58 % comm 6 %": phases of at least 0.5 %, in their order; empty without time.
std::string describe_phases(const StepSeconds& seconds);

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
