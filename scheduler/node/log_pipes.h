#pragma once
// What an actor's process writes: its last lines in memory, a file or two, and whoever listens.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/process/output.h"

namespace troupe::scheduler {

// Gets every line: the actor's name (or class and id), the line without its end. Loop thread.
using OutputSink = std::function<void(const std::string& actor, std::string_view line)>;

// Loop thread only.
class ActorLog {
 public:
  ActorLog(std::string actor, OutputSink sink) : actor_(std::move(actor)), sink_(std::move(sink)) {}
  // Appends to this file from now on.
  Status add_file(FileSystem& files, const std::string& path);
  void append(std::string_view line);
  // At most the last `bytes_max` bytes, whole lines.
  std::string text(std::size_t bytes_max = static_cast<std::size_t>(-1)) const {
    return tail_.text(bytes_max);
  }

 private:
  const std::string actor_;
  const OutputSink sink_;
  process::LogTail tail_;
  std::vector<std::unique_ptr<WritableFile>> files_;
};

// Standard output and error of a process, both into one log, line by line.
class LogPipes {
 public:
  LogPipes(net::EventLoop& loop, UniqueFd out, UniqueFd err, std::shared_ptr<ActorLog> log)
      : out_(loop, std::move(out), handlers(log)), err_(loop, std::move(err), handlers(log)) {}
  // Takes what has been written by now.
  void drain() {
    out_.drain();
    err_.drain();
  }

 private:
  static process::LineReader::Handlers handlers(const std::shared_ptr<ActorLog>& log) {
    return {.on_line = [log](std::string_view line) { log->append(line); }, .on_end = nullptr};
  }
  process::LineReader out_;
  process::LineReader err_;
};

}  // namespace troupe::scheduler
