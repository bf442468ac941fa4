#include "train/trainer/run_memory.h"

#include <algorithm>

namespace troupe::train {

RunMemory found_memory(TrainerPlaces places, std::span<const TrainerFound> found,
                       std::uint64_t generations_before, TimePoint now, std::int64_t steps_before,
                       std::optional<Duration> silent_for, std::span<const World> worlds) {
  RunMemory memory;
  // Where the size of the world may change, the newest plan lists its ranks.
  std::uint64_t newest = 0;
  for (const TrainerFound& trainer : found) {
    if (trainer.world.trainers.empty() || trainer.generation <= newest) continue;
    newest = trainer.generation;
    places.set_world(trainer.world.trainers);
    memory.world = trainer.world.number;
    memory.former = trainer.former;
  }
  // Where all that was in it is lost nobody who lives knows of the newest one.
  const bool none_knows = !worlds.empty() && worlds.front().number > memory.world;
  if (none_knows) {
    places.set_world({worlds.front().trainers.begin(), worlds.front().trainers.end()});
    memory.world = worlds.front().number;
    memory.former.assign(worlds.begin() + 1, worlds.end());
  }
  memory.trainers = places.trainers();
  memory.generation = generations_before;
  memory.last_step = steps_before;
  for (const TrainerFound& trainer : found) {
    memory.generation = std::max(memory.generation, trainer.generation);
    memory.last_step = std::max(memory.last_step, trainer.step);
  }
  const auto place_of = [&](const TrainerFound& trainer) -> TrainerPlaces::Trainer& {
    return memory.trainers.at(static_cast<std::size_t>(trainer.trainer));
  };
  for (const TrainerFound& trainer : found) {
    TrainerPlaces::Trainer& place = place_of(trainer);
    place.alive = true;
    place.incarnation = trainer.incarnation;
    place.node = trainer.node;
    place.gpu = trainer.gpu;
    if (!trainer.fit) place.unfit = trainer.incarnation;
    // Ranks are where the newest plan has them.
    if (none_knows || trainer.generation != memory.generation || trainer.rank < 0) continue;
    for (auto& other : memory.trainers) {
      if (other.rank != trainer.rank) continue;
      std::swap(other.rank, place.rank);
      break;
    }
  }
  const RunMemory::Rank absent{.died_before = true, .absent_since = now};
  memory.ranks.assign(static_cast<std::size_t>(places.world_size()), absent);
  for (const TrainerFound& trainer : found) {
    const int number = place_of(trainer).rank;
    if (number < 0) continue;
    RunMemory::Rank& rank = memory.ranks[static_cast<std::size_t>(number)];
    rank.absent_since.reset();
    rank.phase =
        trainer.in_generation ? RunMemory::RankPhase::kRunning : RunMemory::RankPhase::kReady;
    rank.generation = trainer.generation;
  }
  memory.told_step = memory.farthest_step = memory.last_step;
  memory.failures = 1;
  memory.lost_at = now;
  RecoveryTimeline recovery(now, memory.last_step);
  recovery.add_fault(-1, "the controller was lost, with its memory");
  // Ranks that live went on with their steps; where one was lost, too, none was finished since.
  const bool all_live = std::none_of(memory.ranks.begin(), memory.ranks.end(),
                                     [](const auto& r) { return r.absent_since.has_value(); });
  if (silent_for && !all_live) recovery.silent_before(*silent_for);
  memory.recovery = recovery.data();
  return memory;
}

}  // namespace troupe::train
