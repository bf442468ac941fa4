#pragma once
// Loss scales of training in fp16, where small gradients underflow: the loss is multiplied, and the
// update divides again. Where gradients overflow, the step is skipped and the scale falls; after
// many steps without it doubles. By the rules of torch's GradScaler, or of DeepSpeed.

#include <cstdint>
#include <string>

#include "runtime/base/status.h"

namespace troupe::train {

// Defaults are GradScaler's.
struct LossScaleRule {
  double initial = 65536;
  bool is_dynamic = true;           // else the scale stays what it is
  std::int64_t window = 2000;       // steps without an overflow, after which the scale doubles
  std::int64_t hysteresis = 1;      // the overflow of so many that halves it; the others count only
  bool refills_hysteresis = false;  // at each step without an overflow; else where it doubles
  double least = 0;                 // it does not fall below
  // DeepSpeed's: an overflow at the least scale ends the run.
  bool of_deepspeed = false;
};

// Where a run's scale stands behind a step. Zeros: the step was not computed in fp16.
struct LossScale {
  double used = 0;               // the step's
  double next = 0;               // the next step's
  std::int64_t clean_steps = 0;  // since the last overflow
  std::int64_t hysteresis = 0;   // overflows until it falls
};

// Before the first step.
LossScale first_loss_scale(const LossScaleRule& rule);
// Behind a step that was computed with before.next. kFailedPrecondition, in DeepSpeed's words: the
// scale cannot fall any more.
Result<LossScale> loss_scale_after(const LossScaleRule& rule, const LossScale& before,
                                   bool overflows);
// Why a step whose gradients overflow is skipped, in DeepSpeed's words where the rule is its.
std::string overflow_text(const LossScaleRule& rule, const LossScale& before,
                          const LossScale& after);

}  // namespace troupe::train
