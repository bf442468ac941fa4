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
