#pragma once
// One rank of a training run as an actor.
//
// The actor's methods only tell its loop what to do; the loop runs on a thread of its own: it meets
// the other ranks, trains a generation, and waits for the next one.

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "actors/actor_class.h"
#include "actors/context.h"
#include "actors/handle.h"
#include "runtime/base/mutex.h"
#include "train/trainer/peer_links.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/trainer_messages.h"
#include "train/trainer/training_run.h"

namespace troupe::train {

class TrainController;

class TrainerActor {
 public:
  TrainerActor(ActorContext& context, ActorHandle<TrainController> controller, TrainerSetup setup);
  ~TrainerActor();
  TrainerActor(const TrainerActor&) = delete;
  TrainerActor& operator=(const TrainerActor&) = delete;

  // Joins a generation; returns at once.
  void begin(GenerationPlan plan);
  // Leaves a generation at once, wherever the loop is; older and later ones are not touched.
  void abort(std::uint64_t generation, Status reason);
  // To rank 0: all ranks save after the step under way and leave, in whatever generation.
  void save_and_stop();

  static constexpr auto constructor =
      troupe::constructor<ActorHandle<TrainController>, TrainerSetup>;
  static constexpr auto methods =
      troupe::methods<&TrainerActor::begin, &TrainerActor::abort, &TrainerActor::save_and_stop>;

 private:
  class Observer;

  void loop();
  std::optional<GenerationPlan> next_plan();
  // Trains the generation; the message that tells how it ended.
  TrainerMessage train(const GenerationPlan& plan);
  Status prepare(collective::Communicator& communicator);
  Result<RunBundle> take_bundle();
  // The end of the generation in work: tells how it ended, and lets the peers notice a failure.
  void leave(TrainerMessage outcome);
  Status train_generation(const GenerationPlan& plan);
  void tell(TrainerMessage message);

  ActorContext& context_;
  ActorHandle<TrainController> controller_;
  const TrainerSetup setup_;
  PosixFileSystem files_;
  SystemClock clock_;
  PeerLinks links_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<GenerationPlan> plans_ TROUPE_GUARDED_BY(mutex_);
  std::optional<memory::Segment> bundle_ TROUPE_GUARDED_BY(mutex_);
  std::shared_ptr<collective::Communicator> communicator_ TROUPE_GUARDED_BY(mutex_);
  std::uint64_t running_ TROUPE_GUARDED_BY(mutex_) = 0;  // the generation in work
  std::uint64_t aborted_ TROUPE_GUARDED_BY(mutex_) = 0;  // all generations up to this are
  Status abort_reason_ TROUPE_GUARDED_BY(mutex_);
  std::atomic<bool> cancelled_{false};  // the generation in work is aborted
  std::atomic<bool> save_and_stop_{false};
  std::atomic<bool> ending_{false};

  std::unique_ptr<TrainingRun> run_;  // the loop's
  std::thread thread_;
};

}  // namespace troupe::train
