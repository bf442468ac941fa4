#pragma once
// One rank of a training run in its process: what stands behind a TrainerActor
// (troupe/train/trainer_actor.h).
//
// The actor's methods only tell its loop what to do; the loop runs on a thread of its own: it meets
// the other ranks, trains a generation, and waits for the next one. Which rank it is, the first
// plan says: until then it is a spare.

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "train/chaos/injector.h"
#include "train/chaos/observed_file_system.h"
#include "train/chaos/process_effects.h"
#include "train/progress/abandon.h"
#include "train/progress/beat.h"
#include "train/progress/progress_recorder.h"
#include "train/trainer/actor_memory.h"
#include "train/trainer/between_steps.h"
#include "train/trainer/data_changes.h"
#include "train/trainer/generation_queue.h"
#include "train/trainer/peer_links.h"
#include "train/trainer/progress_memory.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/shared_paths.h"
#include "train/trainer/trainer_messages.h"
#include "train/trainer/training_run.h"
#include "troupe/actor.h"
#include "troupe/detail/mutex.h"
#include "troupe/handle.h"

namespace troupe::train {

class TrainController;

class RankTrainer {
 public:
  RankTrainer(ActorContext& context, ActorHandle<TrainController> controller, RankSetup setup,
              TrainingParts parts = {});
  ~RankTrainer();
  RankTrainer(const RankTrainer&) = delete;
  RankTrainer& operator=(const RankTrainer&) = delete;

  // Joins a generation; returns at once.
  void begin(GenerationPlan plan);
  // Leaves a generation at once, wherever the loop is; older and later ones are not touched.
  void abort(std::uint64_t generation, Status reason);
  // To rank 0: all ranks save after the step under way and leave, in whatever generation.
  void save_and_stop();
  // To rank 0: all ranks leave this generation after the step under way, for another world. It may
  // be told before that begins here.
  void pause(std::uint64_t generation);
  // To rank 0: a finished model that could not be written goes to this folder.
  void save_to(std::string folder);
  // Answers at once, from any state.
  TrainerStatus status() const;

  // As TrainerActor::between_steps() and change_data().
  Status between_steps(BetweenSteps::Work work, Duration timeout);
  Status change_data(const Arguments& arguments, Duration timeout);

 private:
  class Observer;
  // Lets faults strike, and the loop leave a pass whose generation is lost.
  class Points final : public PointObserver {
   public:
    explicit Points(RankTrainer& trainer) : trainer_(trainer) {}
    void reached(const Point& point) override {
      if (trainer_.cancelled_.load(std::memory_order_relaxed) && may_abandon(point))
        throw Abandoned{};
      trainer_.injector_.reached(point);
    }

   private:
    RankTrainer& trainer_;
  };

  // The loop's thread, and all that it starts, where the node told which NUMA node its GPU is at.
  void stay_near_device();
  void loop();
  std::optional<GenerationPlan> next_plan();
  // Before there is a plan: all that needs no rank. Tells where that does not come about.
  void make_ready();
  // Trains the generation; how that ended.
  Status train(const GenerationPlan& plan);
  Status prepare(collective::Communicator& communicator);
  // Everything that needs no rank, as soon as the data are there.
  Status prepare_run();
  // Before the ranks meet: a rank that hangs there is to be found, too.
  Status keep_progress(int world);
  // The plan is of another world than the one before: the run is made anew for its size.
  void enter_world(const GenerationPlan& plan);
  // For people, in errors.
  std::string node_name() const;
  OutputPaths output_paths() const;
  // Behind the bundle, from a controller on another node: the token cache, if it is not here.
  Status take_samples(ByteStream& stream);
  // The ranks that the plan's trainers had in each world before, the newest first.
  std::vector<FormerRanks> former_ranks(const GenerationPlan& plan);
  // Gives back what this trainer may hold of worlds that the plan does not need any more.
  Status forget_past_worlds(const GenerationPlan& plan);
  Result<RunBundle> take_bundle();
  // Ends a spare's process: the rank goes on with another one.
  void leave_unfit_spare(const Status& cause);
  // Ends the process where nothing can be computed in it any more.
  void leave_dead_device(const Status& cause);
  // The end of the generation in work: tells how it ended, and lets the peers notice a failure.
  void leave(Status ended);
  Status train_generation(const GenerationPlan& plan);
  Result<std::shared_ptr<collective::Communicator>> meet(const GenerationPlan& plan);
  // What the rank computes with in the generation of `world`.
  Result<GenerationCompute> join(const std::shared_ptr<collective::Communicator>& world);
  // The communicator that abort() is to end from now on, unless it was asked to before.
  Status take_over(const std::shared_ptr<collective::Communicator>& communicator);
  void tell(TrainerMessage message);
  std::int32_t rank() const { return rank_.load(std::memory_order_relaxed); }
  // Whether it may wait for a rank that another process has: a spare, or what follows a trainer
  // whose rank a spare may have taken.
  bool stands_by() const { return setup_.rank < 0 || context_.generation() > 1; }

