#include "train/chaos/injector.h"

#include <algorithm>
#include <limits>

#include "train/chaos/point_lines.h"

namespace troupe::train {
namespace {

bool is_write(std::string_view operation) {
  return operation == "append" || operation == "write_at";
}
bool is_sync(std::string_view operation) {
  return operation == "sync" || operation == "sync_directory";
}

// Faults that are answers to a file operation: judge() strikes, not reached().
bool answers_operation(FaultKind kind) {
  return kind == FaultKind::kDiskFull || kind == FaultKind::kFailWrite ||
         kind == FaultKind::kTornWrite || kind == FaultKind::kFailFsync;
}

bool begins(PointKind kind) {
  return kind != PointKind::kCollectiveEnd && kind != PointKind::kFileEnd;
}

}  // namespace

bool matches(const Fault& fault, const Point& point, std::int64_t rank, std::uint64_t generation) {
  if (!strikes_at_point(fault) || !begins(point.kind)) return false;
  if (fault.rank >= 0 && fault.rank != rank) return false;
  if (fault.generation != 0 && static_cast<std::uint64_t>(fault.generation) != generation) {
    return false;
  }
  return (!fault.point || *fault.point == point.kind) &&
         (fault.step == 0 || fault.step == point.step) &&
         (!fault.stage || *fault.stage == point.stage) &&
         (fault.unit < 0 || fault.unit == point.unit) &&
         (fault.operation.empty() || fault.operation == point.operation) &&
         (fault.number < 0 || static_cast<std::uint64_t>(fault.number) == point.number);
}

FaultInjector::FaultInjector(FaultEffects& effects, const Clock& clock)
    : effects_(effects), clock_(clock) {}

void FaultInjector::begin_generation(std::int64_t rank, std::uint64_t generation,
                                     std::vector<PlannedFault> faults) {
  MutexLock lock(mutex_);
  rank_ = rank;
  generation_ = generation;
  armed_.clear();
  for (auto& planned : faults) {
    if (strikes_at_point(planned.fault)) armed_.push_back({.planned = std::move(planned)});
  }
  slow_factor_ = 1;
  full_until_.reset();
}

template <typename Wanted>
std::optional<PlannedFault> FaultInjector::next(const Point& point, Wanted&& wanted) {
  MutexLock lock(mutex_);
  std::optional<PlannedFault> struck;
  // All that count this point count it, also where another one strikes.
  for (Armed& armed : armed_) {
    const Fault& fault = armed.planned.fault;
    if (!wanted(fault) || !matches(fault, point, rank_, generation_)) continue;
    ++armed.hits;
    if (struck || armed.hits < fault.hit || armed.fired >= fault.times) continue;
    ++armed.fired;
    struck = armed.planned;
  }
  return struck;
}

void FaultInjector::reached(const Point& point) {
  stretch(point);
  std::optional<Fault> recorder;
  {
    MutexLock lock(mutex_);
    if (armed_.empty()) return;
    for (const Armed& armed : armed_) {
      const Fault& fault = armed.planned.fault;
      if (fault.kind == FaultKind::kRecord && matches(fault, point, rank_, generation_)) {
        recorder = fault;
      }
    }
    if (recorder) recorder->file += ".rank-" + std::to_string(rank_);
  }
  if (recorder) effects_.write_line(recorder->file, point_line(point));
  const auto struck = next(point, [](const Fault& fault) {
    return fault.kind != FaultKind::kRecord && !answers_operation(fault.kind);
  });
  if (struck && effects_.announce(struck->number)) strike(struck->fault, point);
}

void FaultInjector::strike(const Fault& fault, const Point& point) {
  switch (fault.kind) {
    case FaultKind::kKill:
      return effects_.kill();
    case FaultKind::kStop:
      return effects_.stop();
    case FaultKind::kExit:
      return effects_.exit(static_cast<int>(fault.code));
    case FaultKind::kException:
      return effects_.raise("the injected fault " + fault_text(fault));
    case FaultKind::kSlow: {
      MutexLock lock(mutex_);
      slow_factor_ = fault.factor;
      slow_until_step_ = point.step + fault.steps;
      last_point_ = clock_.now();
      return;
    }
    case FaultKind::kNan:
      if (!point.gradient.empty()) {
        point.gradient.front() = std::numeric_limits<float>::quiet_NaN();
      }
      return;
    default:
      return;
  }
}

void FaultInjector::stretch(const Point& point) {
  // What other threads do does not tell how long the loop computed.
  if (point.kind != PointKind::kStage && point.kind != PointKind::kUnit &&
      point.kind != PointKind::kOperator) {
    return;
  }
  Duration more{0};
  {
    MutexLock lock(mutex_);
    if (slow_factor_ <= 1) return;
    if (point.step >= slow_until_step_) {
      slow_factor_ = 1;
      return;
    }
    const auto elapsed = clock_.now() - last_point_;
    more = std::chrono::duration_cast<Duration>(elapsed * (slow_factor_ - 1));
  }
  effects_.sleep(more);
  MutexLock lock(mutex_);
  last_point_ = clock_.now();
}

FileVerdict FaultInjector::judge(const Point& point, const std::string& path, bool needs_room) {
  {
    MutexLock lock(mutex_);
    if (armed_.empty()) return {};
    if (needs_room && full_until_) {
      if (clock_.now() < *full_until_) {
        return {.kind = FileVerdict::Kind::kFail,
                .error = error(Code::kResourceExhausted,
                               "cannot {} {}: No space left on device (injected)", point.operation,
                               path)};
      }
      full_until_.reset();
    }
  }
  const auto struck = next(point, [&](const Fault& fault) {
    if (path.find(fault.file) == std::string::npos) return false;
    switch (fault.kind) {
      case FaultKind::kDiskFull:
        return needs_room;
      case FaultKind::kFailWrite:
      case FaultKind::kTornWrite:
        return is_write(point.operation);
      case FaultKind::kFailFsync:
        return is_sync(point.operation);
      default:
        return false;
    }
  });
  if (!struck || !effects_.announce(struck->number)) return {};
  const Fault& fault = struck->fault;
  const auto failed = [&](Code code, const char* why) {
    return error(code, "cannot {} {}: {} (injected)", point.operation, path, why);
  };
  if (fault.kind == FaultKind::kDiskFull) {
    MutexLock lock(mutex_);
    full_until_ = clock_.now() + std::chrono::milliseconds(fault.for_ms);
    return {.kind = FileVerdict::Kind::kFail,
            .error = failed(Code::kResourceExhausted, "No space left on device")};
  }
  const Status io = failed(Code::kDataLoss, "Input/output error");
  if (fault.kind == FaultKind::kTornWrite) {
    return {.kind = FileVerdict::Kind::kTear, .error = io, .kill = !fault.then_fail};
  }
  return {.kind = FileVerdict::Kind::kFail, .error = io};
}

}  // namespace troupe::train
