#include "train/trainer/trainer_places.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

TEST_CASE("a spare of the same node takes a dead trainer's rank, and the trainer stands by") {
  TrainerPlaces places(2, 2);
  CHECK(places.came_alive(0, 1, "a"));
  CHECK(places.came_alive(1, 1, "b"));
  CHECK(places.came_alive(2, 1, "a"));
  CHECK(places.came_alive(3, 1, "b"));
  CHECK_FALSE(places.came_alive(3, 1, "b"));
  CHECK(places.died(1, 1, "b"));
  CHECK_FALSE(places.died(1, 1, "b"));
  CHECK(places.replace(1) == 3);
  CHECK(places.by_rank() == std::vector<int>{0, 3});
  CHECK(places.find(1)->rank == -1);
  CHECK(places.find(3)->rank == 1);
  CHECK_FALSE(places.find(4));
  // The next death there finds the one that died before, once it lives again.
  CHECK(places.died(3, 1, ""));
  CHECK_FALSE(places.replace(1));  // the other spare lives on node a
  CHECK(places.came_alive(1, 2, "b"));
  CHECK(places.rank_for_spare(1) == 1);
  CHECK(places.by_rank() == std::vector<int>{0, 1});
  // Trainer 3 stands by again; nobody needs it.
  CHECK(places.came_alive(3, 2, "b"));
  CHECK_FALSE(places.rank_for_spare(3));
}

TEST_CASE("a spare of another GPU does not take a rank, nor one that could not be made ready") {
  TrainerPlaces places(2, 3);
  CHECK(places.came_alive(0, 1, "a", "GPU-0"));
  CHECK(places.came_alive(1, 1, "a", "GPU-1"));
  CHECK(places.came_alive(2, 1, "a", "GPU-1"));
  CHECK(places.came_alive(3, 1, "a", "GPU-0"));
  // Told before it came alive.
  places.unfit(4, 1);
  CHECK(places.came_alive(4, 1, "a", "GPU-0"));
  CHECK(places.died(0, 1, "a"));
  CHECK(places.replace(0) == 3);
  CHECK(places.died(3, 1, "a"));
  CHECK_FALSE(places.replace(0));
  CHECK_FALSE(places.rank_for_spare(2));
  CHECK_FALSE(places.rank_for_spare(4));
  // Its next process may be fit, and the trainer that died is there again.
  CHECK(places.came_alive(0, 2, "a", "GPU-0"));
  CHECK(places.rank_for_spare(0) == 0);
  CHECK(places.died(4, 1, "a"));
  CHECK(places.came_alive(4, 2, "a", "GPU-0"));
  CHECK(places.died(0, 2, "a"));
  CHECK(places.replace(0) == 4);
}

TEST_CASE("a spare does not take a rank that never had a process, nor one of another node") {
  TrainerPlaces places(2, 1);
  CHECK(places.came_alive(0, 1, "a"));
  CHECK(places.came_alive(2, 1, "a"));
  CHECK_FALSE(places.rank_for_spare(2));
  // It moved to another node: the memory is not there.
  CHECK(places.died(0, 1, "a"));
  CHECK(places.died(2, 1, "a"));
  CHECK(places.came_alive(2, 2, "b"));
  CHECK_FALSE(places.rank_for_spare(2));
}

}  // namespace
}  // namespace troupe::train
