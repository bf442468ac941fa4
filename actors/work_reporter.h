#pragma once
// What this process has under way (runtime/wire/work.h), told to the head for those who look:
// within a second of a change, and at most once in it. Sources say that something may have changed;
// while one of them is busy it is looked at without that.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/actor_channel.h"
#include "runtime/wire/work.h"
#include "troupe/detail/mutex.h"

namespace troupe::detail {

class WorkSource {
 public:
  virtual ~WorkSource() = default;
  // Adds what it has under way. Whether that changes without a word of it (WorkReporter::changed).
  virtual bool tell(wire::Work& work) const = 0;
};

// Thread-safe.
class WorkReporter : public std::enable_shared_from_this<WorkReporter> {
 public:
  explicit WorkReporter(std::shared_ptr<const ChannelEnvironment> environment)
      : environment_(std::move(environment)) {}

  void add(std::weak_ptr<const WorkSource> source);
  // For every call and every item: a look at one word while somebody looks anyway. After what has
  // changed can be seen; also under the source's lock.
  void changed() {
    if (!looking_.load(std::memory_order_relaxed)) begin_looking();
  }
  // A pipeline has ended that has delivered so many items.
  void pipeline_ended(std::uint64_t items) { items_of_ended_ += items; }
  std::uint64_t next_pipeline() { return ++pipelines_; }
  void close();

 private:
  void begin_looking() TROUPE_EXCLUDES(mutex_);
  void look_after_locked(Duration pause) TROUPE_REQUIRES(mutex_);
  void look() TROUPE_EXCLUDES(mutex_);  // loop thread

  const std::shared_ptr<const ChannelEnvironment> environment_;
  std::atomic<bool> looking_{false};
  std::atomic<std::uint64_t> items_of_ended_{0};
  std::atomic<std::uint64_t> pipelines_{0};
  Mutex mutex_;
  std::vector<std::weak_ptr<const WorkSource>> sources_ TROUPE_GUARDED_BY(mutex_);
  std::optional<wire::Work> told_ TROUPE_GUARDED_BY(mutex_);
  TimePoint told_at_ TROUPE_GUARDED_BY(mutex_){};
  bool closed_ TROUPE_GUARDED_BY(mutex_) = false;
};

// As much of a text as a line of a table takes.
std::string work_text(std::string text);

}  // namespace troupe::detail
