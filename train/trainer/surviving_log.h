#pragma once
// Lines that outlive the process: an append-only log in a segment that is kept.

#include <string>
#include <string_view>
#include <vector>

#include "train/trainer/surviving_memory.h"

namespace troupe::train {

// Of the run's log history, on the ranks that keep it.
inline constexpr const char* kHistoryName = "history";

// A line counts when append() has returned; one that was half written by a process that was killed
// does not. One thread at a time.
class SurvivingLog {
 public:
  // Continues what a process before this one left, or begins anew. `memory` outlives the log.
  static Result<SurvivingLog> open(SurvivingMemory& memory, std::string name);

  std::vector<std::string> lines() const;
  // `line` has no line break. Grows the segment where it is full. kOutOfMemory.
  Status append(std::string_view line);
  void clear();

 private:
  struct Header;
  SurvivingLog(SurvivingMemory& memory, std::string name, memory::Segment segment)
      : memory_(&memory), name_(std::move(name)), segment_(std::move(segment)) {}
  Header& header() const;
  std::string_view text() const;

  SurvivingMemory* memory_;
  std::string name_;
  mutable memory::Segment segment_;
};

}  // namespace troupe::train
