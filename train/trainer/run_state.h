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
//
// A rank whose process dies goes on with a spare of its node where one lives (trainer_places.h), or
// with the next process of its trainer. Either finds the rank's memory there.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "train/trainer/recovery_timeline.h"
#include "train/trainer/run_inputs.h"
#include "train/trainer/run_memory.h"
#include "train/trainer/trainer_places.h"

namespace troupe::train {

struct RunSettings {
  int world_size = 1;
  int spares = 0;  // all nodes together
  // The run ends when so many generations in a row were lost without a step further than any
  // before.
  int fruitless_failures_max = 3;
  // troupe.max_restarts or MAX_RESTARTS, as torchrun's --max-restarts: the run ends at the failure
  // after so many, whatever was finished between.
  std::optional<int> restarts_max;
  // The run ends when a rank is without a process for so long, after its place was found or after
  // its process died: nothing can take its place (troupe.join_timeout_s).
  Duration respawn_timeout = std::chrono::seconds(60);
  // How often it is said again which ranks are awaited.
  Duration waiting_told_every = std::chrono::seconds(10);
  // A rank that has not left a lost generation after so long is killed. Longer than a rank may
  // wait for its disk (SaverOptions::write_timeout), which nothing interrupts.
  Duration leave_timeout = std::chrono::minutes(11);
  // How long a run that is to end because ranks lost their peers waits for the word of the rank
  // that knows why. It comes within seconds or not at all.
  Duration last_word_timeout = std::chrono::seconds(10);
  // A run that was asked to save and to stop ends without having saved when so long passes before
  // the checkpoint is begun, or without a byte of it being written (troupe.stop_timeout_s).
  Duration save_timeout = std::chrono::seconds(10);
  // What it does on the way, each in a part of that time: it gives up the step under way, to save
  // the one before; it kills ranks that do not leave the lost generation.
  Duration step_patience() const { return save_timeout * 3 / 10; }
  // How long the event of a death waits for PostMortem; 0: none will come. The recovery never
  // waits.
  Duration post_mortem_timeout{0};
  // A stuck rank whose process has not ended so long after it was to be killed is killed again: the
  // head may not have been there.
  Duration kill_again_after = std::chrono::seconds(5);
  // > 0: the world may change. `world_size` is that of all machines that there may be; machine m
  // has the trainers from m · ranks_per_machine on, and ranks go by the machines' numbers.
  int ranks_per_machine = 0;
  int machines_min = 1;             // fewer are waited for
  std::vector<int> first_machines;  // that the run begins with
  // So long after its ranks died a machine that nothing takes the place of is done without.
  Duration shrink_after = std::chrono::seconds(1);
};

class RunState {
 public:
  explicit RunState(const RunSettings& settings);
  // As another one was: for the successor of a controller. Times of another clock (the controller
  // came back on another machine) are those of now. apply() goes on; commands() are given anew.
  static RunState adopt(const RunSettings& settings, RunMemory memory, TimePoint now);
  // Where that is lost: as found_memory() has it.
  static RunState adopt_found(const RunSettings& settings, std::span<const TrainerFound> found,
                              std::uint64_t generations_before, TimePoint now,
                              std::int64_t steps_before = 0,
                              std::optional<Duration> silent_for = {},
                              std::span<const World> worlds = {});

  // What to do about an event. Events of processes or generations that are past change nothing.
  std::vector<RunCommand> apply(const RunInput& event, TimePoint now);
  // What was to be done and may not have been when a controller died: begin, abort, kill, end. To
  // do them twice does no harm.
  std::vector<RunCommand> commands_again() const;

