#pragma once
// What the controller of a training run knows and decides: a pure state machine.
//
// Trainers come alive, die, finish steps, leave a generation; the answer is what to do now. No
// actors, no clock, no files: the controller actor feeds it and carries out its commands, tests and
// the simulator run it as it is.
//
// A *generation* is one communicator among all ranks, from its begin to its end by completion or by
// the first failure. After a failure every rank must have left the old generation and be alive
// again before the next one begins: two generations never step at once.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace troupe::train {

struct RunSettings {
  int world_size = 1;
  // The run ends when so many generations in a row were lost without a step further than any
  // before.
  int fruitless_failures_max = 3;
  // MAX_RESTARTS: the run ends at the failure after so many, whatever was finished between.
  std::optional<int> restarts_max;
  // The run ends when a rank is without a process for so long, after its place was found or after
  // its process died: nothing can take its place.
  Duration respawn_timeout = std::chrono::seconds(60);
  // A rank that has not left a lost generation after so long is killed. Longer than a rank may
  // wait for its disk (SaverOptions::write_timeout), which nothing interrupts.
  Duration leave_timeout = std::chrono::minutes(11);
  // How long a run that is to end because ranks lost their peers waits for the word of the rank
  // that knows why. It comes within seconds or not at all.
  Duration last_word_timeout = std::chrono::seconds(10);
  // A run that was asked to save and to stop ends without having saved when no step is finished for
  // so long.
  Duration save_timeout = std::chrono::minutes(30);
};

// --- events
// ----------------------------------------------------------------------------------------

// Trainers are processes' places: an actor each, numbered from 0. The first world_size of them
// begin with the rank of their number, the others are spares. Which rank a trainer has may change
// (trainer_of()); what trainers tell of a generation comes with the rank they had in it.

// Every trainer has its place: their first processes are on their way.
struct TrainersPlaced {};
// The trainer's process answers calls and has the run's data. `incarnation` is its actor's
// generation number.
struct TrainerAlive {
  int trainer = 0;
  std::uint64_t incarnation = 0;
  std::string node;  // where it runs; spares serve ranks of their own node only
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
};
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
  // node's keeper").
  std::string reason;
};
// An optimizer step was finished by the whole generation (told by rank 0).
struct StepFinished {
  std::uint64_t generation = 0;
  std::int64_t step = 0;
};
// The rank left the generation without finishing it: its communicator failed, or it was told to.
struct TrainerStopped {
  int rank = 0;
  std::uint64_t generation = 0;
  Status cause;
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
// The rank cannot go on and a new process could not either: bad input, disk, non-finite loss.
struct TrainerFailed {
  int rank = 0;
  std::uint64_t generation = 0;
  Status cause;
};
// The rank waits for a place: why, in the scheduler's words.
struct TrainerWaiting {
  int rank = 0;
  std::string why;
};
// Told about once a second.
struct TimePassed {};
// The user wants a checkpoint after the step under way, and then the run's end. A failure before
// that is recovered from first.
struct SaveRequested {};
// The user or the driver ends the run.
struct StopRequested {
  Status reason;
};

using RunInput =
    std::variant<TrainersPlaced, TrainerAlive, TrainerDied, PostMortem, TrainerGone, TrainerFormed,
                 TrainerLoaded, StepFinished, TrainerStopped, TrainerFinished, TrainerSaved,
                 TrainerFailed, TrainerWaiting, TimePassed, SaveRequested, StopRequested>;

// --- commands
// --------------------------------------------------------------------------------------

// To every rank: form the communicator of this generation, load, and step.
struct BeginGeneration {
  std::uint64_t generation = 0;
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
// To rank 0, after any BeginGeneration: save after the step under way, and leave with all others.
struct SaveAndStop {};
// A line of events.jsonl. Fields that do not apply are empty.
struct RecordEvent {
  std::string event;  // death, respawn, reload, resume, recovered
  std::uint64_t generation = 0;
  int rank = -1;
  std::string node;
  std::int64_t step = -1;
  std::string text;                         // a sentence for people
  std::optional<std::int64_t> lost_steps;   // recovered only
  std::optional<std::int64_t> recovery_ms;  // recovered only
};
// The run has ended; nothing follows. Its status is saved_stop() where it was asked to save and to
// stop and did.
struct EndRun {
  Status status;
};

using RunCommand =
    std::variant<BeginGeneration, AbortGeneration, KillTrainer, SaveAndStop, RecordEvent, EndRun>;

class RunState {
 public:
  explicit RunState(const RunSettings& settings);

