#pragma once
// How much of an actor's output listeners get: a second's worth of lines and bytes, then nothing
// until the second is over. The node keeps the lines all the same.
//
// Pure; the caller brings the time.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "troupe/output_limits.h"

namespace troupe::scheduler {

using troupe::OutputLimits;

class OutputLimiter {
 public:
  explicit OutputLimiter(OutputLimits limits) : limits_(limits) {}

  // Whether a line of so many bytes may pass. After the first one that may not none may before
  // end_of_window(), so that what is left out lies together.
  bool admit(std::size_t bytes, TimePoint now);

  struct LeftOut {
    std::uint64_t lines = 0;
    std::uint64_t bytes = 0;
  };
  // When what was left out is to be told; nothing: nothing was.
  std::optional<TimePoint> end_of_window() const;
  // To be told before the next line, and at the end of the window. Forgets it.
  LeftOut take_left_out();

 private:
  const OutputLimits limits_;
  std::optional<TimePoint> window_;  // its beginning
  std::uint64_t lines_ = 0;          // passed in it
  std::uint64_t bytes_ = 0;
  bool closed_ = false;  // until it ends
  LeftOut left_out_;
};

// "... 1234 lines (56.0 KiB) left out: …", with where the last ones are.
std::string left_out_sentence(const OutputLimiter::LeftOut& left_out, const std::string& whose);

}  // namespace troupe::scheduler
