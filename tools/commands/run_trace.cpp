#include "tools/commands/run_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace troupe::tools {
namespace {

constexpr int kRunProcess = 1;
constexpr TraceEvents::Track kStepTrack{kRunProcess, 1};
constexpr TraceEvents::Track kRecoveryTrack{kRunProcess, 2};
constexpr TraceEvents::Track kRunEventTrack{kRunProcess, 3};
constexpr int kFirstRankThread = 10;

// A moment at which a step stood.
struct Anchor {
  std::int64_t step = 0;
  std::int64_t time_us = 0;
  bool exact = false;  // the step's end; otherwise it ended before
};

std::int64_t microseconds(double seconds) { return std::llround(seconds * 1e6); }

// JSON has no NaN and no infinity.
json::Value number_or_text(double value) {
  if (std::isfinite(value)) return value;
  return json::Value(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

// In the order of steps and times.
std::vector<Anchor> anchors_of(const std::vector<train::RunEvent>& events) {
  std::vector<Anchor> anchors;
  for (const auto& event : events) {
    if (event.step < 0) continue;
    if (!anchors.empty() && event.step < anchors.back().step) continue;
    const bool exact = event.event == train::events::kRecovered;
    // Of one step the first moment that is known, and best its end.
    if (!anchors.empty() && anchors.back().step == event.step && !exact) continue;
    anchors.push_back({event.step, event.unix_time_us, exact});
  }
  return anchors;
}

struct PlacedStep {
  const train::StepRecord* record = nullptr;
  std::int64_t begin_us = 0;
  std::int64_t end_us = 0;
};

std::vector<PlacedStep> place(const std::vector<train::StepRecord>& steps,
                              const std::vector<Anchor>& anchors) {
  std::vector<PlacedStep> placed;
  for (const auto& step : steps) {
    const std::int64_t took = microseconds(step.seconds.total());
    if (took > 0) placed.push_back({&step, 0, took});
  }
  if (placed.empty()) return placed;
  const auto shift = [](PlacedStep& step, std::int64_t begin) {
    step.end_us = begin + (step.end_us - step.begin_us);
    step.begin_us = begin;
  };
  const auto first = std::find_if(anchors.begin(), anchors.end(), [&](const Anchor& anchor) {
    return anchor.step >= placed.front().record->step;
  });
  // Back to back up to the first anchor, and on from there.
  std::size_t next = 0;
  std::int64_t end = 0;
  if (first != anchors.end()) {
    while (next < placed.size() && placed[next].record->step <= first->step) ++next;
    end = first->time_us;
    for (std::size_t i = next; i-- > 0;) {
      shift(placed[i], end - (placed[i].end_us - placed[i].begin_us));
      end = placed[i].begin_us;
    }
    end = first->time_us;
  } else if (!anchors.empty()) {
    end = anchors.back().time_us;
  }
  auto anchor = first;
  for (; next < placed.size(); ++next) {
    // A step that a recovery ended was begun in it, not when the one before it had ended.
    while (anchor != anchors.end() && anchor->step < placed[next].record->step) {
      end = std::max(end, anchor->time_us);
      ++anchor;
    }
    const std::int64_t took = placed[next].end_us - placed[next].begin_us;
    const bool known =
        anchor != anchors.end() && anchor->exact && anchor->step == placed[next].record->step;
    shift(placed[next], known ? std::max(end, anchor->time_us - took) : end);
    end = placed[next].end_us;
  }
  return placed;
}

class RunTrace {
 public:
  explicit RunTrace(const std::string& name) {
    trace_.name_process(kRunProcess, fmt::format("run {}", name));
    trace_.name_thread(kStepTrack, "steps (parts: rank 0's totals)");
    trace_.name_thread(kRecoveryTrack, "recoveries");
    trace_.name_thread(kRunEventTrack, "events");
  }
  void take(const PlacedStep& step);
  void take(const train::RunEvent& event);
  json::Value finish(json::Object other_data) { return trace_.finish(std::move(other_data)); }

 private:
  void recovery(const train::RunEvent& event);
  TraceEvents::Track track_of(const train::RunEvent& event);

  TraceEvents trace_;
  std::set<int> ranks_;
};

void RunTrace::take(const PlacedStep& placed) {
  const train::StepRecord& step = *placed.record;
  json::Object args{{"loss", number_or_text(step.loss)},
                    {"grad_norm", number_or_text(step.grad_norm)},
                    {"learning_rate", step.learning_rate},
                    {"tokens", step.tokens}};
  if (step.rates.tokens_per_s > 0) args["tokens_per_s"] = step.rates.tokens_per_s;
  if (!step.skipped.empty()) args["skipped"] = step.skipped;
  trace_.span(kStepTrack, fmt::format("step {}", step.step), "step", placed.begin_us, placed.end_us,
              std::move(args));
  std::int64_t begin = placed.begin_us;
  const train::StepSeconds& s = step.seconds;
  for (const auto& [name, seconds] :
       {std::pair("data", s.data), std::pair("forward", s.forward),
        std::pair("backward", s.backward), std::pair("communication", s.communication),
        std::pair("optimizer", s.optimizer), std::pair("checkpoint", s.checkpoint),
        std::pair("stall", s.stall)}) {
    const std::int64_t end = std::min(begin + microseconds(seconds), placed.end_us);
    if (end > begin) trace_.span(kStepTrack, name, "part", begin, end);
    begin = std::max(begin, end);
  }
  if (std::isfinite(step.loss)) trace_.counter(kRunProcess, "loss", placed.end_us, step.loss);
  if (step.rates.tokens_per_s > 0) {
    trace_.counter(kRunProcess, "tokens_per_s", placed.end_us, step.rates.tokens_per_s);
  }
}

TraceEvents::Track RunTrace::track_of(const train::RunEvent& event) {
  if (event.rank < 0) return kRunEventTrack;
  const TraceEvents::Track track{kRunProcess, kFirstRankThread + event.rank};
  if (ranks_.insert(event.rank).second) {
    trace_.name_thread(track, fmt::format("rank {}", event.rank));
  }
  return track;
}

// Its parts follow each other and make the whole (run_event.h).
void RunTrace::recovery(const train::RunEvent& event) {
  if (!event.recovery_ms) return;
  const std::int64_t end = event.unix_time_us;
  std::int64_t begin = end - microseconds(*event.recovery_ms / 1000);
  json::Object args{{"cause", event.cause}, {"step", event.step}};
  if (event.recomputed_steps) args["recomputed_steps"] = *event.recomputed_steps;
  if (event.lost_steps) args["lost_steps"] = *event.lost_steps;
  trace_.span(kRecoveryTrack, fmt::format("recovery to generation {}", event.generation),
              "recovery", begin, end, std::move(args));
  for (const auto& [name, ms] :
       {std::pair("noticed", event.detected_after_ms), std::pair("new processes", event.respawn_ms),
        std::pair("memory", event.attach_ms), std::pair("meeting", event.reform_ms),
        std::pair("first step", event.first_step_ms)}) {
    if (!ms || *ms <= 0) continue;
    const std::int64_t part_end = std::min(begin + microseconds(*ms / 1000), end);
    trace_.span(kRecoveryTrack, name, "recovery", begin, part_end);
    begin = part_end;
  }
}

void RunTrace::take(const train::RunEvent& event) {
  json::Object args{{"generation", event.generation}};
  if (event.step >= 0) args["step"] = event.step;
  for (const auto& [key, text] :
       {std::pair("cause", &event.cause), std::pair("doing", &event.doing),
        std::pair("fault", &event.fault), std::pair("path", &event.path),
        std::pair("node", &event.node)}) {
    if (!text->empty()) args[key] = *text;
  }
  if (event.code) args["code"] = *event.code;
  trace_.instant(track_of(event), event.event, "run", event.unix_time_us, std::move(args),
                 event.event == train::events::kDeath || event.event == train::events::kHang);
  if (event.event == train::events::kRecovered) recovery(event);
}

}  // namespace

json::Value run_trace(const std::string& name, const std::vector<train::RunEvent>& events,
                      const std::vector<train::StepRecord>& steps) {
  RunTrace trace(name);
  const auto placed = place(steps, anchors_of(events));
  for (const auto& step : placed) trace.take(step);
  for (const auto& event : events) trace.take(event);
  return trace.finish({{"source", "troupe timeline"},
                       {"run", name},
                       {"steps", steps.size()},
                       {"steps_without_times", steps.size() - placed.size()}});
}

}  // namespace troupe::tools
