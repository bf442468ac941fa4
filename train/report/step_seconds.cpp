#include "train/report/step_seconds.h"

#include <array>
#include <string_view>

#include "train/report/format.h"

namespace troupe::train {
namespace {

constexpr int kSecondsDigits = 6;
// Phases below this share of a step are left out of a line for people.
constexpr double kShareMin = 0.005;

struct Phase {
  std::string_view key;
  std::string_view brief;
  double StepSeconds::*seconds;
};
constexpr std::array<Phase, 7> kPhases = {{{"data", "data", &StepSeconds::data},
                                           {"forward", "fwd", &StepSeconds::forward},
                                           {"backward", "bwd", &StepSeconds::backward},
                                           {"communication", "comm", &StepSeconds::communication},
                                           {"optimizer", "opt", &StepSeconds::optimizer},
                                           {"checkpoint", "save", &StepSeconds::checkpoint},
                                           {"stall", "stall", &StepSeconds::stall}}};
static_assert(sizeof(StepSeconds) == kPhases.size() * sizeof(double));

}  // namespace

double StepSeconds::total() const {
  double sum = 0;
  for (const Phase& phase : kPhases) sum += this->*phase.seconds;
  return sum;
}

StepSeconds& StepSeconds::operator+=(const StepSeconds& other) {
  for (const Phase& phase : kPhases) this->*phase.seconds += other.*phase.seconds;
  return *this;
}

json::Object to_json(const StepSeconds& seconds) {
  json::Object out;
  for (const Phase& phase : kPhases) {
    out[phase.key] = round_to(seconds.*phase.seconds, kSecondsDigits);
  }
  return out;
}

StepSeconds step_seconds_from_json(const json::Value& value) {
  StepSeconds out;
  for (const Phase& phase : kPhases) {
    out.*phase.seconds = json::find_number(value, phase.key).value_or(0);
  }
  return out;
}

json::Object to_json(const std::vector<OperatorSeconds>& operators) {
  json::Object out;
  for (const auto& [name, seconds] : operators) out[name] = round_to(seconds, kSecondsDigits);
  return out;
}

std::vector<OperatorSeconds> operator_seconds_from_json(const json::Value& value) {
  std::vector<OperatorSeconds> out;
  if (!value.is_object()) return out;
  for (const auto& member : value.get_object()) {
    if (const auto seconds = json::find_number(value, member.key()))
      out.push_back({std::string(member.key()), *seconds});
  }
  return out;
}

std::string describe_phases(const StepSeconds& seconds) {
  const double total = seconds.total();
  std::string out;
  if (!(total > 0)) return out;
  for (const Phase& phase : kPhases) {
    const double share = seconds.*phase.seconds / total;
    if (share < kShareMin) continue;
    out += fmt::format("{}{} {:.0f} %", out.empty() ? "" : " ", phase.brief, share * 100);
  }
  return out;
}

StepRates step_rates(std::int64_t tokens, double flops, double gemm_flops_per_s,
                     const StepSeconds& seconds) {
  const double total = seconds.total();
  StepRates rates;
  if (!(total > 0)) return rates;
  rates.tokens_per_s = static_cast<double>(tokens) / total;
  rates.gflops = flops / total / 1e9;
  if (gemm_flops_per_s > 0) rates.gemm_share = flops / total / gemm_flops_per_s;
  return rates;
}

}  // namespace troupe::train
