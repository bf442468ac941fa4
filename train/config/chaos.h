#pragma once
// Faults that a run injects into itself: the text of `troupe.chaos` and `--chaos`.
//
//   fault@key=value,key=value;fault@…      kill@step=40,rank=1
//
// | fault | keys |
// | --- | --- |
// | kill | step (required), rank (0), phase (forward), generation (any) |
//
// A fault fires once in a run: when the step is computed again after the recovery, it does not
// strike again (the controller remembers). `generation` restricts it to one forming of the ranks,
// counted from 1.

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
  std::int64_t generation = 0;  // 0: any
  friend bool operator==(const ChaosFault&, const ChaosFault&) = default;
};

// An empty text is no fault. Errors name the piece: "'kill@step=x': step: 'x' is no whole number".
Result<std::vector<ChaosFault>> parse_chaos(std::string_view text);
// The text that parses to the same faults; every key written out.
std::string chaos_text(const std::vector<ChaosFault>& faults);

// Whether `fault`, if it has not fired yet, strikes at this point.
bool strikes(const ChaosFault& fault, std::int64_t step, std::int64_t rank, ChaosPhase phase,
             std::int64_t generation);

}  // namespace troupe::train
