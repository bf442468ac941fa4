#pragma once
// The actor that watches a training run: places the trainers, begins generations, tells the driver.
//
// Everything is decided by RunState (run_state.h); this class feeds it what the trainers and the
// head say, and carries out its commands. All of it runs on the actor's own thread.

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/actor_class.h"
#include "actors/context.h"
#include "actors/handle.h"
#include "runtime/base/mutex.h"
#include "runtime/memory/segment.h"
#include "train/report/step_log.h"
#include "train/trainer/run_state.h"
#include "train/trainer/trainer_actor.h"
#include "train/trainer/trainer_messages.h"

namespace troupe::train {

// What a controller must know of its run.
struct RunSpec {
  std::string run;  // its id
  std::string output_dir;
  std::string resume_path;
  std::int32_t world_size = 1;
  std::int32_t ranks_per_node = 1;
  std::int32_t threads = 1;
  bool overlaps = false;
  bool own_core = false;
  double cpus_per_trainer = 1;
  std::int64_t started_unix_us = 0;
  std::int64_t wait_timeout_ms = 1'800'000;
  std::int32_t fruitless_failures_max = 3;
  std::optional<std::int32_t> restarts_max;
  std::vector<ChaosFault> faults;
  // Trainers' output is appended to LOG_DIR/rank-N.log; empty: only the nodes keep it.
  std::string log_dir;
  // Ranks are dealt out to these nodes in order, as many to each as to the others. Empty: anywhere.
  std::vector<NodeId> nodes;
};

class TrainController {
 public:
  TrainController(ActorContext& context, RunSpec spec);
  ~TrainController();
  TrainController(const TrainController&) = delete;
  TrainController& operator=(const TrainController&) = delete;

  // Places all trainers, or refuses with what is missing. After the bundle has arrived.
  Status start();
  // From the trainers.
  void report(std::int32_t rank, TrainerMessage message);
  // From a trainer that is about to strike: the fault will not be planned again.
  void fault_fired(std::int32_t number);
  // From the driver: a checkpoint after the step under way, then the run's end.
  void save_and_stop();
  // From the driver: ends the run.
  void stop(Status reason);

  static constexpr auto constructor = troupe::constructor<RunSpec>;
  static constexpr auto methods =
      troupe::methods<&TrainController::start, &TrainController::report,
                      &TrainController::fault_fired, &TrainController::save_and_stop,
                      &TrainController::stop>;

 private:
  struct Trainer {
    ActorHandle<TrainerActor> handle;
    ActorWatch watch;
    std::uint64_t alive = 0;  // generation of the actor's process that was told alive, 0: none
    std::uint64_t died = 0;   // of the last process whose death was told
    std::string node;
    // Since its process that lives did not take the run's data.
    std::optional<TimePoint> unserved_since;
  };

  void take_bundle(UniqueFd socket, bool same_node);
  void take_driver(UniqueFd socket, bool same_node);
  void actor_changed(int rank, const wire::ActorInfo& info);
  Status give_bundle(int rank);
  // Once a second, on the actor's thread, in order with what else came; `at`: when it was posted.
  void tick(TimePoint at);
  void kill_and_restart(int rank, const std::string& reason);
  void feed(const RunInput& input);
  void feed(const RunInput& input, TimePoint now);
  void carry_out(const BeginGeneration& command);
  void carry_out(const AbortGeneration& command);
  void carry_out(const KillTrainer& command);
  void carry_out(const SaveAndStop& command);
  void carry_out(const RecordEvent& command);
  void carry_out(const EndRun& command);
  void on(const StepReport& message);
  void on(const EvaluationReport& message);
  void on(const CheckpointReport& message);
  void on(const WarningReport& message);
  void on(const PaceReport& message);
  template <typename Event>
  void on(const Event& event) {
    feed(event);
  }
  // A line for the driver; lost where the driver is gone.
  void tell_driver(const json::Object& line);
  void send_line(const std::string& line);

  ActorContext& context_;
  const RunSpec spec_;
  SystemClock clock_;
  PosixFileSystem files_;
  RunState state_;
  std::vector<Trainer> trainers_;
  std::optional<memory::Segment> bundle_;
  UniqueFd driver_;
  std::deque<std::string> unsent_;  // lines that came before the driver's connection
  std::optional<LineFile> events_;
  std::vector<bool> fired_;
  std::string last_checkpoint_;

  // Posts tick() once a second until the controller ends.
  Mutex clock_mutex_;
  CondVar clock_changed_;
  bool clock_stops_ TROUPE_GUARDED_BY(clock_mutex_) = false;
  std::thread clock_thread_;
};

}  // namespace troupe::train