  const RunMemory& memory() const;
  bool ended() const { return known_.ended.has_value(); }
  // A checkpoint is being written before the run ends.
  bool saving() const { return known_.saving && !ended(); }
  bool running() const { return known_.running; }
  // The present generation has finished a step.
  bool steps() const { return known_.running && known_.stepped; }
  std::uint64_t generation() const { return known_.generation; }
  // A generation runs that followed a failure, and has not finished a step yet.
  bool recovering() const { return known_.running && recovery_.has_value(); }
  // The newest step that any generation finished.
  std::int64_t last_step() const { return known_.last_step; }
  // Whether StepFinished would tell nothing new: it is repeated, or of a generation that is past.
  bool repeats(const StepFinished& event) const;
  int failures() const { return known_.failures; }
  int trainer_of(int rank) const { return places_.trainer_of(rank); }
  const TrainerPlaces& places() const { return places_; }
  // The world of the present generation, or of the next one.
  World world() const { return {known_.world, places_.by_rank()}; }
  int world_size() const { return places_.world_size(); }
  // It is in the world, or in one before whose memory may be needed yet.
  bool has_machine(int machine) const;
  // It announced its end, and is not needed.
  bool announced(int machine) const;
  // Of the ranks in the present generation, running or lost: those that have not left it.
  std::vector<int> running_ranks() const;

 private:
  using RankPhase = RunMemory::RankPhase;
  using Rank = RunMemory::Rank;

  void on(const TrainersPlaced& event, TimePoint now);
  void on(const SparesPlaced& event, TimePoint now);
  void on(const TrainerAlive& event, TimePoint now);
  void on(const TrainerUnfit& event, TimePoint now);
  void on(const TrainerDied& event, TimePoint now);
  void on(const PostMortem& event, TimePoint now);
  void on(const TrainerGone& event, TimePoint now);
  void on(const TrainerFormed& event, TimePoint now);
  void on(const TrainerLoaded& event, TimePoint now);
  void on(const StepFinished& event, TimePoint now);
  void on(const TrainerStopped& event, TimePoint now);
  void on(const TrainerFinished& event, TimePoint now);
  void on(const TrainerSaved& event, TimePoint now);
  void on(const TrainerSaving& event, TimePoint now);
  void on(const SaveMoves& event, TimePoint now);
  void on(const TrainerFailed& event, TimePoint now);
  void on(const TrainerWaiting& event, TimePoint now);
  void on(const TrainerStuck& event, TimePoint now);
  void on(const GenerationStalled& event, TimePoint now);
  void on(const TrainerSlow& event, TimePoint now);
  void on(const TimePassed& event, TimePoint now);
  void on(const SaveRequested& event, TimePoint now);
  void on(const StopRequested& event, TimePoint now);
  void on(const TrainerPaused& event, TimePoint now);
  void on(const MachineLeaves& event, TimePoint now);

