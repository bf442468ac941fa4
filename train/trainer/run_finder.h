#pragma once
// Where a run is whose controller left no memory: what its trainers and its files say.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "train/report/run_event.h"
#include "train/trainer/controller_session.h"
#include "train/trainer/run_spec.h"
#include "train/trainer/trainer_actor.h"
#include "troupe/actor.h"
#include "troupe/handle.h"

namespace troupe::train {

// For one question to one trainer.
inline constexpr std::chrono::seconds kFindTimeout{3};

struct FoundRun {
  std::vector<ActorHandle<TrainerActor>> trainers;  // by number
  ControllerSession::Found known;                   // of them and of the run's files
};
// Waits for the head and for the trainers' answers, with limits: not on the actor's thread.
FoundRun find_run(ActorContext& context, const RunSpec& spec, FileSystem& files,
                  const Clock& clock);

// The newest generation that `events` tell, at least one: the run has trainers, so its first may
// have begun, and the next one must not begin anew over the checkpoints that are there. The number
// may be one of an earlier run in the same folder: then the count goes on from there, which does no
// harm.
std::uint64_t generations_told(const std::vector<RunEvent>& events, const std::string& run);

}  // namespace troupe::train
