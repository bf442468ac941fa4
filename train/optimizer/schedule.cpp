#include "train/optimizer/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <numbers>

namespace troupe::train {
namespace {

constexpr std::string_view kNames =
    "linear, cosine, cosine_with_restarts, polynomial, constant, constant_with_warmup, "
    "inverse_sqrt, cosine_with_min_lr, cosine_warmup_with_min_lr, warmup_stable_decay, "
    "reduce_lr_on_plateau";

Status check_keys(std::string_view name, const json::Object& kwargs,
                  std::initializer_list<std::string_view> known) {
  for (const auto& entry : kwargs)
    if (std::find(known.begin(), known.end(), std::string_view(entry.key())) == known.end())
      return error(Code::kInvalidArgument,
                   "lr_scheduler_kwargs: lr_scheduler_type={} has no argument {}", name,
                   std::string_view(entry.key()));
  return {};
}

bool given(const json::Object& kwargs, std::string_view key) {
  const json::Value* value = kwargs.if_contains(key);
  return value && !value->is_null();
}

// A number, 0 or greater; `out` stays where it is not given.
Status read_number(const json::Object& kwargs, std::string_view key, double& out) {
  if (!given(kwargs, key)) return {};
  const auto number = json::find_number(json::Value(kwargs), key);
  if (!number || !(*number >= 0) || !std::isfinite(*number))
    return error(Code::kInvalidArgument,
                 "lr_scheduler_kwargs: {} must be a number that is not negative", key);
  out = *number;
  return {};
}

double half_cosine(double turns) { return 0.5 * (1.0 + std::cos(2.0 * std::numbers::pi * turns)); }

}  // namespace

Result<Schedule> Schedule::make(std::string_view name, const json::Object& kwargs,
                                double learning_rate, std::int64_t total_steps,
                                std::int64_t warmup_steps) {
  constexpr std::array<std::pair<std::string_view, Kind>, 11> kinds = {{
      {"linear", Kind::kLinear},
      {"cosine", Kind::kCosine},
      {"cosine_with_restarts", Kind::kCosineWithRestarts},
      {"polynomial", Kind::kPolynomial},
      {"constant", Kind::kConstant},
      {"constant_with_warmup", Kind::kConstantWithWarmup},
      {"inverse_sqrt", Kind::kInverseSqrt},
      {"cosine_with_min_lr", Kind::kCosineWithMinLr},
      {"cosine_warmup_with_min_lr", Kind::kCosineWarmupWithMinLr},
      {"warmup_stable_decay", Kind::kWarmupStableDecay},
      {"reduce_lr_on_plateau", Kind::kPlateau},
  }};
  const auto found =
      std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == name; });
  if (found == kinds.end())
    return error(Code::kInvalidArgument, "lr_scheduler_type={} is unknown; known: {}", name,
                 kNames);
  if (total_steps < 0 || warmup_steps < 0)
    return error(Code::kInvalidArgument, "{} steps with {} of warm-up", total_steps, warmup_steps);
  Schedule schedule;
  schedule.kind_ = found->second;
  schedule.name_ = name;
  schedule.learning_rate_ = learning_rate;
  schedule.total_ = static_cast<double>(total_steps);
  schedule.warmup_ = static_cast<double>(warmup_steps);
  TROUPE_RETURN_IF_ERROR(schedule.read(kwargs));
  return schedule;
}

Result<Schedule> Schedule::make_deepspeed(const json::Value& scheduler, double learning_rate,
                                          std::int64_t total_steps, std::int64_t warmup_steps) {
  Schedule schedule;
  schedule.learning_rate_ = learning_rate;
  schedule.deepspeed_ =
      TROUPE_TRY(DeepSpeedSchedule::make(scheduler, learning_rate, total_steps, warmup_steps));
  return schedule;
}

