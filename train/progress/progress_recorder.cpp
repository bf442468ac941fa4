#include "train/progress/progress_recorder.h"

#include <unistd.h>

#include <cmath>

#include "runtime/base/build_options.h"
#include "train/progress/record_words.h"
#include "train/progress/step_phases.h"

namespace troupe::train {

const Clock& ProgressRecorder::machine_clock() {
  static const SystemClock clock;
  return clock;
}

ProgressRecorder::ProgressRecorder(ProgressRecord& record, PointObserver* observer,
                                   const Clock& clock)
    : record_(record), clock_(clock), observer_(observer) {
  record_.in_collective.store(0, std::memory_order_relaxed);
  record_.in_file.store(0, std::memory_order_relaxed);
  record_.step.store(0, std::memory_order_relaxed);
  record_.stage.store(static_cast<std::uint32_t>(Stage::kIdle), std::memory_order_relaxed);
  record_.unit.store(-1, std::memory_order_relaxed);
  record_.changed_at_ns.store(now_ns(), std::memory_order_relaxed);
  record_.pid.store(::getpid(), std::memory_order_relaxed);
  record_.magic.store(kProgressMagic, std::memory_order_release);
}

std::int64_t ProgressRecorder::now_ns() const { return clock_.now().time_since_epoch().count(); }

void ProgressRecorder::observe(PointObserver* observer) {
  observer_.store(observer, std::memory_order_release);
}

void ProgressRecorder::begin_generation(std::uint64_t generation) {
  record_.generation.store(generation, std::memory_order_relaxed);
}

Point ProgressRecorder::point(PointKind kind, std::string_view operation,
                              std::uint64_t number) const {
  return {.kind = kind,
          .step = step(),
          .stage = stage(),
          .unit = record_.unit.load(std::memory_order_relaxed),
          .operation = operation,
          .number = number};
}

void ProgressRecorder::reach(const Point& point) {
  if constexpr (kRecovery) write(point);
  if (PointObserver* observer = observer_.load(std::memory_order_acquire)) observer->reached(point);
}

void ProgressRecorder::write(const Point& point) {
  const std::int64_t now = now_ns();
  const std::uint64_t turn = record_.entries.fetch_add(1, std::memory_order_relaxed);
  ProgressEntry& entry = record_.ring[turn % kProgressRing];
  entry.index.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.at_ns.store(now, std::memory_order_relaxed);
  entry.step.store(point.step, std::memory_order_relaxed);
  entry.number.store(point.number, std::memory_order_relaxed);
  entry.kind_stage.store(
      static_cast<std::uint32_t>(point.kind) * 256 + static_cast<std::uint32_t>(point.stage),
      std::memory_order_relaxed);
  entry.unit.store(point.unit, std::memory_order_relaxed);
  store_name(entry.operation, point.operation, point.group);
  entry.index.store(turn + 1, std::memory_order_release);
  record_.changed_at_ns.store(now, std::memory_order_relaxed);
}

// An observer that throws keeps out of what would have begun.
void ProgressRecorder::reach_into(const Point& point, std::atomic<std::uint32_t>& under_way) {
  under_way.fetch_add(1, std::memory_order_release);
  try {
    reach(point);
  } catch (...) {
    under_way.fetch_sub(1, std::memory_order_release);
    throw;
  }
}

void ProgressRecorder::stage(std::int64_t step, Stage stage) {
  record_.step.store(step, std::memory_order_relaxed);
  record_.stage.store(static_cast<std::uint32_t>(stage), std::memory_order_relaxed);
  record_.unit.store(-1, std::memory_order_relaxed);
  // Passes are told by their operators.
  if (stage == Stage::kForward || stage == Stage::kBackward)
    leave();
  else
    enter(stage_name(stage));
  reach(point(PointKind::kStage));
}

void ProgressRecorder::enter(std::string_view name) {
  if (times_) times_->begin(name, {}, record_.unit.load(std::memory_order_relaxed), now_ns());
}

void ProgressRecorder::leave() {
  if (times_) times_->end(now_ns());
}

std::vector<OperatorSeconds> ProgressRecorder::take_operator_seconds() {
  return times_ ? times_->take(now_ns()) : std::vector<OperatorSeconds>();
}

void ProgressRecorder::unit(int unit, Phase phase) {
  leave();
  const Stage now = stage();
  const Stage meant = phase == Phase::kForward ? Stage::kForward : Stage::kBackward;
  if (now != meant && (now == Stage::kForward || now == Stage::kBackward)) stage(step(), meant);
  record_.unit.store(unit, std::memory_order_relaxed);
  reach(point(PointKind::kUnit));
}

void ProgressRecorder::gradient(int unit, std::span<float> gradient) {
  leave();
  Point here = point(PointKind::kGradient);
  here.unit = unit;
  here.gradient = gradient;
  reach(here);
}

void ProgressRecorder::operation(std::string_view name, std::string_view variant) {
  if (times_) times_->begin(name, variant, record_.unit.load(std::memory_order_relaxed), now_ns());
  reach(point(PointKind::kOperator, name));
}

void ProgressRecorder::collective(std::string_view name, std::uint64_t sequence, bool begins,
                                  std::string_view group) {
  if (begins) {
    store_name(record_.collective, name);
    store_name(record_.collective_group, group);
    record_.collective_sequence.store(sequence, std::memory_order_relaxed);
  } else {
    record_.in_collective.fetch_sub(1, std::memory_order_release);
  }
  Point here = point(begins ? PointKind::kCollective : PointKind::kCollectiveEnd, name, sequence);
  here.group = group;
  begins ? reach_into(here, record_.in_collective) : reach(here);
}

void ProgressRecorder::chunk(std::uint64_t number, std::string_view moment) {
  reach(point(PointKind::kChunk, moment, number));
}

void ProgressRecorder::file(std::string_view name, bool begins) {
  if (begins) {
    store_name(record_.file, name);
  } else {
    record_.in_file.fetch_sub(1, std::memory_order_release);
  }
  const Point here = point(begins ? PointKind::kFile : PointKind::kFileEnd, name);
  begins ? reach_into(here, record_.in_file) : reach(here);
}

void ProgressRecorder::step_seconds(std::int64_t step, const StepSeconds& seconds) {
  for (std::size_t i = 0; i < kStepPhases.size(); ++i)
    record_.phase_ns[i].fetch_add(std::llround(seconds.*kStepPhases[i].seconds * 1e9),
                                  std::memory_order_relaxed);
  record_.timed_step.store(step, std::memory_order_relaxed);
  record_.timed_steps.fetch_add(1, std::memory_order_release);
}

void ProgressRecorder::moved(std::uint64_t bytes) {
  if constexpr (!kRecovery) return;
  record_.moved_bytes.store(bytes, std::memory_order_relaxed);
  record_.moves.fetch_add(1, std::memory_order_relaxed);
  record_.changed_at_ns.store(now_ns(), std::memory_order_relaxed);
}

}  // namespace troupe::train
