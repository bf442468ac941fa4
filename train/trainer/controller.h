#pragma once
// The actor that watches a training run: places the trainers, begins generations, tells the driver.
//
// Everything is decided by ControllerSession (controller_session.h); this class tells it what the
// trainers and the head say, and carries out its actions. All of it runs on the actor's own thread;
// what may wait for others runs beside (side_threads.h) and comes back through the executor.
//
// A controller that is killed is started again: it finds what the one before knew (save(), load();
// written before any command is carried out), or without it asks the trainers. Training goes on
// meanwhile: trainers need a controller only when something fails, and tell it again what they told
// one that died.

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "train/trainer/bundle_courier.h"
#include "train/trainer/controller_memory.h"
#include "train/trainer/controller_session.h"
#include "train/trainer/rank_watch.h"
#include "train/trainer/run_finder.h"
#include "train/trainer/run_journal.h"
#include "train/trainer/run_spec.h"
#include "train/trainer/side_threads.h"
#include "train/trainer/told_reports.h"
#include "train/trainer/trainer_actor.h"
#include "train/trainer/trainer_fleet.h"
#include "train/trainer/trainer_messages.h"
#include "troupe/actor.h"
#include "troupe/detail/mutex.h"
#include "troupe/handle.h"

namespace troupe::train {

class TrainController {
 public:
  TrainController(ActorContext& context, RunSpec spec);
  ~TrainController();
  TrainController(const TrainController&) = delete;
  TrainController& operator=(const TrainController&) = delete;

  // Places all trainers, all at once or none: they wait in the cluster's line, or with
  // RunSpec::no_wait are refused with what is missing. After the bundle has arrived.
  Status start();
  // From the trainers.
  void report(std::int32_t rank, TrainerMessage message);
  // From a trainer that is about to strike: whether it may. A fault strikes `times` times in a run,
  // whichever ranks reach its point.
  bool fault_fired(std::int32_t number);
  // From the driver: a checkpoint after the step under way, then the run's end.
  void save_and_stop();
  // From the driver: a finished model that could not be written goes to this folder.
  void save_to(std::string folder);
  // From the driver: ends the run.
  void stop(Status reason);

  bool changes_world() const { return session_.changes_world(); }
  // A machine of a run whose world may change announces its end. False: the run cannot do without
  // it, or does not change. True: has_machine() will be false once it is needed no more.
  bool machine_leaves(std::int32_t machine);
  bool has_machine(std::int32_t machine) const { return session_.has_machine(machine); }

  // For the next process of this controller.
  ControllerMemory save() const;
  Status load(ControllerMemory memory);
  // It asks the run's trainers, as a process that was killed before it could save (find_run).
  void load_lost() const {}

  static constexpr auto constructor = troupe::constructor<RunSpec>;
  static constexpr auto methods =
      troupe::methods<&TrainController::start, &TrainController::report,
                      &TrainController::fault_fired, &TrainController::save_and_stop,
                      &TrainController::save_to, &TrainController::stop,
                      &TrainController::changes_world, &TrainController::machine_leaves,
                      &TrainController::has_machine>;

 private:
  void take_bundle(ByteStream stream, bool same_node);
  void take_driver(ByteStream stream, bool same_node);
  RunSettings settings() const;
  void start_watching();
  // Tells the watch which processes have ranks now.
  void look_at_ranks();
  void noticed(const RankWatch::Noticed& noticed);
  // Once a second, on the actor's thread, in order with what else came; `at`: when it was posted.
  void tick(TimePoint at);
  // Takes over a run whose controller left no memory.
  void found_run(const FoundRun& run);
  const RunState& state() const { return session_.state(); }
  void tell(const RunInput& input) { act(session_.tell(input, clock_.now())); }
  // Carries out what the session answers.
  void act(ControllerActions actions);
  void carry_out(const SaveMemory& action);
  void carry_out(const WatchTrainers& action);
  void carry_out(const GiveData& action);
  void carry_out(const RestartTrainer& action);
  void carry_out(const LookBack& action);
  void carry_out(const TellUser& action);
  void carry_out(const BeginGeneration& action);
  void carry_out(const AbortGeneration& action);
  void carry_out(const SaveAndStop& action);
  void carry_out(const RecordEvent& action);
  void carry_out(const EndRun& action);
  void carry_out(const PauseAfterStep& action);
  void show(std::int32_t rank, const StepReport& message);
  void show(std::int32_t rank, const EvaluationReport& message);
  void show(std::int32_t rank, const CheckpointReport& message);
  void show(std::int32_t rank, const WarningReport& message);
  void show(std::int32_t rank, const TrainerUnfit& message);
  template <typename Message>
  void show(std::int32_t rank, const Message& message) {
    if constexpr (!std::is_constructible_v<RunInput, const Message&>) {
      const auto told = to_event(message, {state().generation(), rank, state().last_step()}, spec_);
      journal_.record(told.event, told.text);
    }
  }
  // Where the run is, for a driver that connects again.
  json::Object snapshot_line() const;
  // Asks the driver for the run's data again; it may have connected before that was known.
  void want_bundle();
  json::Object end_line(const Status& status) const;

  ActorContext& context_;
  const RunSpec spec_;
  SystemClock clock_;
  PosixFileSystem files_;
  RunJournal journal_;
  ControllerSession session_;
  BundleCourier bundle_;
  TrainerFleet fleet_;
  bool restored_ = false;            // load() found what the process before knew
  std::vector<std::int64_t> fired_;  // how often
  std::string last_checkpoint_;
  std::int64_t total_steps_ = 0;

  // Posts tick() once a second until the controller ends.
  Mutex clock_mutex_;
  CondVar clock_changed_;
  bool clock_stops_ TROUPE_GUARDED_BY(clock_mutex_) = false;
  std::thread clock_thread_;
  // Last: their threads use the others.
  SideThreads beside_;
  std::optional<RankWatch> watch_;
};

}  // namespace troupe::train
