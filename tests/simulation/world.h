#pragma once
// What every part of a simulation shares: time, chance, the trace, and what must hold.

#include <fmt/format.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "runtime/base/hash.h"
#include "runtime/base/random.h"
#include "timeline.h"

namespace troupe::simulation {

// Something that must always hold does not.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Violation(what);
}
template <typename... Args>
void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw Violation(fmt::format(text, std::forward<Args>(args)...));
}

class World {
 public:
  // `trace`: what happens is printed.
  explicit World(std::uint64_t seed, bool trace = false) : random(seed), trace_(trace) {}

  // Into the trace: `text` says it to people.
  template <typename... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) {
    const std::string line = fmt::format(text, std::forward<Args>(args)...);
    const auto at = std::chrono::duration_cast<std::chrono::microseconds>(
                        timeline.now() - TimePoint(std::chrono::hours(1)))
                        .count();
    hash = (hash ^ static_cast<std::uint64_t>(at) ^ timeline.events()) * 0x9E3779B97F4A7C15u +
           xxh3_64(std::as_bytes(std::span(line)));
    if (trace_) fmt::print("{:>10.3f} ms  {}\n", static_cast<double>(at) / 1000, line);
  }

  Duration between(double least_ms, double most_ms) {
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double, std::milli>(least_ms + random.unit() * (most_ms - least_ms)));
  }
  // How long a message takes: little, and now and then much more.
  Duration delay() { return random.below(50) == 0 ? between(1, 25) : between(0.02, 0.6); }
  bool chance(std::uint64_t one_in) { return random.below(one_in) == 0; }

  Timeline timeline;
  SeededRandom random;
  std::uint64_t hash = 0;

 private:
  const bool trace_;
};

}  // namespace troupe::simulation
