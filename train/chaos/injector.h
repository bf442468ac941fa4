#pragma once
// Strikes a trainer's own process at its points.
//
// One injector lives as long as the process; each generation brings the faults that may still
// strike. Matching is pure; what a fault does goes through FaultEffects, so that tests survive it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "train/chaos/fault.h"
#include "train/progress/point.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

// What faults do to this process. Any thread.
class FaultEffects {
 public:
  virtual ~FaultEffects() = default;
  // Tells the controller that fault `number` of the run's list strikes now, and waits until it
  // knows: a killed rank cannot tell any more. False: it could not be told, the fault must not
  // strike, or it would strike again and again.
  virtual bool announce(std::int32_t number) = 0;
  virtual void kill() = 0;
  virtual void stop() = 0;
  virtual void exit(int code) = 0;
  virtual void raise(const std::string& text) = 0;  // an exception
  virtual void sleep(Duration duration) = 0;
  // Adds a line to a file, at once.
  virtual void write_line(const std::string& path, const std::string& line) = 0;
};

// A fault of a generation's plan, with its number in the run's list.
struct PlannedFault {
  std::int32_t number = 0;
  Fault fault;
};

// What is to become of an operation on a file.
struct FileVerdict {
  enum class Kind : std::uint8_t { kPass, kFail, kTear };
  Kind kind = Kind::kPass;
  Status error;       // kFail, kTear
  bool kill = false;  // kTear: after half is written; else it fails
};

// Asked before each operation on a file.
class FileFaults {
 public:
  virtual ~FileFaults() = default;
  // `point.kind` is kFile. `needs_room`: the operation may fill the disk.
  virtual FileVerdict judge(const Point& point, const std::string& path, bool needs_room) = 0;
  // After the half of a write: ends the process.
  virtual void end_process() = 0;
};

// Whether `fault` is for this rank and generation, and this point is one that it counts.
bool matches(const Fault& fault, const Point& point, std::int64_t rank, std::uint64_t generation);

// Thread-safe.
class FaultInjector final : public PointObserver, public FileFaults {
 public:
  // Both outlive it.
  FaultInjector(FaultEffects& effects, const Clock& clock);

  // Hits are counted anew. Faults that do not strike at points are left out.
  void begin_generation(std::int64_t rank, std::uint64_t generation,
                        std::vector<PlannedFault> faults);

  void reached(const Point& point) override;
  FileVerdict judge(const Point& point, const std::string& path, bool needs_room) override;
  void end_process() override { effects_.kill(); }

 private:
  struct Armed {
    PlannedFault planned;
    std::int64_t hits = 0;
    std::int64_t fired = 0;
  };
  // The first armed fault that `wanted` and strikes at this point now; its times are used up by
  // one.
  template <typename Wanted>
  std::optional<PlannedFault> next(const Point& point, Wanted&& wanted) TROUPE_EXCLUDES(mutex_);
  void strike(const Fault& fault, const Point& point);
  // Stretches the time since the last point of the loop where the rank is slow.
  void stretch(const Point& point);

  FaultEffects& effects_;
  const Clock& clock_;
  Mutex mutex_;
  std::int64_t rank_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::uint64_t generation_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::vector<Armed> armed_ TROUPE_GUARDED_BY(mutex_);
  // The slow fault that is in force: until the step after it.
  double slow_factor_ TROUPE_GUARDED_BY(mutex_) = 1;
  std::int64_t slow_until_step_ TROUPE_GUARDED_BY(mutex_) = 0;
  TimePoint last_point_ TROUPE_GUARDED_BY(mutex_){};
  // The disk is full until then.
  std::optional<TimePoint> full_until_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::train
