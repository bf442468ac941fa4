#pragma once
// Follows a run on a thread of its own while its program does something else: a controller whose
// machine was lost asks the driver for the run's data, and all trainers wait for the controller.
// The program may be waiting for one of these trainers.

#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "runtime/base/status.h"
#include "train/trainer/progress_lines.h"
#include "troupe/clock.h"
#include "troupe/detail/mutex.h"
#include "troupe/train/training.h"

namespace troupe::train {

class RunFollower {
 public:
  // What the program is told of a line of the controller's, and of its text for people.
  using MakeEvent =
      std::function<std::optional<TrainingEvent>(const json::Value& line, const std::string& text)>;
  // `lines`: without on_line. No `make_event`: the program wants no events. `clock` outlives it.
  RunFollower(ByteStream progress, const Clock& clock, ProgressLinesOptions lines,
              MakeEvent make_event);
  // The run goes on. Waits for what it does just now for the controller, which has a deadline.
  ~RunFollower();
  RunFollower(const RunFollower&) = delete;
  RunFollower& operator=(const RunFollower&) = delete;

  // Calls `on_event`, on this thread, for what came since the last call and what comes until the
  // run's end; of events that nobody fetches the newest 65,536 stay. kDeadlineExceeded: the run
  // goes on. One thread at a time.
  Result<RunEnd> wait(Deadline deadline, const std::function<void(const TrainingEvent&)>& on_event);

 private:
  // The program shows what it wants itself.
  class NoOutput final : public ProgressOutput {
   public:
    bool is_terminal() const override { return false; }
    int width() const override { return 80; }
    void write(std::string_view) override {}
  };
  ProgressLinesOptions with_events(ProgressLinesOptions lines);
  void follow();

  NoOutput output_;
  const MakeEvent make_event_;
  ProgressLines lines_;  // the thread's
  Mutex mutex_;
  CondVar changed_;
  std::deque<TrainingEvent> events_ TROUPE_GUARDED_BY(mutex_);
  std::optional<Result<RunEnd>> end_ TROUPE_GUARDED_BY(mutex_);
  bool stopping_ TROUPE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace troupe::train