  Rank* rank_of(int rank);
  // The rank if it is in the present generation and has not left it.
  Rank* running_rank(int rank, std::uint64_t generation);
  // The rank has a process that may take part.
  void rank_present(int rank, const std::string& how, const char* event, TimePoint now);
  // The rank's process is on a node where no step stood with it yet.
  bool on_new_node(int rank) const;
  // Its process cannot take part there, as it says: it counts as one that is not there.
  void cannot_serve(int rank, const Status& cause, TimePoint now);
  void without_memory(int rank, const Status& cause, TimePoint now);
  void spare_died(const TrainerDied& event, TimePoint now);
  // The rank's new process was told of before the death of the one on `node`.
  void rank_replaced(int rank, const std::string& node, TimePoint now);
  // The recovery that a failure begins, or the one under way.
  RecoveryTimeline& recovery(TimePoint now);
  struct Loss {
    int rank = -1;         // that failed; -1: not known
    bool is_cause = true;  // false: it followed from another rank's failure
    bool again = false;    // of a process whose predecessor's failure was counted
    int told_by = -1;      // the rank that lost a peer
  };
  // The current generation is lost: everybody leaves it. Counts the failure; may end the run, at
  // once where this is the cause.
  void lose_generation(const Status& cause, const Loss& loss, TimePoint now);
  // Everybody is to leave the generation that runs, for the next one.
  void give_up_generation(const Status& why, TimePoint now);
  // Whether the run has failed once more. Notes which newcomers it may be that cannot take part.
  bool counts(const Status& cause, const Loss& loss, bool first_sign);
  // ok: the run goes on after its failures so far, of which `cause` was the last.
  Status limit_reached(const Status& cause) const;
  void begin_when_ready(TimePoint now);
  // --- worlds that change
  bool elastic() const { return settings_.ranks_per_machine > 0; }
  int machine_of(int trainer) const { return trainer / settings_.ranks_per_machine; }
  int machines_max() const { return machine_of(settings_.world_size); }
  bool leaves(int machine) const;
  int staying(TimePoint now) const;  // machines of the world that are not lost and do not leave
  void withdraw_leaves(TimePoint now);
  void try_barred_again(TimePoint now);
  void do_without_newcomers(TimePoint now);
  // A generation was lost: what is known of a link that does not work.
  void note_unmet(const Status& cause, const Loss& loss);
  void do_without_unmet(TimePoint now);
  void bar(int machine, const std::string& why, TimePoint now);
  // A process of it is on another node than those before; or its memory is gone.
  void machine_came(int machine);
  bool was_on(int machine, const std::string& node) const;
  template <typename Is>  // of a TrainerPlaces::Trainer
  bool any_trainer(int machine, Is is) const;
  // It came, on this node, since the last step that stood with it.
  bool is_new(int machine) const;
  RunMemory::Newcomer& newcomer(int machine);  // which is new
  void count_attempts(int by);                 // with each new machine of the world
  // Machines of the world that are new, and that it could do without.
  std::vector<int> newcomers_to_spare() const;
  bool in_world(int machine) const;
  bool in_former(int machine) const;      // a world before, whose memory may be needed yet
  bool any_alive(int machine) const;      // of its trainers
  bool machine_alive(int machine) const;  // all of them
  // Its ranks are gone, and nothing is in sight that takes their place.
  bool given_up(int machine, TimePoint now) const;
  std::vector<int> machines() const;
  // Those of the next generation; nothing: some are waited for.
  std::optional<std::vector<int>> wanted_machines(TimePoint now) const;
  // Between generations: true where the next one may begin, in the world that there is now.
  bool settle_world(TimePoint now);
  void change_world(const std::vector<int>& machines, TimePoint now);
  // Within a generation: asks it to pause where another world is wanted.
  void pause_for_world(TimePoint now);
  void begin(GenerationPurpose purpose);
  // The command that begins the present generation.
  BeginGeneration plan() const;
  // Goes on towards the checkpoint that SaveRequested wants, by shorter ways as time passes.
  void hurry_save(TimePoint now);
  // Says which ranks have no process, since when and what for.
  void tell_absent_ranks(TimePoint now);
  void end_for_absent_rank(TimePoint now);
  void end_late_leaving(TimePoint now);
  void kill_stuck_again(TimePoint now);
  // The rank left the generation as it should; true when all have.
  bool leave_in_order(Rank& rank, TimePoint now);
  void step_stands(const StepFinished& event, TimePoint now);
  // Those of the present generation hold what the others must not go on without.
  void newcomers_are_members();
  // A step was finished in the present world, whether or not rank 0 told of it.
  void stood_in_this_world();
  // After a failure: every rank has loaded `step`.
  void record_resume(std::int64_t step, TimePoint now);
  // After a failure: `step` is the first that is finished again.
  void record_recovery(std::int64_t step, TimePoint now);
  // Events keep their order: behind one that is held, all are.
  void record(RecordEvent event, TimePoint now);
  void release_held(TimePoint now, bool all);
  void end(Status status);
  // The same after a checkpoint of what the ranks that are left hold.
  void end_having_saved(Status status, TimePoint now);

  RunSettings settings_;
  mutable RunMemory known_;  // memory() brings `trainers` and `recovery` in
  TrainerPlaces places_;
  std::optional<RecoveryTimeline> recovery_;
  // When it was said which ranks are awaited; a new controller says it again.
  std::optional<TimePoint> absent_told_;
  std::vector<RunCommand> commands_;
};

}  // namespace troupe::train
