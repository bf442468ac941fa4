#include "train/trainer/trainer_processes.h"

#include <utility>

namespace troupe::train {
namespace {

// A controller that died with the process finds the next one alive, of which the head tells no
// death.
Status cause_of(const wire::ActorInfo& info) {
  if (!info.death.ok()) return info.death;
  return error(Code::kActorDied,
               "its process ended while the run had no controller, so the cause is not known");
}

}  // namespace

std::vector<TrainerProcesses::Saved> TrainerProcesses::saved() const {
  std::vector<Saved> saved;
  for (const Trainer& known : trainers_)
    saved.push_back({known.served, known.died, known.node, known.node_id, known.pid});
  return saved;
}

void TrainerProcesses::restore(int trainer, const Saved& known) {
  at(trainer) = {.alive = known.served,
                 .served = known.served,
                 .died = known.died,
                 .node = known.node,
                 .node_id = known.node_id,
                 .pid = known.pid};
}

void TrainerProcesses::found(int trainer, std::uint64_t incarnation, NodeId node,
                             std::int64_t pid) {
  Trainer& known = at(trainer);
  known.alive = known.served = incarnation;
  known.node = node.brief();
  known.node_id = node;
  known.pid = pid;
}

TrainerProcesses::Change TrainerProcesses::changed(int trainer, const wire::ActorInfo& info,
                                                   TimePoint now) {
  Trainer& known = at(trainer);
  Change change{.gone = info.state == wire::ActorState::kDead};
  const bool restarting = info.state == wire::ActorState::kRestarting;
  // The process that was alive is not the one there is now.
  if (known.alive > known.died && (info.generation > known.alive || restarting || change.gone)) {
    change.died = known.died = known.alive;
    change.was_alive = true;
    change.node = known.node;
    known.unserved_since.reset();
  } else if (restarting && info.generation > known.died) {
    // It never came alive: its constructor failed or it was killed before.
    change.died = known.died = info.generation;
    change.node = info.node_id.brief();
  }
  if (change.died != 0) change.cause = cause_of(info);
  if (info.state != wire::ActorState::kAlive) return change;
  if (info.generation <= known.died) {
    // Its node was taken for dead and is back: its rank waits for the next process, which comes
    // when this one is ended.
    if (!known.unserved_since) known.unserved_since = now - kUnservedPatience;
    return change;
  }
  if (info.generation <= known.alive) return change;
  known.alive = info.generation;
  known.node = info.node_id.brief();
  known.node_id = info.node_id;
  known.pid = info.pid;
  change.wants_data = true;
  return change;
}

bool TrainerProcesses::served(int trainer, std::uint64_t incarnation, bool ok, TimePoint now) {
  Trainer& known = at(trainer);
  if (known.alive != incarnation || known.died >= incarnation) return false;
  if (ok) {
    known.served = incarnation;
  } else {
    known.unserved_since = now;
  }
  return true;
}

std::vector<int> TrainerProcesses::unserved() const {
  std::vector<int> trainers;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    if (trainers_[i].unserved_since) trainers.push_back(static_cast<int>(i));
  }
  return trainers;
}

std::vector<int> TrainerProcesses::to_end(TimePoint now) {
  std::vector<int> trainers;
  for (const int trainer : unserved()) {
    Trainer& known = at(trainer);
    if (now - *known.unserved_since < kUnservedPatience) continue;
    known.unserved_since = now;  // again where the killing fails
    trainers.push_back(trainer);
  }
  return trainers;
}

}  // namespace troupe::train
