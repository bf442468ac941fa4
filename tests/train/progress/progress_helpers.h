#pragma once
// A record in memory, and what a rank tells to it.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/progress/progress_recorder.h"

namespace troupe::train {

// Zeroed, as a new segment is.
class RecordMemory {
 public:
  ProgressRecord& record() { return progress_record_in(bytes()); }
  std::span<std::byte> bytes() {
    return {reinterpret_cast<std::byte*>(words_.data()), sizeof(ProgressRecord)};
  }
  ProgressSnapshot read() { return read_progress(record()).value(); }

 private:
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(sizeof(ProgressRecord) / 8);
};

}  // namespace troupe::train
