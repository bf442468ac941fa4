#include "train/progress/straggler_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "train/progress/step_phases.h"

namespace troupe::train {
namespace {

// A rank that was slow stays so until it is nearer to the others than this part of the way.
constexpr double kLeaveShare = 0.5;
// Windows in a row.
constexpr int kWindowsMin = 2;
// Where the others take no time at all.
constexpr double kFactorMax = 1000;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

std::string StragglerReport::to_string() const {
  if (phases.empty())
    return fmt::format("rank {} is as fast as the others again since step {}", rank, since_step);
  std::string slow;
  for (const SlowPhase& phase : phases) {
    slow += slow.empty() ? "" : ", ";
    slow += phase.factor >= kFactorMax
                ? fmt::format("over {:.0f} x slower than the others in {}", kFactorMax, phase.name)
            : slow.empty()
                ? fmt::format("{:.1f} x slower than the others in {}", phase.factor, phase.name)
                : fmt::format("{:.1f} x in {}", phase.factor, phase.name);
  }
  return fmt::format("rank {} is {} since step {}", rank, slow, since_step);
}

StragglerWatch::StragglerWatch(int world_size, const StragglerSettings& settings)
    : settings_(settings) {
  TROUPE_CHECK(world_size > 0 && settings.window_steps > 0 && settings.factor > 1);
  ranks_.resize(static_cast<std::size_t>(world_size));
  for (Rank& rank : ranks_) {
    rank.slow_windows.resize(kStepPhases.size());
    rank.told.resize(kStepPhases.size());
  }
}

std::vector<StragglerReport> StragglerWatch::add(int rank, const ProgressSnapshot& snapshot) {
  Rank& r = ranks_.at(static_cast<std::size_t>(rank));
  const Totals totals{snapshot.seconds, snapshot.timed_steps, snapshot.timed_step};
  if (!r.base || totals.steps < r.now->steps) r.base = totals;
  r.now = totals;
  return window_is_full() ? compare() : std::vector<StragglerReport>();
}

bool StragglerWatch::window_is_full() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return rank.base &&
           rank.now->steps - rank.base->steps >= static_cast<std::uint64_t>(settings_.window_steps);
  });
}

std::vector<StragglerReport> StragglerWatch::compare() {
  // Seconds of a step, (rank, phase); of the whole step, by rank.
  std::vector<std::vector<double>> seconds(ranks_.size());
  std::vector<double> whole(ranks_.size());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    const auto steps = static_cast<double>(rank.now->steps - rank.base->steps);
    for (const StepPhase& phase : kStepPhases) {
      seconds[i].push_back((rank.now->seconds.*phase.seconds - rank.base->seconds.*phase.seconds) /
                           steps);
      whole[i] += seconds[i].back();
    }
  }
  const double step_seconds = median(whole);
  std::vector<StragglerReport> reports;
  for (std::size_t i = 0; i < ranks_.size() && ranks_.size() > 1; ++i) {
    Rank& rank = ranks_[i];
    std::vector<double> factors(kStepPhases.size());
    const std::vector<bool> told_before = rank.told;
    bool slow_before = false, slow_now = false;
    for (std::size_t p = 0; p < kStepPhases.size(); ++p) {
      if (kStepPhases[p].name == "communication") continue;
      std::vector<double> others;
      for (std::size_t j = 0; j < ranks_.size(); ++j)
        if (j != i) others.push_back(seconds[j][p]);
      const double usual = median(others);
      factors[p] = usual > 0 ? std::min(kFactorMax, seconds[i][p] / usual) : kFactorMax;
      const double leave = rank.told[p] ? kLeaveShare : 1;
      const bool slow = factors[p] > 1 + (settings_.factor - 1) * leave &&
                        seconds[i][p] - usual > leave * std::max(settings_.share_min * step_seconds,
                                                                 settings_.seconds_min);
      slow_before |= rank.slow_windows[p] > 0;
      rank.slow_windows[p] = slow ? rank.slow_windows[p] + 1 : 0;
      slow_now |= slow;
      rank.told[p] = slow && (rank.told[p] || rank.slow_windows[p] >= kWindowsMin);
    }
    if (slow_now != slow_before) rank.since_step = rank.base->step + 1;
    if (rank.told != told_before) reports.push_back(report(static_cast<int>(i), factors));
  }
  for (Rank& rank : ranks_) rank.base = rank.now;
  return reports;
}

StragglerReport StragglerWatch::report(int index, const std::vector<double>& factors) const {
  const Rank& rank = ranks_[static_cast<std::size_t>(index)];
  StragglerReport out{.rank = index, .since_step = rank.since_step};
  for (std::size_t p = 0; p < factors.size(); ++p)
    if (rank.told[p]) out.phases.push_back({kStepPhases[p].name, factors[p]});
  return out;
}

}  // namespace troupe::train
