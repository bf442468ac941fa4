#pragma once
// An actor's process in the scheduler's simulation: it starts, answers calls, saves its state now
// and then, ends when it is asked to.

#include <memory>
#include <utility>
#include <vector>

#include "cluster.h"

namespace troupe::simulation {

// One call of a caller, over a connection of its own. The connection ends when nobody holds its
// descriptor any more; a call has one answer or one end.
struct CallRecord {
  TimePoint began;
  bool answered = false;
  bool over = false;
};

class CallConnection final : public CallerConnection {
 public:
  explicit CallConnection(std::weak_ptr<CallRecord> call, std::function<void(bool answered)> ended)
      : call_(std::move(call)), ended_(std::move(ended)) {}
  ~CallConnection() override { end(false); }
  void answer() { end(true); }

 private:
  void end(bool answered) {
    const auto call = call_.lock();
    if (!call || std::exchange(told_, true)) return;
    ended_(answered);
  }
  const std::weak_ptr<CallRecord> call_;  // gone: nobody is there any more
  const std::function<void(bool)> ended_;
  bool told_ = false;
};

class Worker final : public Process {
 public:
  using Process::Process;

 private:
  struct SavedState final : Memory {};

  void start(MemoryPtr saved) override;
  void attached(std::uint64_t, const Status&, MemoryPtr) override {}
  void asked_to_stop(Duration grace) override;
  void connected(MemoryPtr memory) override;
  void on_death() override { callers_.clear(); }

  std::vector<MemoryPtr> callers_;
};

}  // namespace troupe::simulation
