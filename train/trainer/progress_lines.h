#pragma once
// The driver's end of the controller's progress lines (trainer_messages.h): shows them, follows the
// run to its end, and connects again where the controller's process was replaced.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/report/progress.h"
#include "train/report/run_event.h"
#include "troupe/byte_stream.h"
#include "troupe/unique_fd.h"

namespace troupe::train {

// What the user wants of a run that goes on.
enum class Interrupt {
  kNone,
  kEnd,          // at once
  kSaveThenEnd,  // after the step under way and a checkpoint; wanted again: at once
};

// How the controller said that the run ended.
struct RunEnd {
  Status status;
  std::int64_t failures = 0;
  std::int64_t last_step = 0;
  std::string last_checkpoint;
};

struct ProgressLinesOptions {
  // A new connection of kProgressPurpose, within the deadline. kActorDied, kCancelled: the
  // controller is gone for good, or the driver's cluster closed.
  std::function<Result<ByteStream>(Deadline deadline)> connect;
  // The number of the controller's process, as the head has it: a connection with an older one is
  // left, also where nobody closed it (its machine lost its network). Empty: connections end by
  // themselves.
  std::function<std::uint64_t()> process;
  // Passes a wish on to the controller; called again with it after the controller was replaced.
  std::function<void(Interrupt wish)> tell;
  // Gives the run's data to a controller that could not take them over from the one before.
  std::function<Status()> hand_over;
  // Told each line that tells of the run, with its text for people. Nothing: nobody is.
  std::function<void(const json::Value& line, const std::string& text)> on_line;
  // A descriptor that becomes readable when the user wants something of the run; -1: none.
  int interrupt_fd = -1;
  // What it is; takes it away. Must be there where interrupt_fd is.
  std::function<Interrupt()> take_interrupt;
  // A controller that was told to save and to end, and says nothing for so long, is left.
  Duration stop_timeout = std::chrono::seconds(10);
  // While the run holds a finished model that could not be written: a folder that the user names
  // for it; and passes it on. Nothing: nobody can name one.
  std::function<std::optional<std::string>()> take_save_wish;
  std::function<void(const std::string& folder)> save_to;
  // For a controller whose process was lost: from there to a connection with its successor.
  Duration reconnect_timeout = std::chrono::seconds(60);
};

// One thread. `clock` and `output` outlive it.
class ProgressLines {
 public:
  ProgressLines(ByteStream stream, const Clock& clock, ProgressOutput& output,
                ProgressLinesOptions options)
      : stream_(std::move(stream)), clock_(clock), output_(output), options_(std::move(options)) {}

  // Shows progress until the run has ended. A user who interrupts it waits for the controller's
  // word no longer than ProgressLinesOptions::stop_timeout. kActorDied: the controller is gone
  // without one.
  Result<RunEnd> follow();
  // One look, which waits a moment for news; nothing: the run goes on.
  Result<std::optional<RunEnd>> follow_once();

  // Of this run, as far as they were told.
  const std::vector<RunEvent>& events() const { return events_; }

 private:
  Result<std::optional<RunEnd>> show(const json::Value& line);
  Status take_snapshot(const json::Value& line);
  void show_step(const json::Value& line);
  void show_event(const json::Value& line);
  void say(const std::string& text);
  // Readable or a second has passed.
  void wait();
  void take_wish();
  // False: the connection has ended, or is with a process that was replaced.
  bool read_more();
  bool is_outdated();
  // The end, where the lines read so far hold it.
  Result<std::optional<RunEnd>> show_lines();
  Status connect_again();

  ByteStream stream_;  // invalid while the controller is away
  const Clock& clock_;
  ProgressOutput& output_;
  const ProgressLinesOptions options_;
  std::optional<ProgressReporter> reporter_;
  std::string buffer_;
  std::uint64_t connected_to_ = 0;  // the process; 0: not known yet
  std::vector<RunEvent> events_;
  bool saving_ = false;
  bool model_held_ = false;
  std::optional<TimePoint> stop_by_;
  std::optional<TimePoint> saved_by_;  // later with each line
  std::optional<TimePoint> away_since_;
};

}  // namespace troupe::train
