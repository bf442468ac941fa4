#pragma once
// What the test's program hosts, and the test calls.

#include <cstdint>
#include <utility>
#include <vector>

#include "troupe/actor.h"

namespace troupe::tests {

class Tally {
 public:
  std::int64_t add(std::int64_t number) { return total_ += number; }

  static constexpr auto methods = troupe::methods<&Tally::add>;

 private:
  std::int64_t total_ = 0;
};

// Saves what it counted before it answers, and runs no call twice.
class Ledger {
 public:
  std::int64_t add(std::int64_t number) {
    entries_.push_back(number);
    return static_cast<std::int64_t>(entries_.size());
  }
  std::vector<std::int64_t> entries() const { return entries_; }
  std::vector<std::int64_t> save() const { return entries_; }
  void load(std::vector<std::int64_t> entries) { entries_ = std::move(entries); }

  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&Ledger::add, &Ledger::entries>;

 private:
  std::vector<std::int64_t> entries_;
};

}  // namespace troupe::tests
