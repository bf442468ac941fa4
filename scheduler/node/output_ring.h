#pragma once
// The last lines of an actor's output, in a memory file: what the node's keeper holds, and hands to
// the daemon after one that was killed.
//
// Two areas of records (runtime/memory/record_memory.h, "TRPOUT02"), each a byte that says what it
// is and what follows it: a line without its end, the mark that another process begins, or, first
// in an area that is begun anew, how many lines were written before (u64, in the machine's order).

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/memory/record_memory.h"
#include "troupe/unique_fd.h"

namespace troupe::scheduler {

// Not thread-safe.
class OutputRing {
 public:
  static Result<OutputRing> create();
  // kDataLoss or kProtocol where the file is no such ring.
  static Result<OutputRing> adopt(UniqueFd fd);

  // A line without its end; what is beyond limits::kLogLineBytesMax is cut.
  void append(std::string_view line);
  // From here on it is the output of another process.
  void begin_process();

  // The lines, each with its end; at most `bytes_max` of them, from the last whole one backwards.
  std::string text(std::size_t bytes_max = static_cast<std::size_t>(-1)) const;
  // The same, of the present process only.
  std::string text_of_process(std::size_t bytes_max) const;
  // How many lines were ever written; text() ends with this one.
  std::uint64_t line_count() const { return lines_; }
  // For the keeper; stays the ring's.
  int fd() const { return records_.fd(); }

 private:
  enum class Kind : std::uint8_t { kLine = 1, kProcess = 2, kLinesBefore = 3 };
  explicit OutputRing(memory::RecordMemory records) : records_(std::move(records)) {}
  void put(Kind kind, std::string_view text);
  std::string text_of(bool process_only, std::size_t bytes_max) const;

  memory::RecordMemory records_;
  std::uint64_t lines_ = 0;
};

}  // namespace troupe::scheduler
