#pragma once
// Where a run is whose controller left no memory: what its trainers and its files say.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/context.h"
#include "actors/handle.h"
#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "train/report/run_event.h"
#include "train/trainer/run_spec.h"
#include "train/trainer/run_state.h"
#include "train/trainer/trainer_actor.h"

namespace troupe::train {

// For one question to one trainer.
inline constexpr std::chrono::seconds kFindTimeout{3};

struct FoundTrainer {
  ActorHandle<TrainerActor> handle;
  std::optional<TrainerStatus> status;  // nothing: it did not answer
};
struct FoundRun {
  std::vector<FoundTrainer> trainers;  // by number
  std::uint64_t generations = 1;       // that may have begun
  std::int64_t steps = 0;              // the newest in the files
  std::optional<Duration> silent_for;  // since a step was written; nothing: none was
};
// Waits for the head and for the trainers' answers, with limits: not on the actor's thread.
FoundRun find_run(ActorContext& context, const RunSpec& spec, FileSystem& files,
                  const Clock& clock);

// The newest generation that `events` tell, at least one: the run has trainers, so its first may
// have begun, and the next one must not begin anew over the checkpoints that are there. The number
// may be one of an earlier run in the same folder: then the count goes on from there, which does no
// harm.
std::uint64_t generations_told(const std::vector<RunEvent>& events, const std::string& run);
// Those that answered and have the run's data.
std::vector<TrainerFound> living_trainers(const std::vector<FoundTrainer>& trainers);

}  // namespace troupe::train