  // What to do about an event. Events of ranks or generations that are past change nothing.
  std::vector<RunCommand> apply(const RunInput& event, TimePoint now);

  bool ended() const { return ended_; }
  std::uint64_t generation() const { return generation_; }
  // The newest step that any generation finished.
  std::int64_t last_step() const { return last_step_; }
  int failures() const { return failures_; }

 private:
  enum class RankPhase { kAbsent, kReady, kRunning, kFinished };
  struct Rank {
    RankPhase phase = RankPhase::kAbsent;
    std::uint64_t incarnation = 0;  // of the living process, or the last one
    bool died_before = false;
    std::optional<TimePoint> absent_since;  // since it was placed, or its death
    std::string waits_for;
  };

  void on(const TrainersPlaced& event, TimePoint now);
  void on(const TrainerAlive& event, TimePoint now);
  void on(const TrainerDied& event, TimePoint now);
  void on(const PostMortem& event, TimePoint now);
  void on(const TrainerGone& event, TimePoint now);
  void on(const TrainerFormed& event, TimePoint now);
  void on(const TrainerLoaded& event, TimePoint now);
  void on(const StepFinished& event, TimePoint now);
  void on(const TrainerStopped& event, TimePoint now);
  void on(const TrainerFinished& event, TimePoint now);
  void on(const TrainerSaved& event, TimePoint now);
  void on(const TrainerFailed& event, TimePoint now);
  void on(const TrainerWaiting& event, TimePoint now);
  void on(const TimePassed& event, TimePoint now);
  void on(const SaveRequested& event, TimePoint now);
  void on(const StopRequested& event, TimePoint now);

  Rank* rank_of(int rank);
  // The current generation is lost: everybody leaves it. Counts the failure; may end the run, at
  // once where this is the cause, not what followed from another rank's failure.
  void lose_generation(const Status& cause, TimePoint now, bool count_again, bool is_cause);
  // ok: the run goes on after its failures so far, of which `cause` was the last.
  Status limit_reached(const Status& cause) const;
  void begin_when_ready();
  // The ranks that still are in the generation, running or lost.
  std::vector<int> running_ranks() const;
  void end_for_absent_rank(TimePoint now);
  void end_late_leaving(TimePoint now);
  // The rank left the generation as it should; true when all have.
  bool leave_in_order(Rank& rank);
  // After a failure: `step` is the first that is finished again.
  void record_recovery(std::int64_t step, TimePoint now);
  void end(Status status);

  RunSettings settings_;
  std::vector<Rank> ranks_;
  std::uint64_t generation_ = 0;
  bool running_ = false;  // the generation has begun and is not lost
  bool ended_ = false;
  std::int64_t last_step_ = 0;
  int failures_ = 0;                // generations lost
  std::int64_t farthest_step_ = 0;  // that any generation finished
  int fruitless_failures_ = 0;      // in a row, without a step beyond it
  // Since the generation was lost, and since ranks were killed that did not leave it.
  std::optional<TimePoint> lost_at_;
  std::optional<TimePoint> killed_at_;
  // Ends the run once all have left the lost generation, unless one of them tells a better cause.
  std::optional<Status> verdict_;
  std::optional<TimePoint> failed_at_;
  std::int64_t step_at_failure_ = 0;
  std::optional<std::int64_t> resumed_at_step_;
  std::optional<TimePoint> save_by_;        // since SaveRequested
  std::optional<std::int64_t> saved_step_;  // told by rank 0
  std::vector<RunCommand> commands_;
};

}  // namespace troupe::train
