#include "train/trainer/run_follower.h"

#include <utility>

#include "runtime/base/signal_block.h"

namespace troupe::train {
namespace {

constexpr std::size_t kEventsMax = 65'536;

}  // namespace

RunFollower::RunFollower(ByteStream progress, const Clock& clock, ProgressLinesOptions lines,
                         MakeEvent make_event)
    : make_event_(std::move(make_event)),
      lines_(std::move(progress), clock, output_, with_events(std::move(lines))) {
  const SignalBlock block;  // they are the program's
  thread_ = std::thread([this] { follow(); });
}

RunFollower::~RunFollower() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  thread_.join();
}

ProgressLinesOptions RunFollower::with_events(ProgressLinesOptions lines) {
  if (!make_event_) return lines;
  lines.on_line = [this](const json::Value& line, const std::string& text) {
    auto event = make_event_(line, text);
    if (!event) return;
    MutexLock lock(mutex_);
    if (events_.size() == kEventsMax) events_.pop_front();
    events_.push_back(std::move(*event));
    changed_.notify_all();
  };
  return lines;
}

void RunFollower::follow() {
  for (;;) {
    auto end = lines_.follow_once();
    MutexLock lock(mutex_);
    if (stopping_) return;
    if (end.ok() && !*end) continue;
    end_ = end.ok() ? Result<RunEnd>(std::move(**end)) : Result<RunEnd>(end.status());
    changed_.notify_all();
    return;
  }
}

Result<RunEnd> RunFollower::wait(Deadline deadline,
                                 const std::function<void(const TrainingEvent&)>& on_event) {
  for (;;) {
    std::deque<TrainingEvent> events;
    std::optional<Result<RunEnd>> end;
    {
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, deadline, [&] { return end_ || !events_.empty(); });
      events.swap(events_);
      end = end_;
    }
    for (const TrainingEvent& event : events) on_event(event);
    if (end) return *end;
    if (events.empty() || deadline.passed())
      return error(Code::kDeadlineExceeded, "the run goes on");
  }
}

}  // namespace troupe::train
