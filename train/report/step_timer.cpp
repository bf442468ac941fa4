#include "train/report/step_timer.h"

#include <utility>

#include "runtime/base/check.h"
#include "train/report/format.h"

namespace troupe::train {
namespace {

constexpr int kSecondsDigits = 6;
// Phases below this share of a step are left out of a line for people.
constexpr double kShareMin = 0.005;

struct PhaseName {
  std::string_view key;
  std::string_view brief;
};
// By StepPhase.
constexpr std::array<PhaseName, kStepPhaseCount> kPhaseNames = {{{"data", "data"},
                                                                 {"forward", "fwd"},
                                                                 {"backward", "bwd"},
                                                                 {"communication", "comm"},
                                                                 {"optimizer", "opt"},
                                                                 {"checkpoint", "save"},
                                                                 {"stall", "stall"}}};

StepPhase phase_at(std::size_t index) { return static_cast<StepPhase>(index); }

}  // namespace

std::string_view step_phase_name(StepPhase phase) {
  return kPhaseNames[static_cast<std::size_t>(phase)].key;
}

double& StepSeconds::of(StepPhase phase) {
  switch (phase) {
    case StepPhase::kData:
      return data;
    case StepPhase::kForward:
      return forward;
    case StepPhase::kBackward:
      return backward;
    case StepPhase::kCommunication:
      return communication;
    case StepPhase::kOptimizer:
      return optimizer;
    case StepPhase::kCheckpoint:
      return checkpoint;
    case StepPhase::kStall:
      return stall;
  }
  TROUPE_CHECK(false, "phase {}", static_cast<int>(phase));
  return stall;
}

double StepSeconds::of(StepPhase phase) const { return const_cast<StepSeconds*>(this)->of(phase); }

double StepSeconds::total() const {
  return data + forward + backward + communication + optimizer + checkpoint + stall;
}

StepSeconds& StepSeconds::operator+=(const StepSeconds& other) {
  for (std::size_t i = 0; i < kStepPhaseCount; ++i) of(phase_at(i)) += other.of(phase_at(i));
  return *this;
}

json::Object to_json(const StepSeconds& seconds) {
  json::Object out;
  for (std::size_t i = 0; i < kStepPhaseCount; ++i) {
    out[step_phase_name(phase_at(i))] = round_to(seconds.of(phase_at(i)), kSecondsDigits);
  }
  return out;
}

StepSeconds step_seconds_from_json(const json::Value& value) {
  StepSeconds out;
  for (std::size_t i = 0; i < kStepPhaseCount; ++i) {
    out.of(phase_at(i)) = json::find_number(value, step_phase_name(phase_at(i))).value_or(0);
  }
  return out;
}

std::string describe_phases(const StepSeconds& seconds, bool brief) {
  const double total = seconds.total();
  std::string out;
  if (!(total > 0)) return out;
  for (std::size_t i = 0; i < kStepPhaseCount; ++i) {
    const double share = seconds.of(phase_at(i)) / total;
    if (share < kShareMin) continue;
    if (!out.empty()) out += brief ? " " : ", ";
    out +=
        fmt::format("{} {:.0f} %", brief ? kPhaseNames[i].brief : kPhaseNames[i].key, share * 100);
  }
  return out;
}

StepTimer::StepTimer(const Clock& clock) : clock_(clock), since_(clock.now()) {}

StepPhase StepTimer::enter(StepPhase phase) {
  const TimePoint now = clock_.now();
  seconds_.of(phase_) += std::chrono::duration<double>(now - since_).count();
  since_ = now;
  return std::exchange(phase_, phase);
}

StepSeconds StepTimer::take() {
  enter(phase_);
  return std::exchange(seconds_, StepSeconds());
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
