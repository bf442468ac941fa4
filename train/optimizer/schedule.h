#pragma once
// Learning-rate schedules of HF transformers, by their names there, and DeepSpeed's.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/optimizer/deepspeed_schedule.h"
#include "train/optimizer/plateau.h"

namespace troupe::train {

// A factor of the learning rate for each step: a pure function of (name, kwargs, step, total,
// warm-up). Names: linear, cosine, cosine_with_restarts, polynomial, constant,
// constant_with_warmup, inverse_sqrt, cosine_with_min_lr, cosine_warmup_with_min_lr,
// warmup_stable_decay; reduce_lr_on_plateau, whose factor is 1 (see plateau.h). Two arguments are
// Axolotl's: warmup_power of cosine (2: a quadratic warm-up) and constant_from of
// cosine_with_min_lr (the least rate is reached at that share of the steps).
class Schedule {
 public:
  // `kwargs` is lr_scheduler_kwargs. learning_rate is the peak, which min_lr and lr_end are
  // relative to. Unknown names and keys, and values out of range, are kInvalidArgument.
  static Result<Schedule> make(std::string_view name, const json::Object& kwargs,
                               double learning_rate, std::int64_t total_steps,
                               std::int64_t warmup_steps);

  // See DeepSpeedSchedule::make.
  static Result<Schedule> make_deepspeed(const json::Value& scheduler, double learning_rate,
                                         std::int64_t total_steps, std::int64_t warmup_steps);

  // The factor for the optimizer's update number `step`, counted from 0. Not of DeepSpeed's.
  double factor(std::int64_t step) const;
  double learning_rate(std::int64_t step) const {
    return deepspeed_ ? deepspeed_->learning_rate(step) : learning_rate_ * factor(step);
  }

  // How evaluations change the rate; null: they do not.
  const PlateauRule* plateau() const { return plateau_ ? &*plateau_ : nullptr; }

 private:
  enum class Kind {
    kLinear,
    kCosine,
    kCosineWithRestarts,
    kPolynomial,
    kConstant,
    kConstantWithWarmup,
    kInverseSqrt,
    kCosineWithMinLr,
    kCosineWarmupWithMinLr,
    kWarmupStableDecay,
    kPlateau,
  };
  enum class Shape { kCosine, kLinear, kOneMinusSqrt };

  Status read(const json::Object& kwargs);
  Status read_min_lr(const json::Object& kwargs);
  Status read_warmup_stable_decay(const json::Object& kwargs);
  double stable_decay_factor(double step) const;
  static double shape_value(Shape shape, double progress);

  Kind kind_ = Kind::kLinear;
  std::string name_;
  double learning_rate_ = 0.0;
  double total_ = 0.0;
  double warmup_ = 0.0;
  double cycles_ = 0.5;
  double min_ratio_ = 0.0;      // of the peak
  double warmup_power_ = 1.0;   // cosine: (step / warm-up) to this power
  double constant_from_ = 0.0;  // cosine_with_min_lr: the share of the run where the least begins
  double end_rate_ = 1e-7;      // polynomial
  double power_ = 1.0;          // polynomial
  double timescale_ = 10000.0;  // inverse_sqrt
  double warmup_start_ = 0.0;   // cosine_warmup_with_min_lr: factor at the start of the warm-up
  bool has_warmup_start_ = false;
  double stable_ = 0.0, decay_ = 0.0;  // warmup_stable_decay, in steps
  Shape warmup_shape_ = Shape::kLinear;
  Shape decay_shape_ = Shape::kCosine;
  std::optional<DeepSpeedSchedule> deepspeed_;
  std::optional<PlateauRule> plateau_;
};

}  // namespace troupe::train
