#pragma once
// Which rank is slower than the others, and in which phase: pure, from the seconds that each rank's
// finished steps took.
//
// All ranks take part in every step, so a slow one shows by what the others wait for it: their
// communication. Phases of its own arithmetic are compared, communication is not.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/progress/progress_record.h"

namespace troupe::train {

struct StragglerSettings {
  // Slower than the median of the others by this factor …
  double factor = 1.5;
  // … and by this share of a step.
  double share_min = 0.05;
  // … and by these seconds of each step: what is shorter is the machine's noise.
  double seconds_min = 0.002;
  // Steps that are compared at once. A rank is slow in two such windows in a row before it is told,
  // so that one long step is none.
  std::int64_t window_steps = 10;
};

// A change of what is known of a rank.
struct StragglerReport {
  struct SlowPhase {
    std::string_view name;  // "backward"; static storage
    double factor = 0;
  };
  int rank = 0;
  std::int64_t since_step = 0;
  std::vector<SlowPhase> phases;  // none: it is as fast as the others again

  // "rank 2 is 2.1 x slower than the others in backward since step 40" / "rank 2 is as fast as the
  // others again since step 80"
  std::string to_string() const;
};

class StragglerWatch {
 public:
  explicit StragglerWatch(int world_size, const StragglerSettings& settings = {});

  // What the rank's record says now: seconds and number of all its finished steps. Totals that go
  // back (a new record) begin anew. Reports what this changed.
  std::vector<StragglerReport> add(int rank, const ProgressSnapshot& snapshot);

 private:
  struct Totals {
    StepSeconds seconds;
    std::uint64_t steps = 0;
    std::int64_t step = 0;
  };
  struct Rank {
    std::optional<Totals> base, now;
    // By phase: windows in a row in which it was slow, and whether that was told.
    std::vector<int> slow_windows;
    std::vector<bool> told;
    std::int64_t since_step = 0;  // of the slow windows
  };

  bool window_is_full() const;
  std::vector<StragglerReport> compare();
  StragglerReport report(int index, const std::vector<double>& factors) const;

  StragglerSettings settings_;
  std::vector<Rank> ranks_;
};

}  // namespace troupe::train
