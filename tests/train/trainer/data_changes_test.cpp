#include <doctest/doctest.h>

#include <chrono>

#include "train/trainer/data_changes.h"

namespace troupe::train::tests {
namespace {

TEST_CASE("the outcome of a change of the data is told to all that wait for it") {
  DataChanges changes;
  changes.done("{\"a\":1}", {});
  changes.done("{\"a\":2}", error(Code::kInvalidArgument, "no such data"));
  const Deadline later = Deadline::after(std::chrono::seconds(60));
  for (int caller = 0; caller < 2; ++caller) {
    CHECK(changes.wait("{\"a\":1}", later).ok());
    CHECK(changes.wait("{\"a\":2}", later).code() == Code::kInvalidArgument);
  }
  CHECK(changes.wait("{\"a\":3}", Deadline::after(Duration(0))).code() == Code::kDeadlineExceeded);
  CHECK_FALSE(changes.asked());
}

TEST_CASE("nobody waits for a change of the data behind the trainer's end") {
  DataChanges changes;
  changes.end();
  const Deadline later = Deadline::after(std::chrono::seconds(60));
  CHECK(changes.wait("{}", later).code() == Code::kDeadlineExceeded);
  CHECK_FALSE(later.passed());
}

}  // namespace
}  // namespace troupe::train::tests