Status Schedule::read(const json::Object& kwargs) {
  switch (kind_) {
    case Kind::kCosine:
      TROUPE_RETURN_IF_ERROR(check_keys(name_, kwargs, {"num_cycles", "warmup_power"}));
      TROUPE_RETURN_IF_ERROR(read_number(kwargs, "warmup_power", warmup_power_));
      return read_number(kwargs, "num_cycles", cycles_);
    case Kind::kCosineWithRestarts:
      cycles_ = 1.0;
      TROUPE_RETURN_IF_ERROR(check_keys(name_, kwargs, {"num_cycles"}));
      return read_number(kwargs, "num_cycles", cycles_);
    case Kind::kPolynomial:
      TROUPE_RETURN_IF_ERROR(check_keys(name_, kwargs, {"lr_end", "power"}));
      TROUPE_RETURN_IF_ERROR(read_number(kwargs, "lr_end", end_rate_));
      TROUPE_RETURN_IF_ERROR(read_number(kwargs, "power", power_));
      if (learning_rate_ > end_rate_) return {};
      return error(Code::kInvalidArgument,
                   "lr_scheduler_kwargs: lr_end {} must be smaller than learning_rate {}",
                   end_rate_, learning_rate_);
    case Kind::kInverseSqrt:
      if (warmup_ > 0) timescale_ = warmup_;
      TROUPE_RETURN_IF_ERROR(check_keys(name_, kwargs, {"timescale"}));
      TROUPE_RETURN_IF_ERROR(read_number(kwargs, "timescale", timescale_));
      if (timescale_ > 0) return {};
      return error(Code::kInvalidArgument, "lr_scheduler_kwargs: timescale must be positive");
    case Kind::kCosineWithMinLr:
      TROUPE_RETURN_IF_ERROR(
          check_keys(name_, kwargs, {"num_cycles", "min_lr", "min_lr_rate", "constant_from"}));
      TROUPE_RETURN_IF_ERROR(read_number(kwargs, "constant_from", constant_from_));
      if (constant_from_ > 1)
        return error(Code::kInvalidArgument,
                     "lr_scheduler_kwargs: constant_from is a share of the run, at most 1");
      return read_min_lr(kwargs);
    case Kind::kCosineWarmupWithMinLr:
      TROUPE_RETURN_IF_ERROR(
          check_keys(name_, kwargs, {"num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"}));
      has_warmup_start_ = given(kwargs, "warmup_lr_rate");
      TROUPE_RETURN_IF_ERROR(read_number(kwargs, "warmup_lr_rate", warmup_start_));
      return read_min_lr(kwargs);
    case Kind::kWarmupStableDecay:
      return read_warmup_stable_decay(kwargs);
    case Kind::kPlateau:
      plateau_ = TROUPE_TRY(PlateauRule::read(kwargs));
      return {};
    case Kind::kLinear:
    case Kind::kConstant:
    case Kind::kConstantWithWarmup:
      return check_keys(name_, kwargs, {});
  }
  return {};
}

Status Schedule::read_min_lr(const json::Object& kwargs) {
  if (given(kwargs, "min_lr") == given(kwargs, "min_lr_rate"))
    return error(Code::kInvalidArgument,
                 "lr_scheduler_kwargs: lr_scheduler_type={} needs exactly one of min_lr and "
                 "min_lr_rate",
                 name_);
  TROUPE_RETURN_IF_ERROR(read_number(kwargs, "num_cycles", cycles_));
  TROUPE_RETURN_IF_ERROR(read_number(kwargs, "min_lr_rate", min_ratio_));
  if (!given(kwargs, "min_lr")) return {};
  if (learning_rate_ <= 0)
    return error(Code::kInvalidArgument,
                 "lr_scheduler_kwargs: min_lr needs a learning_rate above 0");
  TROUPE_RETURN_IF_ERROR(read_number(kwargs, "min_lr", min_ratio_));
  min_ratio_ /= learning_rate_;
  return {};
}

Status Schedule::read_warmup_stable_decay(const json::Object& kwargs) {
  TROUPE_RETURN_IF_ERROR(check_keys(name_, kwargs,
                                    {"num_stable_steps", "num_decay_steps", "warmup_type",
                                     "decay_type", "min_lr_ratio", "num_cycles"}));
  const auto read_shape = [&](std::string_view key, Shape& shape) -> Status {
    if (!given(kwargs, key)) return {};
    const auto text = json::find_string(json::Value(kwargs), key).value_or("");
    if (text == "linear") return shape = Shape::kLinear, Status();
    if (text == "cosine") return shape = Shape::kCosine, Status();
    if (text == "1-sqrt") return shape = Shape::kOneMinusSqrt, Status();
    return error(Code::kInvalidArgument, "lr_scheduler_kwargs: {} must be linear, cosine or 1-sqrt",
                 key);
  };
  TROUPE_RETURN_IF_ERROR(read_shape("warmup_type", warmup_shape_));
  TROUPE_RETURN_IF_ERROR(read_shape("decay_type", decay_shape_));
  TROUPE_RETURN_IF_ERROR(read_number(kwargs, "min_lr_ratio", min_ratio_));
  TROUPE_RETURN_IF_ERROR(read_number(kwargs, "num_cycles", cycles_));
  // LLaMA-Factory's defaults: a third of what the warm-up leaves is stable, the rest decays, each
  // wherever its own number is missing.
  const double rest = std::max(0.0, total_ - warmup_);
  stable_ = std::floor(rest / 3.0);
  decay_ = rest - stable_;
  TROUPE_RETURN_IF_ERROR(read_number(kwargs, "num_stable_steps", stable_));
  return read_number(kwargs, "num_decay_steps", decay_);
}

