#pragma once
// What a child writes: a pipe read line by line, and the last lines kept.

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/types.h"
#include "troupe/unique_fd.h"

namespace troupe::process {

struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};
// Both ends are closed at exec.
Result<Pipe> make_pipe();

// The last lines of an output, bounded. Not thread-safe.
class LogTail {
 public:
  explicit LogTail(std::size_t bytes_max = limits::kLogTailBytes) : bytes_max_(bytes_max) {}
  // A line without its end.
  void append(std::string_view line);
  // The lines, each with its end; at most `bytes_max` of them, from the last whole one backwards.
  std::string text(std::size_t bytes_max = static_cast<std::size_t>(-1)) const;
  bool empty() const { return lines_.empty(); }

 private:
  const std::size_t bytes_max_;
  std::deque<std::string> lines_;
  std::size_t bytes_ = 0;
};

// What has been read of a line, without its end.
struct OutputPiece {
  std::string_view text;  // from the line's beginning
  wire::LineEnd end = wire::LineEnd::kNewline;
  std::size_t shown_bytes = 0;  // of `text`: have been told before, as kOpen
};

// Reads a pipe into lines. Loop thread only.
class LineReader {
 public:
  struct Handlers {
    // A longer line than the limit comes in pieces of that length; one that has no end for a moment
    // comes as far as it is there, and again with more.
    std::function<void(const OutputPiece&)> on_line;
    // Once, last: every writer has closed its end. May be empty.
    std::function<void()> on_end;
  };
  LineReader(net::EventLoop& loop, UniqueFd reader, Handlers handlers,
             std::size_t line_bytes_max = limits::kLogLineBytesMax);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // Takes what is in the pipe now; an unfinished line waits for its end.
  void read_now();
  // The same, and an unfinished line too: to be called when the child has ended, since somebody
  // else may keep the pipe open.
  void drain();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe::process
