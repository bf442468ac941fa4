#include "train/trainer/trainer_actor.h"

#include "train/trainer/controller.h"
#include "train/trainer/rank_trainer.h"
#include "troupe/serialize.h"

// The value's own structure is compared where it arrives: the signatures of TrainerActor's methods
// say nothing of it.
template <typename Value>
void troupe::Codec<troupe::train::Sealed<Value>>::encode(
    Encoder& out, const troupe::train::Sealed<Value>& sealed) {
  out.put(Codec<Value>::kHash);
  Codec<Value>::encode(out, sealed.value ? *sealed.value : Value());
}
template <typename Value>
bool troupe::Codec<troupe::train::Sealed<Value>>::decode(Decoder& in,
                                                         troupe::train::Sealed<Value>& sealed) {
  std::uint64_t hash = 0;
  if (!in.get(hash)) return false;
  if (hash != Codec<Value>::kHash) return in.fail("a run's processes are of different builds");
  auto value = std::make_shared<Value>();
  if (!Codec<Value>::decode(in, *value)) return false;
  sealed.value = std::move(value);
  return true;
}
template struct troupe::Codec<troupe::train::Sealed<troupe::train::StartedTrainer>>;
template struct troupe::Codec<troupe::train::Sealed<troupe::train::GenerationPlan>>;
template struct troupe::Codec<troupe::train::Sealed<troupe::train::TrainerStatus>>;

namespace troupe::train {

class TrainerActor::State : public RankTrainer {
  using RankTrainer::RankTrainer;
};

TrainerActor::TrainerActor(ActorContext& context, TrainerSetup setup, TrainingParts parts)
    : state_(std::make_unique<State>(context, setup.value->controller, setup.value->setup,
                                     std::move(parts))) {}
TrainerActor::~TrainerActor() = default;

void TrainerActor::begin(Sealed<GenerationPlan> plan) { state_->begin(*plan.value); }
void TrainerActor::abort(std::uint64_t generation, Status reason) {
  state_->abort(generation, std::move(reason));
}
void TrainerActor::save_and_stop() { state_->save_and_stop(); }
void TrainerActor::save_to(std::string folder) { state_->save_to(std::move(folder)); }
Sealed<TrainerStatus> TrainerActor::status() const { return seal(state_->status()); }
void TrainerActor::pause(std::uint64_t generation) { state_->pause(generation); }

Status TrainerActor::wait_between_steps(std::function<void(const TrainingView&)> work,
                                        Duration timeout) {
  return state_->between_steps(std::move(work), timeout);
}
Status TrainerActor::change_data(const Arguments& arguments, Duration timeout) {
  return state_->change_data(arguments, timeout);
}

}  // namespace troupe::train
