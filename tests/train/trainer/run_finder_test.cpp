#include "train/trainer/run_finder.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

TEST_CASE("a found run goes on after the newest generation that was told") {
  CHECK(generations_told({}, "new") == 1);
  const RunEvent old_start{.event = events::kStart, .run = "old"};
  const RunEvent new_start{.event = events::kStart, .run = "new"};
  const RunEvent late{.event = events::kResume, .generation = 7};
  const RunEvent early{.event = events::kResume, .generation = 2};
  CHECK(generations_told({new_start, early, late, early}, "new") == 7);
  // The start of another run in the same folder begins the count again.
  CHECK(generations_told({late, old_start, early, new_start}, "new") == 2);
}

}  // namespace
}  // namespace troupe::train
