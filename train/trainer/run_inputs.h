#pragma once
// What RunState is told and what it answers: plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/variant.h"

namespace troupe::train {

// --- events

// Trainers are processes' places: an actor each, numbered from 0. The first world_size of them
// begin with the rank of their number, the others are spares. Which rank a trainer has may change
// (trainer_of()); what trainers tell of a generation comes with the rank they had in it.

// Every trainer has its place: their first processes are on their way.
struct TrainersPlaced {};
// So many more trainers have their places, as spares: they get the numbers behind all others.
struct SparesPlaced {
  int count = 0;
};
// The trainer's process answers calls and has the run's data. `incarnation` is its actor's
// generation number.
struct TrainerAlive {
  int trainer = 0;
  std::uint64_t incarnation = 0;
  std::string node;  // where it runs; spares serve ranks of their own node only
  // What it sees of the node's GPUs, where the run is on GPUs; and only ranks of their own.
  std::string gpu = {};
};
// The trainer's process could not be made ready for a rank, and serves none. Of one that has a rank
// it says nothing: what its generation meets is told by that.
struct TrainerUnfit {
  int trainer = 0;
  std::uint64_t incarnation = 0;
  Status cause;
};
// The trainer's process is gone; another one will come.
struct TrainerDied {
  int trainer = 0;
  std::uint64_t incarnation = 0;
  std::string node;
  Status cause;
};
// What the memory of a process that died says (train/progress). Where it is expected
// (RunSettings::post_mortem_timeout), the events of the death wait for it; nothing else does.
struct PostMortem {
  int trainer = 0;
  std::uint64_t incarnation = 0;
  std::optional<TimePoint> last_sign;  // of life; nothing: not known
  std::string doing;                   // "step 41, backward of unit 3"; empty: not known
};
// The trainer's process is gone for good (its node is lost and nothing can take its place).
struct TrainerGone {
  int trainer = 0;
  Status cause;
};
// The rank has met all others: the generation's communicator is there.
struct TrainerFormed {
  int rank = 0;
  std::uint64_t generation = 0;
};
// Where a rank's parameters and optimizer state are from.
enum class LoadedFrom : std::uint8_t {
  kInitial = 0,     // the model's weights, or none: step 0
  kMemory = 1,      // this process's own, or what an earlier process of the rank left
  kCheckpoint = 2,  // read from a checkpoint
  kReplica = 3,     // another rank's, which holds the same
};
// Nothing was read from files.
inline bool is_memory(LoadedFrom from) {
  return from == LoadedFrom::kMemory || from == LoadedFrom::kReplica;
}
// The rank has the parameters and the optimizer state as of `step` in this generation.
struct TrainerLoaded {
  int rank = 0;
  std::uint64_t generation = 0;
  std::int64_t step = 0;  // steps done
  LoadedFrom how = LoadedFrom::kInitial;
  // kMemory: the rank finished an optimizer phase that was left behind; `step` counts it.
  bool finished_step = false;
  // The step that was under way when the generation before was lost and begins again; 0: none.
  std::int64_t recomputes = 0;
  // Not kMemory after a failure: why memory was not enough ("rank 1's memory is gone with its
  // node's keeper"); kReplica: who held or kept it ("rank 2 kept a copy"); kMemory: "of the world
  // before" where that was another one.
  std::string reason;
};
// An optimizer step was finished by the whole generation (told by rank 0).
struct StepFinished {
  std::uint64_t generation = 0;
  std::int64_t step = 0;
};
// How far a rank came in a generation.
enum class Reached : std::uint8_t {
  kNoStep = 0,
  kPrepared = 1,  // it was ready to commit a step, which others may have committed
  kStep = 2,      // it finished one, of which rank 0 may not have told
};
// The rank left the generation without finishing it: its communicator failed, or it was told to.
struct TrainerStopped {
  int rank = 0;
  std::uint64_t generation = 0;
  Status cause;
  Reached reached = Reached::kNoStep;
};
// The rank finished the run's last step and wrote what it had to write.
struct TrainerFinished {
  int rank = 0;
  std::uint64_t generation = 0;
};
// The rank left the generation after the step at which all of it saved a checkpoint, as
// SaveRequested wants. From rank 0: the checkpoint is complete.
struct TrainerSaved {
  int rank = 0;
  std::uint64_t generation = 0;
  std::int64_t step = 0;
};
// Rank 0 of a generation that is to save and to stop begins to write the checkpoint of `step`.
struct TrainerSaving {
  int rank = 0;
  std::uint64_t generation = 0;
  std::int64_t step = 0;
};
// Bytes of that checkpoint went to a disk since this was told last.
struct SaveMoves {};
// The rank cannot go on and a new process could not either: bad input, disk, non-finite loss.
struct TrainerFailed {
  int rank = 0;
  std::uint64_t generation = 0;
  Status cause;
};
// The trainer waits for a place: why, in the scheduler's words; or its process for the run's data.
struct TrainerWaiting {
  int trainer = 0;
  std::string why;
  bool has_place = false;
};
// The rank does not move any more, as its progress record says (train/progress): it is named, and
// its process replaced.
struct TrainerStuck {
  int rank = 0;
  std::uint64_t generation = 0;
  bool stopped = false;  // nothing of the process runs (SIGSTOP); else: one thing does not go on
  Duration silent_for{};
  std::string doing;
  std::vector<int> waited_for_by;  // ranks
};
// No rank moves, and none is to blame: the ranks meet again.
struct GenerationStalled {
  std::uint64_t generation = 0;
  std::string text;
};
// The rank is slower than the others: `text` says by how much, in which phase.
struct TrainerSlow {
  int rank = 0;
  std::int64_t step = 0;
  std::string text;
};
// The rank left the generation after `step`, as PauseAfterStep wants.
struct TrainerPaused {
  int rank = 0;
  std::uint64_t generation = 0;
  std::int64_t step = 0;
};
// The machine of a run whose world may change announces its end.
struct MachineLeaves {
  int machine = 0;
};
// Which trainer has which rank, from one change of the world's size to the next.
struct World {
  std::int32_t number = 0;             // 0: the run's first; each change has the next one
  std::vector<std::int32_t> trainers;  // by rank
};
// Where a trainer is that a new controller found without its predecessor's memory; see
// RunState::adopt_found().
struct TrainerFound {
  int trainer = 0;
  std::uint64_t incarnation = 0;
  std::string node;
  std::uint64_t generation = 0;  // of its newest plan, 0: none
  int rank = -1;                 // in that plan
  bool in_generation = false;    // it has not left it
  std::int64_t step = 0;
  std::string gpu = {};
  bool fit = true;
  World world = {};  // of that plan
  std::vector<World> former = {};
};
// Told about once a second.
struct TimePassed {};
// The user wants a checkpoint and then the run's end, within RunSettings::save_timeout: of the step
// under way, or of the one before where that takes long or a rank was lost.
struct SaveRequested {};
// The user or the driver ends the run.
struct StopRequested {
  Status reason;
};

struct RunInputs
    : Alternatives<TrainersPlaced, SparesPlaced, TrainerAlive, TrainerUnfit, TrainerDied,
                   PostMortem, TrainerGone, TrainerFormed, TrainerLoaded, StepFinished,
                   TrainerStopped, TrainerFinished, TrainerSaved, TrainerSaving, SaveMoves,
                   TrainerFailed, TrainerWaiting, TrainerStuck, GenerationStalled, TrainerSlow,
                   TimePassed, SaveRequested, StopRequested, TrainerPaused, MachineLeaves> {};
using RunInput = Variant<RunInputs>;

// --- commands

// The work of a generation once its ranks have met and have their state.
enum class GenerationPurpose : std::uint8_t {
  kTrain = 0,
  kSave = 1,       // save a checkpoint of the last finished step, and leave
  kSaveAlone = 2,  // the same by rank 0 alone, from its own memory; the others cannot come
};
// To every rank: form the communicator of this generation, load, and step.
struct BeginGeneration {
  std::uint64_t generation = 0;
  std::vector<int> trainers;  // by rank; of kSaveAlone: that of rank 0
  GenerationPurpose purpose = GenerationPurpose::kTrain;
  // The world that it is of, and those before it, the newest first, whose memory may be needed yet.
  World world = {};
  std::vector<World> former = {};
  // Machines that have just come are in it, and it could do without them.
  bool tries_newcomers = false;
};
// To every rank but the dead: leave the generation at once.
struct AbortGeneration {
  std::uint64_t generation = 0;
  Status reason;
};
// End the rank's process, and start another: it does not leave a lost generation.
struct KillTrainer {
  int rank = 0;
  std::string reason;
};
// To rank 0 of a generation that trains: save after the step under way, and leave with all others.
struct SaveAndStop {};
// To rank 0: all ranks leave this generation, which trains, after the step under way, and meet in
// another world.
struct PauseAfterStep {
  std::uint64_t generation = 0;
};
// How long each part of a recovery took; parts that were not told are in the one after. They follow
// each other: together they are the whole.
struct RecoveryTimes {
  std::optional<Duration>
      detected_after;                  // from the last sign of life until the first fault's news
  std::optional<Duration> respawn;     // until every rank had a process
  std::optional<Duration> reform;      // until all ranks had met
  std::optional<Duration> attach;      // until all ranks had their state
  std::optional<Duration> first_step;  // until the first step stood
  Duration whole{};
};
// A line of events.jsonl (names: train/report/run_event.h). Fields that do not apply are empty.
struct RecordEvent {
  std::string event;
  std::uint64_t generation = 0;
  int rank = -1;
  std::string node;
  std::int64_t step = -1;
  std::string text;   // a sentence for people
  std::string cause;  // of what, in few words: "killed by signal 9 (SIGKILL)"
  std::string doing;  // what the rank was doing
  std::vector<int> waited_for_by = {};
  std::optional<double> detected_after_ms;       // of a death or a hang too
  std::optional<RecoveryTimes> times;            // recovered only
  std::optional<std::int64_t> lost_steps;        // recovered only: finished before, undone
  std::optional<std::int64_t> recomputed_steps;  // recovered only: lost ones, and the one under way
  TimePoint at{};                                // when it happened
  std::optional<World> world = {};               // of a change of it: the new one
};
// The run has ended; nothing follows. Its status is saved_stop() where it was asked to save and to
// stop and did.
struct EndRun {
  Status status;
};

struct RunCommands : Alternatives<BeginGeneration, AbortGeneration, KillTrainer, SaveAndStop,
                                  RecordEvent, EndRun, PauseAfterStep> {};
using RunCommand = Variant<RunCommands>;

}  // namespace troupe::train

namespace troupe {
extern template class Variant<train::RunInputs>;
extern template class Variant<train::RunCommands>;
}  // namespace troupe
