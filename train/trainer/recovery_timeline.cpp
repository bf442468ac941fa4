#include "train/trainer/recovery_timeline.h"

#include <algorithm>

#include "runtime/base/suggest.h"
#include "train/report/run_event.h"

namespace troupe::train {
namespace {

bool add_once(std::vector<std::int32_t>& ranks, int rank) {
  if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return false;
  ranks.push_back(rank);
  return true;
}

std::string join_ranks(const std::vector<std::int32_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", join_numbers(ranks));
}

}  // namespace

std::string short_cause(const Status& death) {
  const std::string& text = death.message();
  for (const char* begin : {"killed by signal ", "exit code "}) {
    const auto at = text.find(begin);
    if (at == std::string::npos) continue;
    const auto end = text.find_first_of(";\n", at);
    return text.substr(at, end == std::string::npos ? end : end - at);
  }
  if (text.find("was lost: its node") != std::string::npos) return "its node was lost";
  if (text.find("failed in its constructor") != std::string::npos) {
    return "failed in its constructor";
  }
  // The head's "TrainActor rank 1 was ended: REASON".
  if (const auto at = text.find(" was ended: "); at != std::string::npos) {
    return text.substr(at + std::string_view(" was ended: ").size());
  }
  return text.substr(0, text.find('\n'));
}

void RecoveryTimeline::silent_before(Duration silence) {
  if (!data_.silence) data_.silence = std::max(Duration::zero(), silence);
}

void RecoveryTimeline::begun() {
  data_ = {.detected_at = data_.detected_at,
           .step = data_.step,
           .faults = std::move(data_.faults),
           .silence = data_.silence,
           .respawned_at = data_.respawned_at};
}

void RecoveryTimeline::formed(int rank, TimePoint now) {
  if (add_once(data_.formed, rank)) data_.formed_at = now;
}

void RecoveryTimeline::loaded(const TrainerLoaded& loaded, TimePoint now) {
  if (!add_once(data_.loaded, loaded.rank)) return;
  data_.loaded_at = now;
  if (!data_.resumed) data_.resumed = loaded.step;
  if (!is_memory(loaded.how)) data_.from = loaded.how;
  if (loaded.finished_step) add_once(data_.finished, loaded.rank);
  data_.begins_again = data_.begins_again || loaded.recomputes > 0;
  if (loaded.how == LoadedFrom::kReplica) {
    data_.reason += (data_.copied.empty() ? "" : ", ") + loaded.reason;
    add_once(data_.copied, loaded.rank);
  } else if (data_.reason.empty()) {
    data_.reason = loaded.reason;
  }
}

std::string RecoveryTimeline::how_resumed() const {
  std::string text = data_.from == LoadedFrom::kMemory       ? "from memory"
                     : data_.from == LoadedFrom::kCheckpoint ? "from a checkpoint"
                                                             : "from the beginning";
  if (!data_.reason.empty() && (data_.from != LoadedFrom::kMemory || data_.copied.empty()))
    text += (data_.from == LoadedFrom::kMemory ? " " : ": ") + data_.reason;
  if (!data_.copied.empty()) {
    text += fmt::format("; {} had lost it, and took it over{}{}", join_ranks(data_.copied),
                        data_.reason.empty() ? "" : ": ", data_.reason);
  }
  if (!data_.finished.empty()) {
    text +=
        fmt::format("; {} finished step {}", join_ranks(data_.finished), data_.resumed.value_or(0));
  }
  return text;
}

RecordEvent RecoveryTimeline::recovered(std::int64_t step, TimePoint now) const {
  const std::int64_t lost =
      std::max<std::int64_t>(0, data_.step - data_.resumed.value_or(step - 1));
  // Going back to a checkpoint, whatever was under way begins again.
  const bool again = data_.begins_again || data_.from != LoadedFrom::kMemory;
  RecoveryTimes times;
  times.detected_after = data_.silence;
  TimePoint reached = data_.detected_at;
  const auto part = [&](std::optional<TimePoint> at, std::optional<Duration>& taken) {
    if (!at || *at < reached) return;
    taken = *at - reached;
    reached = *at;
  };
  part(data_.respawned_at, times.respawn);
  part(data_.formed_at, times.reform);
  part(data_.loaded_at, times.attach);
  part(now, times.first_step);
  times.whole = data_.silence.value_or(Duration::zero()) + (now - data_.detected_at);
  std::vector<std::string> causes;
  for (const auto& fault : data_.faults) {
    causes.push_back(fault.rank < 0 ? fault.cause
                                    : fmt::format("rank {}: {}", fault.rank, fault.cause));
  }
  RecordEvent event{.event = events::kRecovered,
                    .rank = data_.faults.size() == 1 ? data_.faults.front().rank : -1,
                    .step = step,
                    .cause = join_words(causes, "; "),
                    .times = times,
                    .lost_steps = lost,
                    .recomputed_steps = lost + (again ? 1 : 0),
                    .at = now};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(times.whole).count();
  event.text = fmt::format(
      "step {} stands {} ms after the failure; {} finished steps were computed "
      "again",
      step, ms, lost);
  return event;
}

}  // namespace troupe::train