// How far a decay still is from its end: 1 at progress 0.
double Schedule::shape_value(Shape shape, double progress) {
  switch (shape) {
    case Shape::kLinear:
      return 1.0 - progress;
    case Shape::kCosine:
      return half_cosine(0.5 * progress);
    case Shape::kOneMinusSqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 0.0;
}

double Schedule::stable_decay_factor(double step) const {
  double value = 0.0;
  if (step < warmup_) {
    value = shape_value(warmup_shape_, 1.0 - step / std::max(1.0, warmup_));
  } else if (step < warmup_ + stable_) {
    return 1.0;
  } else if (step < warmup_ + stable_ + decay_) {
    const double progress = (step - warmup_ - stable_) / std::max(1.0, decay_);
    value = decay_shape_ == Shape::kCosine ? half_cosine(cycles_ * progress)
                                           : shape_value(decay_shape_, progress);
  } else {
    return min_ratio_;
  }
  return std::max(0.0, value * (1.0 - min_ratio_) + min_ratio_);
}

double Schedule::factor(std::int64_t step_number) const {
  const double step = static_cast<double>(step_number);
  if (kind_ == Kind::kConstant || kind_ == Kind::kPlateau) return 1.0;
  if (kind_ == Kind::kWarmupStableDecay) return stable_decay_factor(step);
  if (step < warmup_) {
    if (kind_ == Kind::kCosine && warmup_power_ != 1.0)
      return std::pow(step / warmup_, warmup_power_);
    if (kind_ != Kind::kCosineWarmupWithMinLr) return step / warmup_;
    if (!has_warmup_start_) return (step + 1.0) / warmup_;
    return warmup_start_ + (1.0 - warmup_start_) * step / std::max(1.0, warmup_ - 1.0);
  }
  const double progress = (step - warmup_) / std::max(1.0, total_ - warmup_);
  switch (kind_) {
    case Kind::kLinear:
      return std::max(0.0, (total_ - step) / std::max(1.0, total_ - warmup_));
    case Kind::kCosine:
      return std::max(0.0, half_cosine(cycles_ * progress));
    case Kind::kCosineWithRestarts:
      return progress >= 1.0 ? 0.0 : half_cosine(0.5 * std::fmod(cycles_ * progress, 1.0));
    case Kind::kPolynomial: {
      if (progress >= 1.0) return end_rate_ / learning_rate_;
      const double range = learning_rate_ - end_rate_;
      return (range * std::pow(1.0 - progress, power_) + end_rate_) / learning_rate_;
    }
    case Kind::kInverseSqrt:
      return 1.0 / std::sqrt((step + timescale_ - warmup_) / timescale_);
    case Kind::kCosineWithMinLr:
      if (constant_from_ > 0) {
        const double end = std::floor(total_ * constant_from_);
        const double reached = (std::min(step, end) - warmup_) / std::max(1.0, end - warmup_);
        return std::max(0.0, half_cosine(cycles_ * reached) * (1.0 - min_ratio_)) + min_ratio_;
      }
      return std::max(0.0, half_cosine(cycles_ * progress) * (1.0 - min_ratio_) + min_ratio_);
    case Kind::kCosineWarmupWithMinLr: {
      const double next = (step - warmup_ + 1.0) / std::max(1.0, total_ - warmup_);
      return std::max(0.0, half_cosine(cycles_ * next) * (1.0 - min_ratio_) + min_ratio_);
    }
    default:
      return 1.0;
  }
}

}  // namespace troupe::train
