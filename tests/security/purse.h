#pragma once
// The actor that strangers would like to reach.

#include "troupe/handle.h"

namespace troupe::tests {

class Purse {
 public:
  std::int64_t put(std::int64_t coins) { return coins_ += coins; }
  std::int64_t count() const { return coins_; }
  static constexpr auto methods = troupe::methods<&Purse::put, &Purse::count>;

 private:
  std::int64_t coins_ = 0;
};

}  // namespace troupe::tests
