#include "train/optimizer/loss_scale.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace troupe::train {
namespace {

std::string scale_text(double scale) { return fmt::format("{:.10g}", scale); }

}  // namespace

LossScale first_loss_scale(const LossScaleRule& rule) {
  return {.next = rule.initial, .hysteresis = rule.hysteresis};
}

Result<LossScale> loss_scale_after(const LossScaleRule& rule, const LossScale& before,
                                   bool overflows) {
  LossScale after = before;
  after.used = before.next;
  if (!rule.is_dynamic) return after;
  if (!overflows) {
    if (rule.refills_hysteresis) after.hysteresis = rule.hysteresis;
    if (++after.clean_steps % rule.window != 0) return after;
    after.hysteresis = rule.hysteresis;
    if (before.next <= std::numeric_limits<float>::max() / 2) after.next *= 2;
    return after;
  }
  after.clean_steps = 0;
  if (before.hysteresis > 1) {
    --after.hysteresis;
    return after;
  }
  if (rule.of_deepspeed && before.next <= rule.least)
    return error(Code::kFailedPrecondition,
                 "Current loss scale already at minimum - cannot decrease scale anymore. Exiting "
                 "run.");
  after.next = std::max(before.next / 2, rule.least);
  return after;
}

std::string overflow_text(const LossScaleRule& rule, const LossScale& before,
                          const LossScale& after) {
  const std::string scale = scale_text(before.next), next = scale_text(after.next);
  if (!rule.of_deepspeed)
    return fmt::format("gradients overflow in fp16 at the loss scale {}, which falls to {}", scale,
                       next);
  std::string text =
      fmt::format("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}", scale);
  if (after.hysteresis < before.hysteresis)
    text += fmt::format(", but hysteresis is {}. Reducing hysteresis to {}", before.hysteresis,
                        after.hysteresis);
  else if (after.next < before.next)
    text += fmt::format(", reducing to {}", next);
  return text;
}

}  // namespace troupe::train
