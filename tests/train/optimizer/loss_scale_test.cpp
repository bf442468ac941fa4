// Loss scales against DeepSpeed's and torch's rules as they stand there.
#include "train/optimizer/loss_scale.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "runtime/base/random.h"

namespace troupe::train {
namespace {

// DeepSpeed's DynamicLossScaler.update_scale, in its variables.
struct DynamicLossScaler {
  double cur_scale;
  std::int64_t scale_window, delayed_shift;
  bool consecutive_hysteresis;
  double min_scale;
  std::int64_t cur_iter = 0, last_overflow_iter = -1, cur_hysteresis = delayed_shift;
  bool failed = false;

  void update_scale(bool overflow) {
    if (overflow) {
      if (delayed_shift == 1 || cur_hysteresis == 1) {
        if (cur_scale == min_scale) failed = true;
        cur_scale = std::max(cur_scale / 2, min_scale);
      } else {
        cur_hysteresis -= 1;
      }
      last_overflow_iter = cur_iter;
    } else {
      if (consecutive_hysteresis) cur_hysteresis = delayed_shift;
      if ((cur_iter - last_overflow_iter) % scale_window == 0) {
        if (!consecutive_hysteresis) cur_hysteresis = delayed_shift;
        cur_scale *= 2;
      }
    }
    cur_iter += 1;
  }
};

// torch's _amp_update_scale_.
struct GradScaler {
  double scale = 65536;
  int growth_tracker = 0;
  void update(bool found_inf) {
    if (found_inf) {
      scale *= 0.5, growth_tracker = 0;
    } else if (++growth_tracker == 2000) {
      scale *= 2, growth_tracker = 0;
    }
  }
};

TEST_CASE("the scale follows DeepSpeed's rule, whatever overflows") {
  SeededRandom random(11);
  for (const std::int64_t hysteresis : {1, 2, 3}) {
    for (const bool consecutive : {false, true}) {
      DynamicLossScaler theirs{65536, 7, hysteresis, consecutive, 4};
      const LossScaleRule rule{.initial = 65536,
                               .window = 7,
                               .hysteresis = hysteresis,
                               .refills_hysteresis = consecutive,
                               .least = 4,
                               .of_deepspeed = true};
      LossScale ours = first_loss_scale(rule);
      for (int step = 0; step < 3000; ++step) {
        // Now rare, now often.
        const bool overflows =
            random.below(step / 300 % 2 == 0 ? 20 : 4) == 0 || theirs.cur_scale > 0x1p100;
        const double before = ours.next;
        theirs.update_scale(overflows);
        const auto after = loss_scale_after(rule, ours, overflows);
        REQUIRE(after.ok() != theirs.failed);
        if (theirs.failed) {
          CHECK(after.status().code() == Code::kFailedPrecondition);
          CHECK(after.status().message() ==
                "Current loss scale already at minimum - cannot decrease scale anymore. Exiting "
                "run.");
          break;
        }
        ours = *after;
        REQUIRE(ours.used == before);
        REQUIRE(ours.next == theirs.cur_scale);
        REQUIRE(ours.hysteresis == theirs.cur_hysteresis);
      }
    }
  }
}

TEST_CASE("without DeepSpeed the scale follows GradScaler's rule") {
  const LossScaleRule rule;
  LossScale ours = first_loss_scale(rule);
  GradScaler theirs;
  CHECK(ours.next == 65536);
  for (int step = 0; step < 20000; ++step) {
    const bool overflows = step < 3 || step % 4500 == 4400;
    theirs.update(overflows);
    ours = loss_scale_after(rule, ours, overflows).value();
    REQUIRE(ours.next == theirs.scale);
  }
  CHECK(ours.next > 8192);
  // It has no least scale, and no infinite one.
  for (int i = 0; i < 40; ++i) ours = loss_scale_after(rule, ours, true).value();
  CHECK(ours.next < 1e-6);
  ours = {.used = 0, .next = 0x1p127, .clean_steps = 1999, .hysteresis = 1};
  CHECK(loss_scale_after(rule, ours, false)->next == 0x1p127);
}

TEST_CASE("what is told of an overflow") {
  const LossScaleRule torch;
  LossScale scale = first_loss_scale(torch);
  CHECK(overflow_text(torch, scale, loss_scale_after(torch, scale, true).value()) ==
        "gradients overflow in fp16 at the loss scale 65536, which falls to 32768");
  const LossScaleRule deepspeed{.hysteresis = 2, .least = 1, .of_deepspeed = true};
  scale = first_loss_scale(deepspeed);
  const LossScale counted = loss_scale_after(deepspeed, scale, true).value();
  CHECK(overflow_text(deepspeed, scale, counted) ==
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis "
        "is 2. Reducing hysteresis to 1");
  CHECK(overflow_text(deepspeed, counted, loss_scale_after(deepspeed, counted, true).value()) ==
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to "
        "32768");
  LossScaleRule fixed = deepspeed;
  fixed.is_dynamic = false, fixed.initial = 128;
  scale = first_loss_scale(fixed);
  const LossScale same = loss_scale_after(fixed, scale, true).value();
  CHECK(same.next == 128);
  CHECK(overflow_text(fixed, scale, same) ==
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 128");
}

}  // namespace
}  // namespace troupe::train
