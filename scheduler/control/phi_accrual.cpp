#include "scheduler/control/phi_accrual.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troupe::scheduler {
namespace {

// −log10 of the probability that a normal variable lies more than z deviations above its mean.
double phi_at(double z) {
  // Beyond, erfc is too small for a double; Q(z) → exp(−z²/2) / (z·√(2π)).
  constexpr double kFar = 30;
  if (z > kFar) {
    return (z * z / 2 + std::log(z * std::sqrt(2 * std::numbers::pi))) / std::numbers::ln10;
  }
  return -std::log10(std::erfc(z / std::numbers::sqrt2) / 2);
}

}  // namespace

double deviations_at(double phi) {
  double low = -10;
  double high = 40;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (phi_at(middle) < phi ? low : high) = middle;
  }
  return high;
}

PhiAccrual::PhiAccrual(Duration expected_interval) {
  const auto expected_us =
      std::chrono::duration_cast<std::chrono::microseconds>(expected_interval).count();
  add(expected_us - expected_us / 4);
  add(expected_us + expected_us / 4);
}

void PhiAccrual::add(std::int64_t interval_us) {
  const std::int64_t interval = std::clamp<std::int64_t>(interval_us, 0, kIntervalMostUs);
  if (count_ == kIntervalsMax) {
    const std::int64_t oldest = intervals_us_[next_];
    sum_us_ -= oldest;
    sum_squares_us2_ -= oldest * oldest;
  } else {
    ++count_;
  }
  intervals_us_[next_] = static_cast<std::int32_t>(interval);
  next_ = (next_ + 1) % kIntervalsMax;
  sum_us_ += interval;
  sum_squares_us2_ += interval * interval;
}

void PhiAccrual::heard(TimePoint now) {
  add(std::chrono::duration_cast<std::chrono::microseconds>(now - last_).count());
  last_ = now;
}

Duration PhiAccrual::mean() const { return std::chrono::microseconds(sum_us_ / count_); }

Duration PhiAccrual::deviation() const {
  const double mean_us = static_cast<double>(sum_us_) / count_;
  const double variance = static_cast<double>(sum_squares_us2_) / count_ - mean_us * mean_us;
  const auto deviation = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::micro>(std::sqrt(std::max(variance, 0.0))));
  return std::max(deviation, kDeviationLeast);
}

Duration PhiAccrual::silence(double deviations) const {
  return mean() + std::chrono::duration_cast<Duration>(
                      std::chrono::duration<double, std::nano>(deviation()) * deviations);
}

double PhiAccrual::phi(TimePoint now) const {
  const std::chrono::duration<double> beyond = (now - last_) - mean();
  return phi_at(beyond / std::chrono::duration<double>(deviation()));
}

}  // namespace troupe::scheduler
