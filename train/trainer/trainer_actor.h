#pragma once
// What a run's controller and trainers tell each other through TrainerActor
// (troupe/train/trainer_actor.h), unsealed.

#include <memory>
#include <utility>

#include "train/trainer/trainer_messages.h"
#include "troupe/handle.h"
#include "troupe/train/trainer_actor.h"

namespace troupe::train {

class TrainController;

// The arguments with which a controller makes a trainer.
struct StartedTrainer {
  ActorHandle<TrainController> controller;
  RankSetup setup;
};

template <typename Value>
Sealed<Value> seal(Value value) {
  return {std::make_shared<const Value>(std::move(value))};
}

}  // namespace troupe::train
