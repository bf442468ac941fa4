#pragma once
// Writes where a rank is into memory that others can read when the rank cannot speak any more.
//
// The record lies in a segment that the node keeps: it can be read while the process is stopped,
// and after its death. See progress_record.h for its layout and for reading it.

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/clock.h"
#include "train/model/unit_access.h"
#include "train/progress/operator_times.h"
#include "train/progress/point.h"
#include "train/progress/progress_record.h"

namespace troupe::train {

// The loop's thread calls stage(), unit(), gradient(), operation(); collectives, files and chunks
// may be told from any thread, and take step, stage and unit from what the loop told last. One
// clock reading and a few stores each; no allocation, no lock. A point is written before the
// observer is asked: where a fault strikes, the record tells. What an observer throws leaves
// through the call; a collective or file operation has not begun then.
class ProgressRecorder {
 public:
  // Takes the record over for this process: what it says to be under way is not any more, the ring
  // is continued. `record` and `clock` outlive the recorder; `observer` may be null.
  explicit ProgressRecorder(ProgressRecord& record, PointObserver* observer = nullptr,
                            const Clock& clock = machine_clock());

  // Another generation has another observer. While other threads may tell points, the old one stays
  // alive.
  void observe(PointObserver* observer);
  void begin_generation(std::uint64_t generation);
  // From now on the times of stages, operators and of what enter() names are summed up there, too.
  // `times` outlives the recorder; its thread is the loop's.
  void time_operators(OperatorTimes* times) { times_ = times; }
  // The loop's thread is at something that is no point, until leave() or the next point: only its
  // time is taken.
  void enter(std::string_view name);
  void leave();
  // What was summed up since the last call; nothing where no times are taken.
  std::vector<OperatorSeconds> take_operator_seconds();

  void stage(std::int64_t step, Stage stage);
  // Within forward and backward the stage follows the phase: a pass over the model is one call to
  // whoever told kForward.
  void unit(int unit, Phase phase);
  void gradient(int unit, std::span<float> gradient);
  // variant: what tells operators of one name apart in the times; no part of the point.
  void operation(std::string_view name, std::string_view variant = {});
  void collective(std::string_view name, std::uint64_t sequence, bool begins,
                  std::string_view group = {});
  void chunk(std::uint64_t number, std::string_view moment);
  void file(std::string_view name, bool begins);
  // Bytes that communication has moved so far: moving is progress too.
  void moved(std::uint64_t bytes);
  // A step is finished and took so long by phase: adds them up, for whoever looks for stragglers.
  void step_seconds(std::int64_t step, const StepSeconds& seconds);

  // The step and stage that were told last.
  std::int64_t step() const { return record_.step.load(std::memory_order_relaxed); }
  Stage stage() const { return static_cast<Stage>(record_.stage.load(std::memory_order_relaxed)); }

 private:
  static const Clock& machine_clock();
  // A point here and now.
  Point point(PointKind kind, std::string_view operation = {}, std::uint64_t number = 0) const;
  void reach(const Point& point);
  void write(const Point& point);
  void reach_into(const Point& point, std::atomic<std::uint32_t>& under_way);
  std::int64_t now_ns() const;

  ProgressRecord& record_;
  const Clock& clock_;
  std::atomic<PointObserver*> observer_;
  OperatorTimes* times_ = nullptr;
};

}  // namespace troupe::train
