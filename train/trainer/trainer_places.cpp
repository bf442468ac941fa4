#include "train/trainer/trainer_places.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {

std::vector<int> trainers_of(std::span<const int> machines, int each) {
  std::vector<int> trainers;
  for (const int machine : machines) {
    for (int i = 0; i < each; ++i) trainers.push_back(machine * each + i);
  }
  return trainers;
}

TrainerPlaces::TrainerPlaces(int world_size, int spares)
    : trainers_(static_cast<std::size_t>(world_size + spares)),
      trainer_of_(static_cast<std::size_t>(world_size)) {
  TROUPE_CHECK(world_size >= 1 && spares >= 0);
  for (int rank = 0; rank < world_size; ++rank) {
    trainers_[static_cast<std::size_t>(rank)].rank = rank;
    trainer_of_[static_cast<std::size_t>(rank)] = rank;
  }
}

TrainerPlaces::TrainerPlaces(int world_size, std::vector<Trainer> trainers)
    : trainers_(std::move(trainers)), trainer_of_(static_cast<std::size_t>(world_size), -1) {
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    const int rank = trainers_[i].rank;
    if (rank < 0) continue;
    TROUPE_CHECK(rank < world_size && trainer_of_[static_cast<std::size_t>(rank)] < 0);
    trainer_of_[static_cast<std::size_t>(rank)] = static_cast<int>(i);
  }
  for (const int trainer : trainer_of_) TROUPE_CHECK(trainer >= 0);
}

TrainerPlaces::TrainerPlaces(const std::vector<int>& by_rank, int count)
    : trainers_(static_cast<std::size_t>(count)) {
  set_world(by_rank);
}

void TrainerPlaces::set_world(const std::vector<int>& by_rank) {
  for (Trainer& trainer : trainers_) trainer.rank = -1;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    Trainer& trainer = trainers_.at(static_cast<std::size_t>(by_rank[rank]));
    TROUPE_CHECK(trainer.rank < 0, "a trainer with two ranks");
    trainer.rank = static_cast<int>(rank);
  }
  trainer_of_ = by_rank;
}

const TrainerPlaces::Trainer* TrainerPlaces::find(int trainer) const {
  if (trainer < 0 || static_cast<std::size_t>(trainer) >= trainers_.size()) return nullptr;
  return &trainers_[static_cast<std::size_t>(trainer)];
}

bool TrainerPlaces::came_alive(int trainer, std::uint64_t incarnation, const std::string& node,
                               const std::string& gpu) {
  Trainer& place = trainers_.at(static_cast<std::size_t>(trainer));
  if (incarnation <= place.incarnation) return false;
  place.incarnation = incarnation;
  place.alive = true;
  place.gpu = gpu;
  if (!node.empty()) place.node = node;
  return true;
}

void TrainerPlaces::unfit(int trainer, std::uint64_t incarnation) {
  Trainer& place = trainers_.at(static_cast<std::size_t>(trainer));
  place.unfit = std::max(place.unfit, incarnation);
}

// The memory of the absent one's process is its node's, and on a GPU that GPU's.
bool TrainerPlaces::serves(const Trainer& spare, const Trainer& absent) const {
  return spare.rank < 0 && spare.fit() && spare.node == absent.node && spare.gpu == absent.gpu;
}

bool TrainerPlaces::died(int trainer, std::uint64_t incarnation, const std::string& node) {
  Trainer& place = trainers_.at(static_cast<std::size_t>(trainer));
  if (incarnation < place.incarnation) return false;
  if (incarnation == place.incarnation && !place.alive) return false;
  // One that never served left nothing where it died: what there is, is where the last one served.
  const bool served = incarnation == place.incarnation;
  place.incarnation = incarnation;
  place.alive = false;
  if (!node.empty() && (served || place.node.empty())) place.node = node;
  return true;
}

std::optional<int> TrainerPlaces::replace(int rank) {
  const Trainer& dead = with_rank(rank);
  TROUPE_CHECK(!dead.alive);
  if (dead.node.empty()) return std::nullopt;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    if (!serves(trainers_[i], dead)) continue;
    swap(rank, static_cast<int>(i));
    return static_cast<int>(i);
  }
  return std::nullopt;
}

std::optional<int> TrainerPlaces::rank_for_spare(int spare) {
  const Trainer& place = trainers_.at(static_cast<std::size_t>(spare));
  TROUPE_CHECK(place.rank < 0 && place.alive);
  for (int rank = 0; rank < world_size(); ++rank) {
    const Trainer& absent = with_rank(rank);
    // One that never had a process has no memory to go on with; its own first process is coming.
    if (absent.alive || absent.incarnation == 0 || !serves(place, absent)) continue;
    swap(rank, spare);
    return rank;
  }
  return std::nullopt;
}

void TrainerPlaces::swap(int rank, int spare) {
  trainers_[static_cast<std::size_t>(trainer_of(rank))].rank = -1;
  trainers_[static_cast<std::size_t>(spare)].rank = rank;
  trainer_of_[static_cast<std::size_t>(rank)] = spare;
}

}  // namespace troupe::train
