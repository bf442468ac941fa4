#pragma once
// What the test's program hosts, and the test calls.

#include <cstdint>

#include "actors/actor_class.h"

namespace troupe::tests {

class Tally {
 public:
  std::int64_t add(std::int64_t number) { return total_ += number; }

  static constexpr auto methods = troupe::methods<&Tally::add>;

 private:
  std::int64_t total_ = 0;
};

}  // namespace troupe::tests