  // Whoever waits for a step, or asks later, is told that the run has ended.
  void answer_ended();

  ActorContext& context_;
  ActorHandle<TrainController> controller_;
  const RankSetup setup_;
  const TrainingParts parts_;
  const std::thread::id actor_thread_ = std::this_thread::get_id();
  // Asked before the loop begins: communicators set variables.
  SystemEnvironment environment_;
  const std::string gpu_;
  PosixFileSystem posix_files_;
  SystemClock clock_;
  PeerLinks links_;
  ProgressMemory progress_;
  ProcessEffects effects_;
  FaultInjector injector_;
  Points points_;
  ProgressRecorder recorder_;
  ObservedFileSystem files_;
  Beat beat_;
  std::atomic<std::int32_t> rank_;  // generations_.rank(), for any thread
  // Of the rank taken.
  std::optional<ActorMemory> memory_;

  mutable Mutex mutex_;
  CondVar changed_;
  GenerationQueue generations_ TROUPE_GUARDED_BY(mutex_);
  std::optional<memory::Segment> bundle_ TROUPE_GUARDED_BY(mutex_);
  // Of the generation in work: abort it, and all ends that hangs on it.
  std::shared_ptr<collective::Communicator> communicator_ TROUPE_GUARDED_BY(mutex_);
  // Links of the communicator that is being formed.
  std::vector<UniqueFd> forming_ TROUPE_GUARDED_BY(mutex_);
  Status samples_ TROUPE_GUARDED_BY(mutex_);  // how taking the token cache went
  bool took_bundle_ TROUPE_GUARDED_BY(mutex_) = false;
  std::optional<std::string> save_to_ TROUPE_GUARDED_BY(mutex_);
  BetweenSteps between_steps_;
  DataChanges data_changes_;
  std::atomic<bool> cancelled_{false};  // the generation in work is aborted
  std::atomic<bool> save_and_stop_{false};
  std::atomic<std::uint64_t> pause_{0};  // the generation that is to be left after a step
  std::atomic<bool> ending_{false};

  // The loop's.
  int world_ = -1;                                               // the number of its run's world
  int world_size_ = 0;                                           // its ranks; 0: not known yet
  std::optional<RunBundle> given_back_;                          // of the run in the world before
  CarriedOver carried_;                                          // of that
  std::map<int, std::unique_ptr<ActorMemory>> former_memories_;  // by world
  std::set<std::pair<int, int>> own_worlds_;  // and its ranks there: their memory may be held
  std::unique_ptr<TrainingRun> run_;
  Status early_failure_;
  std::atomic<bool> unfit_{false};  // that was told
  bool told_transport_ = false;
  std::optional<bool> states_safe_;    // as rank 0, in the generation before
  std::atomic<std::int64_t> step_{0};  // steps done
  // Those that were done as this generation began to step. Of the loop.
  std::optional<std::int64_t> loaded_step_;
  std::thread thread_;
  std::thread warmth_;  // prepares the first pass while the trainer gets its data and its rank
};

}  // namespace troupe::train
