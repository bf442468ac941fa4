#pragma once
// What an actor's processes write, one after the other: its last lines in memory, a file or two,
// and whoever listens.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/process/output.h"
#include "runtime/wire/control_messages.h"
#include "scheduler/node/output_ring.h"
#include "scheduler/policy/output_limit.h"

namespace troupe::scheduler {

// Gets the lines: the actor's label, the line without its end. Loop thread.
using OutputSink = std::function<void(const std::string& actor, std::string_view line)>;
// Gets them as they travel to whoever follows the output, with numbers; parts of lines, too. Loop
// thread.
using OutputListener = std::function<void(const wire::OutputLine& line)>;
// One that passes whole lines on; empty where `sink` is.
OutputListener whole_lines(OutputSink sink);

enum class OutputStream { kOut, kError };

// What its lines stand under: the actor's name; its class and rank; its class and id.
std::string output_label(const wire::ActorSpec& spec);
// With whose output its lines are shown: those of a job's own program are not shown among its
// actors', which the program itself repeats.
JobId output_job(const wire::ActorSpec& spec);

// Loop thread only; made as a shared pointer.
class ActorLog : public std::enable_shared_from_this<ActorLog> {
 public:
  // `listener` may be empty. Of more lines than `limits` allow it gets a sentence, within a second;
  // the other places get all of them. Without `ring` the last lines end with this daemon.
  ActorLog(net::EventLoop& loop, const wire::ActorSpec& spec, OutputLimits limits,
           OutputListener listener, std::optional<OutputRing> ring);
  // Appends to this file from now on: whole lines; with `only`, what one stream says, to the byte.
  Status add_file(FileSystem& files, const std::string& path,
                  std::optional<OutputStream> only = std::nullopt);
  // To none of those added so far; one that could not be written is given up anyway.
  void close_files() { files_.clear(); }
  void append(const process::OutputPiece& piece, OutputStream stream = OutputStream::kOut);
  // What follows is the output of this generation's process. Where there was one before a line says
  // so among the kept ones.
  void begin_process(std::uint64_t generation);
  // Tells what was left out and not yet said: the process has ended.
  void flush();
  // At most the last `bytes_max` bytes, whole lines.
  std::string text(std::size_t bytes_max = static_cast<std::size_t>(-1)) const;
  // The same, of the present process, or the last one.
  std::string text_of_process(std::size_t bytes_max) const;
  // The kept lines, as a listener would have got them; the last `lines_max`.
  std::vector<wire::OutputLine> lines(std::size_t lines_max) const;

  const ActorId& actor_id() const { return actor_id_; }
  const JobId& job_id() const { return job_id_; }

 private:
  void keep(std::string_view line);
  // About what came up to the line of this number.
  void tell_notice(std::uint64_t number, std::string text);
  void tell_left_out();
  void write_files(const wire::OutputLine& line, OutputStream stream);
  std::uint64_t line_count() const { return ring_ ? ring_->line_count() : lines_without_ring_; }

  net::EventLoop& loop_;
  const ActorId actor_id_;
  const JobId job_id_;
  const std::string label_;
  const std::string name_;  // what `troupe logs` knows it by
  const OutputListener listener_;
  OutputLimiter limiter_;
  std::uint64_t left_out_last_ = 0;  // number of the last line that was left out
  bool timer_armed_ = false;
  std::optional<OutputRing> ring_;
  process::LogTail tail_;  // where there is no ring
  std::uint64_t lines_without_ring_ = 0;
  struct File {
    std::unique_ptr<WritableFile> file;
    std::string path;
    std::optional<OutputStream> only;
  };
  std::vector<File> files_;
};

// Standard output and error of a process, both into one log, line by line.
class LogPipes {
 public:
  LogPipes(net::EventLoop& loop, UniqueFd out, UniqueFd err, std::shared_ptr<ActorLog> log)
      : out_(loop, std::move(out), handlers(log, OutputStream::kOut)),
        err_(loop, std::move(err), handlers(log, OutputStream::kError)) {}
  // Takes the lines that have been written by now.
  void read_now() {
    out_.read_now();
    err_.read_now();
  }
  // The same, with a last one that has no end: the process has ended.
  void drain() {
    out_.drain();
    err_.drain();
  }

 private:
  static process::LineReader::Handlers handlers(const std::shared_ptr<ActorLog>& log,
                                                OutputStream stream) {
    return {
        .on_line = [log, stream](const process::OutputPiece& piece) { log->append(piece, stream); },
        .on_end = nullptr};
  }
  process::LineReader out_;
  process::LineReader err_;
};

}  // namespace troupe::scheduler
