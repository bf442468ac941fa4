#include "train/optimizer/plateau.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace troupe::train {

Result<PlateauRule> PlateauRule::read(const json::Object& kwargs) {
  PlateauRule rule;
  for (const auto& member : kwargs) {
    const std::string key(member.key());
    const json::Value& value = member.value();
    if (value.is_null() || key == "verbose") continue;
    const auto wrong = [&](std::string_view expected) {
      return error(Code::kInvalidArgument, "lr_scheduler_kwargs.{}: expected {}", key, expected);
    };
    if (key == "mode" || key == "threshold_mode") {
      const std::string_view one = key == "mode" ? "max" : "abs",
                             other = key == "mode" ? "min" : "rel";
      const std::string_view text = value.is_string() ? std::string_view(value.get_string()) : "";
      if (text != one && text != other) return wrong(fmt::format("{} or {}", other, one));
      if (key == "mode")
        rule.greater_is_better = text == one;
      else
        rule.is_relative = text == other;
      continue;
    }
    const double number = value.is_number() ? value.to_number<double>() : -1;
    if (!(number >= 0) || !std::isfinite(number)) return wrong("a number that is not negative");
    if (key == "factor") {
      if (number >= 1) return wrong("a number below 1");
      rule.factor = number;
    } else if (key == "patience" || key == "cooldown") {
      if (number > 1e12 || number != std::floor(number)) return wrong("a whole number");
      (key == "patience" ? rule.patience : rule.cooldown) = static_cast<std::int64_t>(number);
    } else if (key == "threshold") {
      rule.threshold = number;
    } else if (key == "min_lr") {
      rule.least = number;
    } else if (key == "eps") {
      rule.epsilon = number;
    } else {
      return error(Code::kInvalidArgument,
                   "lr_scheduler_kwargs.{}: the scheduler reduce_lr_on_plateau has no such "
                   "setting; it has mode, factor, patience, threshold, threshold_mode, cooldown, "
                   "min_lr, eps",
                   key);
    }
  }
  return rule;
}

PlateauState plateau_after(const PlateauRule& rule, PlateauState state, double metric) {
  const double by = rule.greater_is_better ? rule.threshold : -rule.threshold;
  const double bar = rule.is_relative ? state.best * (1 + by) : state.best + by;
  const bool better = state.has_best == 0      ? !std::isnan(metric)
                      : rule.greater_is_better ? metric > bar
                                               : metric < bar;
  if (better) {
    state.best = metric;
    state.has_best = 1;
    state.misses = 0;
  } else {
    ++state.misses;
  }
  if (state.cooldown > 0) {
    --state.cooldown;
    state.misses = 0;
  }
  if (state.misses <= rule.patience) return state;
  state.cooldown = rule.cooldown;
  state.misses = 0;
  const double lower = std::max(state.learning_rate * rule.factor, rule.least);
  if (state.learning_rate - lower > rule.epsilon) state.learning_rate = lower;
  return state;
}

}  // namespace troupe::train
