#pragma once
// The φ accrual failure detector: how unlikely a silence is, by when heartbeats came before.
//
// Hayashibara, Défago, Yared, Katayama, "The φ Accrual Failure Detector" (SRDS 2004): with F the
// normal distribution of the mean and the deviation of the last intervals between heartbeats, and t
// the time since the last one, φ(t) = −log10(1 − F(t)). Whoever suspects at φ = 1 is wrong once in
// 10 silences, at φ = 8 once in 10^8, as far as intervals are distributed so.

#include <array>
#include <cstdint>

#include "runtime/base/timing.h"

namespace troupe::scheduler {

// How many deviations beyond the mean a silence has the given φ (0 < φ < 300).
double deviations_at(double phi);

class PhiAccrual {
 public:
  // Until intervals were seen: heartbeats are expected so far apart, give or take a quarter.
  explicit PhiAccrual(Duration expected_interval = kTiming.heartbeat_interval);

  // Heartbeats begin, or begin again: the time before is no interval.
  void begin(TimePoint now) { last_ = now; }
  void heard(TimePoint now);

  TimePoint last() const { return last_; }
  Duration mean() const;
  // Never less than kDeviationLeast: what has been regular so far may be late by a scheduler's
  // whim.
  Duration deviation() const;
  // The silence that is so many deviations longer than the mean.
  Duration silence(double deviations) const;
  double phi(TimePoint now) const;

  static constexpr Duration kDeviationLeast = std::chrono::milliseconds(100);
  // Those before are forgotten: a minute at two a second.
  static constexpr std::size_t kIntervalsMax = 120;

 private:
  void add(std::int64_t interval_us);

  TimePoint last_{};
  // Sums of whole numbers: adding and taking away again leaves nothing behind. 120 intervals of at
  // most kIntervalMostUs fit.
  static constexpr std::int64_t kIntervalMostUs = 60'000'000;
  std::array<std::int32_t, kIntervalsMax> intervals_us_{};
  std::uint32_t count_ = 0;
  std::uint32_t next_ = 0;
  std::int64_t sum_us_ = 0;
  std::int64_t sum_squares_us2_ = 0;
};

}  // namespace troupe::scheduler
