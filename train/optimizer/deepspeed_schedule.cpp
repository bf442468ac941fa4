#include "train/optimizer/deepspeed_schedule.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <optional>
#include <string>

namespace troupe::train {
namespace {

Status wrong(std::string_view key, std::string_view what) {
  return error(Code::kInvalidArgument, "scheduler.params.{}: {}", key, what);
}

// Null and "auto" are not given.
const json::Value* given_value(const json::Object& params, std::string_view key) {
  const json::Value* value = params.if_contains(key);
  if (!value || value->is_null()) return nullptr;
  if (value->is_string() && value->get_string() == "auto") return nullptr;
  return value;
}

// A finite number, 0 or more; `out` stays where it is not given.
Status read_param(const json::Object& params, std::string_view key, double& out) {
  if (!given_value(params, key)) return {};
  const auto number = json::find_number(json::Value(params), key);
  if (!number || !std::isfinite(*number) || *number < 0)
    return wrong(key, "expected a number of 0 or more");
  out = *number;
  return {};
}

Status read_flag(const json::Object& params, std::string_view key, bool& out) {
  const json::Value* value = given_value(params, key);
  if (!value) return {};
  if (!value->is_bool()) return wrong(key, "expected true or false");
  out = value->get_bool();
  return {};
}

Status check_params(std::string_view type, const json::Object& params,
                    std::initializer_list<std::string_view> known) {
  for (const auto& entry : params)
    if (std::ranges::find(known, std::string_view(entry.key())) == known.end())
      return error(Code::kInvalidArgument, "scheduler.params: {} has no parameter {}", type,
                   std::string_view(entry.key()));
  return {};
}

// What transformers compares with the run's own.
Status check_match(const json::Object& params, std::string_view key, double value,
                   std::string_view name) {
  double found = value;
  TROUPE_RETURN_IF_ERROR(read_param(params, key, found));
  if (found == value) return {};
  return error(Code::kInvalidArgument,
               "Please correct the following DeepSpeed config values that mismatch "
               "TrainingArguments values:\n- ds scheduler.params.{}={} vs hf {}={}\nThe easiest "
               "method is to set these DeepSpeed config values to 'auto'.",
               key, found, name, value);
}

}  // namespace

Result<DeepSpeedSchedule> DeepSpeedSchedule::make(const json::Value& scheduler,
                                                  double learning_rate, std::int64_t total_steps,
                                                  std::int64_t warmup_steps) {
  DeepSpeedSchedule made;
  made.peak_ = made.most_ = learning_rate;
  const std::string type = json::find_string(scheduler, "type").value_or("");
  const json::Value* const given = json::find(scheduler, "params");
  static const json::Object kNone;
  if (given && !given->is_object())
    return error(Code::kInvalidArgument, "scheduler.params: expected a mapping");
  const json::Object& params = given ? given->get_object() : kNone;
  if (type == "WarmupLR" || type == "WarmupDecayLR") {
    made.kind_ = type == "WarmupLR" ? Kind::kWarmup : Kind::kWarmupDecay;
    TROUPE_RETURN_IF_ERROR(check_params(
        type, params,
        {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps"}));
    TROUPE_RETURN_IF_ERROR(check_match(params, "warmup_max_lr", learning_rate, "learning_rate"));
    TROUPE_RETURN_IF_ERROR(read_param(params, "warmup_min_lr", made.least_));
    TROUPE_RETURN_IF_ERROR(made.read_warmup(params, total_steps, warmup_steps));
  } else if (type == "WarmupCosineLR") {
    made.kind_ = Kind::kWarmupCosine;
    TROUPE_RETURN_IF_ERROR(check_params(type, params,
                                        {"warmup_min_ratio", "cos_min_ratio", "warmup_num_steps",
                                         "warmup_type", "total_num_steps"}));
    TROUPE_RETURN_IF_ERROR(read_param(params, "warmup_min_ratio", made.least_ratio_));
    TROUPE_RETURN_IF_ERROR(read_param(params, "cos_min_ratio", made.end_ratio_));
    TROUPE_RETURN_IF_ERROR(made.read_warmup(params, total_steps, warmup_steps));
  } else if (type == "OneCycle") {
    made.kind_ = Kind::kOneCycle;
    TROUPE_RETURN_IF_ERROR(made.read_one_cycle(params));
  } else if (type == "LRRangeTest") {
    made.kind_ = Kind::kRangeTest;
    TROUPE_RETURN_IF_ERROR(made.read_range_test(params));
  } else {
    return error(Code::kInvalidArgument,
                 "scheduler.type={} is unknown; known: WarmupLR, WarmupDecayLR, WarmupCosineLR, "
                 "OneCycle, LRRangeTest",
                 type.substr(0, 40));
  }
  return made;
}

Status DeepSpeedSchedule::read_warmup(const json::Object& params, std::int64_t total_steps,
                                      std::int64_t warmup_steps) {
  const auto total = static_cast<double>(total_steps), warmup = static_cast<double>(warmup_steps);
  TROUPE_RETURN_IF_ERROR(check_match(params, "total_num_steps", total,
                                     "num_training_steps "
                                     "(calculated)"));
  TROUPE_RETURN_IF_ERROR(check_match(params, "warmup_num_steps", warmup, "warmup_steps"));
  total_ = total;
  // Without the key it is DeepSpeed's default that counts.
  if (params.if_contains("warmup_num_steps")) warmup_ = warmup;
  warmup_ = std::max(2.0, warmup_);
  const json::Value* type = given_value(params, "warmup_type");
  if (!type) return {};
  const std::string_view text = type->is_string() ? std::string_view(type->get_string()) : "";
  if (text != "log" && text != "linear") return wrong("warmup_type", "expected log or linear");
  linear_ = text == "linear";
  return {};
}

Status DeepSpeedSchedule::read_one_cycle(const json::Object& params) {
  TROUPE_RETURN_IF_ERROR(check_params(
      "OneCycle", params,
      {"cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size",
       "cycle_second_step_size", "cycle_first_stair_count", "cycle_second_stair_count",
       "decay_step_size", "cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}));
  bool momentum = true;
  TROUPE_RETURN_IF_ERROR(read_flag(params, "cycle_momentum", momentum));
  if (momentum)
    return error(
        Code::kUnsupported,
        "scheduler.params.cycle_momentum=true is not supported: OneCycle cycles the learning "
        "rate alone here; "
        "set cycle_momentum: false (DeepSpeed's default is true)");
  if (!given_value(params, "cycle_min_lr") || !given_value(params, "cycle_max_lr"))
    return wrong("cycle_min_lr", "OneCycle needs cycle_min_lr and cycle_max_lr");
  TROUPE_RETURN_IF_ERROR(read_param(params, "cycle_min_lr", least_));
  TROUPE_RETURN_IF_ERROR(read_param(params, "cycle_max_lr", most_));
  TROUPE_RETURN_IF_ERROR(read_param(params, "cycle_first_step_size", first_));
  second_ = first_;
  TROUPE_RETURN_IF_ERROR(read_param(params, "cycle_second_step_size", second_));
  TROUPE_RETURN_IF_ERROR(read_param(params, "decay_lr_rate", decay_rate_));
  TROUPE_RETURN_IF_ERROR(read_param(params, "decay_step_size", decay_steps_));
  if (!(first_ > 0) || !(second_ > 0))
    return wrong("cycle_first_step_size", "expected a number above 0");
  return {};
}

Status DeepSpeedSchedule::read_range_test(const json::Object& params) {
  TROUPE_RETURN_IF_ERROR(check_params("LRRangeTest", params,
                                      {"lr_range_test_min_lr", "lr_range_test_step_size",
                                       "lr_range_test_step_rate", "lr_range_test_staircase"}));
  least_ = 1e-3;
  TROUPE_RETURN_IF_ERROR(read_param(params, "lr_range_test_min_lr", least_));
  TROUPE_RETURN_IF_ERROR(read_param(params, "lr_range_test_step_size", interval_));
  TROUPE_RETURN_IF_ERROR(read_param(params, "lr_range_test_step_rate", growth_));
  TROUPE_RETURN_IF_ERROR(read_flag(params, "lr_range_test_staircase", staircase_));
  return interval_ > 0 ? Status() : wrong("lr_range_test_step_size", "expected a number above 0");
}

// How far a warm-up is, before its end.
double DeepSpeedSchedule::warmup_share(double iteration) const {
  return linear_ ? iteration / warmup_ : std::log(iteration + 1.0) / std::log(warmup_);
}

double DeepSpeedSchedule::cycle_rate(double iteration) const {
  const double all = first_ + second_, ratio = first_ / all;
  if (iteration > all) {
    if (decay_steps_ == 0.0 || decay_rate_ == 0.0) return least_;
    return least_ / (1.0 + decay_rate_ * (iteration - all) / decay_steps_);
  }
  const double place = iteration / all - std::floor(iteration / all);
  const double height = place <= ratio ? place / ratio : (place - 1.0) / (ratio - 1.0);
  return least_ + (most_ - least_) * height;
}

double DeepSpeedSchedule::learning_rate(std::int64_t step) const {
  const auto number = static_cast<double>(step);
  const double iteration = number - 1.0;
  switch (kind_) {
    case Kind::kOneCycle:
      return cycle_rate(number);
    case Kind::kRangeTest: {
      const double interval = number / interval_;
      return least_ * (1.0 + growth_ * (staircase_ ? std::floor(interval) : interval));
    }
    case Kind::kWarmup:
    case Kind::kWarmupDecay: {
      if (iteration < 0) return least_;
      double share = 1.0;
      if (iteration < warmup_)
        share = warmup_share(iteration);
      else if (kind_ == Kind::kWarmupDecay)
        share = std::max(0.0, (total_ - iteration) / std::max(1.0, total_ - warmup_));
      return least_ + (most_ - least_) * share;
    }
    case Kind::kWarmupCosine: {
      if (iteration < 0) return 0.0;
      if (iteration < warmup_)
        return peak_ * (least_ratio_ + warmup_share(iteration) * (1.0 - least_ratio_));
      const double turns = (iteration - warmup_ + 1.0) / (total_ - warmup_);
      const double share = (1.0 + std::cos(std::numbers::pi * turns)) / 2.0;
      return peak_ * std::max(0.0, end_ratio_ + (1.0 - end_ratio_) * share);
    }
  }
  return 0.0;
}

}  // namespace troupe::train
