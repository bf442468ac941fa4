#pragma once
// One recovery from its first fault to the first step that stands again: what failed, and when what
// was reached. Pure; the times come from outside.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "train/trainer/run_inputs.h"

namespace troupe::train {

// Of what a process died, in few words, from the head's longer ones: "killed by signal 9
// (SIGKILL)", "exit code 3", "its node was lost", "failed in its constructor"; otherwise the first
// line of the message.
std::string short_cause(const Status& death);

class RecoveryTimeline {
 public:
  // One of the failures that the recovery is from: several ranks that die at once are one recovery.
  struct Fault {
    int rank = -1;
    std::string cause;
  };

  // `step`: the last that stood.
  RecoveryTimeline(TimePoint detected_at, std::int64_t step) {
    data_.detected_at = detected_at;
    data_.step = step;
  }

  void add_fault(int rank, std::string cause) { data_.faults.push_back({rank, std::move(cause)}); }
  // How long before its detection the first fault's rank gave its last sign of life.
  void silent_before(Duration silence);
  // Every rank has a process again; a later time replaces an earlier one.
  void respawned(TimePoint now) { data_.respawned_at = now; }
  // A generation began; what earlier attempts told is forgotten.
  void begun();
  void formed(int rank, TimePoint now);
  void loaded(const TrainerLoaded& loaded, TimePoint now);

  TimePoint detected_at() const { return data_.detected_at; }
  const std::vector<Fault>& faults() const { return data_.faults; }
  // The step that the present generation goes on after; nothing: not told yet.
  std::optional<std::int64_t> resumed() const { return data_.resumed; }
  // All of the world's ranks have told that they loaded.
  bool all_loaded(int world_size) const {
    return data_.loaded.size() == static_cast<std::size_t>(world_size);
  }
  // "from memory", "from a checkpoint: rank 1's memory is gone", with who finished a step.
  std::string how_resumed() const;

  // The event `recovered`, at the first step that stands (or the run's end after `step`).
  RecordEvent recovered(std::int64_t step, TimePoint now) const;

  // Plain values: what a controller's successor gets.
  struct Data {
    TimePoint detected_at{};
    std::int64_t step = 0;
    std::vector<Fault> faults;
    std::optional<Duration> silence;
    std::optional<TimePoint> respawned_at;
    std::optional<TimePoint> formed_at;  // by the last rank that told
    std::optional<TimePoint> loaded_at;
    std::vector<std::int32_t> formed;  // ranks
    std::vector<std::int32_t> loaded;
    std::vector<std::int32_t> finished;  // ranks that finished an optimizer phase left behind
    std::vector<std::int32_t> copied;    // ranks that took over the state of one that held the same
    std::optional<std::int64_t> resumed;
    LoadedFrom from = LoadedFrom::kMemory;  // the worst of the ranks'
    bool begins_again = false;              // the step under way
    std::string reason;
  };
  explicit RecoveryTimeline(Data data) : data_(std::move(data)) {}
  const Data& data() const { return data_; }

 private:
  Data data_;
};

}  // namespace troupe::train
