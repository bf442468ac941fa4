#pragma once
// DeepSpeed's own schedules, with its counting: a warm-up's rate follows the number of the step
// before, so that the first two steps have its least rate.

#include <cstdint>
#include <string_view>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

// WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest.
class DeepSpeedSchedule {
 public:
  // `scheduler`: of a DeepSpeed configuration, with `type` and `params`. "auto", or left out where
  // transformers fills it in: `learning_rate`, `total_steps`, `warmup_steps`. Unknown types and
  // parameters, values out of range, and such that are not the run's are kInvalidArgument; a
  // OneCycle that cycles momentum, too, is kUnsupported.
  static Result<DeepSpeedSchedule> make(const json::Value& scheduler, double learning_rate,
                                        std::int64_t total_steps, std::int64_t warmup_steps);

  // Of the optimizer's update number `step`, counted from 0.
  double learning_rate(std::int64_t step) const;

 private:
  enum class Kind { kWarmup, kWarmupDecay, kWarmupCosine, kOneCycle, kRangeTest };

  Status read_warmup(const json::Object& params, std::int64_t total_steps,
                     std::int64_t warmup_steps);
  Status read_one_cycle(const json::Object& params);
  Status read_range_test(const json::Object& params);
  double warmup_share(double iteration) const;
  double cycle_rate(double iteration) const;

  Kind kind_ = Kind::kWarmup;
  double peak_ = 0.0;  // the run's learning rate
  double least_ = 0.0, most_ = 0.0;
  double warmup_ = 1000.0, total_ = 0.0;
  bool linear_ = false;                          // warm-up; else by logarithms
  double least_ratio_ = 0.0;                     // WarmupCosineLR: of the peak, at the start
  double end_ratio_ = 1e-4;                      // and at the end
  double first_ = 2000.0, second_ = 2000.0;      // OneCycle: steps up and down
  double decay_rate_ = 0.0, decay_steps_ = 0.0;  // and after them
  double interval_ = 2000.0, growth_ = 1.0;      // LRRangeTest
  bool staircase_ = false;
};

}  // namespace troupe::train
