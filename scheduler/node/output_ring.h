#pragma once
// The last lines of an actor's output, in a memory file: what the node's keeper holds, and hands to
// the daemon after one that was killed.
//
// File: a page with a header of five little-endian u64 (magic "TRPOUT01", capacity, bytes written,
// lines written, where the present process's output begins), then `capacity` bytes as a ring of
// lines with their ends. Bytes are written before the count that covers them: whoever reads after a
// kill finds whole lines.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/memory/segment.h"

namespace troupe::scheduler {

// Not thread-safe.
class OutputRing {
 public:
  static Result<OutputRing> create();
  // kDataLoss where the file is no such ring.
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
  std::uint64_t line_count() const;
  // For the keeper; stays the ring's.
  int fd() const { return segment_.fd(); }

 private:
  explicit OutputRing(memory::Segment segment) : segment_(std::move(segment)) {}
  std::uint64_t load(std::size_t index) const;
  void store(std::size_t index, std::uint64_t value);
  char* ring();
  const char* ring() const;

  memory::Segment segment_;
};

}  // namespace troupe::scheduler
