#pragma once
// Everything that RunState knows, as plain values: what a controller saves, so that another process
// of it goes on where this one was.

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "train/trainer/recovery_timeline.h"
#include "train/trainer/run_inputs.h"
#include "train/trainer/trainer_places.h"

namespace troupe::train {

struct RunMemory {
  enum class RankPhase : std::uint8_t { kAbsent = 0, kReady = 1, kRunning = 2, kFinished = 3 };
  struct Rank {
    RankPhase phase = RankPhase::kAbsent;
    std::uint64_t generation = 0;  // that it is in, or was in last
    bool died_before = false;
    std::optional<TimePoint> absent_since;  // since it was placed, or its death
    std::string waits_for;
    bool has_place = true;  // while it waits: what it waits for is not one
    // The generation in or after which it moved to another node, while no step stood in a later
    // one.
    std::optional<std::uint64_t> moved_in;
    // Since its process was told to be killed because it did not move.
    std::optional<TimePoint> stuck_since;
    std::string stuck_how;  // "stopped", "stuck"
  };
  // A line of events.jsonl that waits for what the memory of a dead process says, and those behind.
  struct HeldEvent {
    RecordEvent event;
    int trainer = -1;  // whose post-mortem it waits for; -1: none
    std::uint64_t incarnation = 0;
    TimePoint until{};
  };
  // A machine that came, or came on another node, since the last step that stood with it.
  struct Newcomer {
    std::int32_t machine = 0;
    std::uint64_t came_in = 0;  // the generation in or after which it came, and which it is not in
    // Generations with it that were lost, as far as is known, for its sake.
    int attempts = 0;
    bool barred = false;  // the others go on without it
  };
  // Whose failure it was that the generation was lost.
  enum class LostBy : std::uint8_t { kRun = 0, kNewcomers = 1, kOneNewcomer = 2 };

  std::vector<Rank> ranks;
  std::vector<TrainerPlaces::Trainer> trainers;
  std::uint64_t generation = 0;
  bool running = false;  // the generation has begun and is not lost
  std::optional<Status> ended;
  std::int64_t last_step = 0;      // the newest that any generation finished
  std::int64_t told_step = 0;      // the newest that was told; less than last_step after a reload
  bool loaded = false;             // some rank told that it has its state in this generation
  bool stepped = false;            // a step was finished in this generation
  int failures = 0;                // generations lost
  std::int64_t farthest_step = 0;  // that any generation finished
  int fruitless_failures = 0;      // in a row, without a step beyond it
  // Since the generation was lost, and since ranks were killed that did not leave it.
  std::optional<TimePoint> lost_at;
  std::optional<TimePoint> killed_at;
  // Ends the run once all have left the lost generation, unless one of them tells a better cause.
  std::optional<Status> verdict;
  std::optional<RecoveryTimeline::Data> recovery;         // under way
  GenerationPurpose purpose = GenerationPurpose::kTrain;  // of the present generation
  // Since SaveRequested: when that was, when the run ends without having saved, and whether rank 0
  // has told that it writes.
  std::optional<TimePoint> save_asked;
  std::optional<TimePoint> save_by;
  bool saving = false;
  std::optional<std::int64_t> saved_step;  // told by rank 0
  std::deque<HeldEvent> held;
  // Of a run whose world may change (RunSettings::ranks_per_machine): the number of its world, and
  // those before that a generation may have to go on from, the newest first.
  std::int32_t world = 0;
  std::vector<World> former;
  bool pausing = false;               // rank 0 was told to pause
  std::vector<std::int32_t> leaving;  // machines that announced their end
  std::vector<Newcomer> newcomers;
  // The controller came without memory, and no step stood since: it does not know which machines
  // lost what they held meanwhile.
  bool found = false;
  // Machines that are at an end of every link that failed in the last `unmet_attempts` lost
  // generations. Nothing died since the last step then, so that every state has its copy.
  std::vector<std::int32_t> unmet;
  int unmet_attempts = 0;
  std::string newcomers_failed;  // what the last attempt with them ended by
  LostBy lost_by = LostBy::kRun;
  // The status with which the run ends once a checkpoint of what its memory holds is written.
  std::optional<Status> ending;
};

// Where all of it is lost: from what the trainers that live tell. Their generation is over for
// them; they and all others meet again. `places`: as the run began with. `generations_before`,
// `steps_before`: at least so many were begun, and finished. `silent_for`: since the last of them
// was. `worlds`: as its files tell (worlds_told()); those that live may know of newer ones.
RunMemory found_memory(TrainerPlaces places, std::span<const TrainerFound> found,
                       std::uint64_t generations_before, TimePoint now, std::int64_t steps_before,
                       std::optional<Duration> silent_for, std::span<const World> worlds);

}  // namespace troupe::train
