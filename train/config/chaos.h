#pragma once
// Faults that a run injects into itself: the text of `troupe.chaos` and `--chaos`.
//
//   fault@key=value,key=value;fault@…      kill@step=40,rank=1
//
// | fault | keys |
// | --- | --- |
// | kill | step (required), rank (0), phase (forward), generation (0) |
//
// A fault fires once, in the incarnation of the run that its `generation` names: 0 is the first,
// and each restart counts one up, so that a killed run is not killed again at the same step.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::train {

// Where inside a step a fault strikes.
enum class ChaosPhase { kBegin, kForward, kBackward, kCommunication, kOptimizer, kCheckpoint };
std::string_view chaos_phase_name(ChaosPhase phase);

struct ChaosFault {
  std::string fault = "kill";
  std::int64_t step = 0;  // from 1, as steps are counted in logs
  std::int64_t rank = 0;
  ChaosPhase phase = ChaosPhase::kForward;
  std::int64_t generation = 0;
  friend bool operator==(const ChaosFault&, const ChaosFault&) = default;
};

// An empty text is no fault. Errors name the piece: "'kill@step=x': step: 'x' is no whole number".
Result<std::vector<ChaosFault>> parse_chaos(std::string_view text);
// The text that parses to the same faults; every key written out.
std::string chaos_text(const std::vector<ChaosFault>& faults);

// Whether `fault` strikes at this point.
bool strikes(const ChaosFault& fault, std::int64_t step, std::int64_t rank, ChaosPhase phase,
             std::int64_t generation);

}  // namespace troupe::train
