#pragma once
// Which processes of other actors have called this one: the newest generation of each.
//
// After a node was lost an actor may have two processes for a while. Whoever has been called by the
// newer one refuses the older one by this. Bounded: the actor that bound longest ago is forgotten
// first, and is then known again when it next binds. Not thread-safe.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "runtime/base/ids.h"

namespace troupe::detail {

class CallerGenerations {
 public:
  // `callers_max`: at least 1.
  explicit CallerGenerations(std::size_t callers_max) : callers_max_(callers_max) {}

  // A process of this generation binds. The newest generation that has bound, this one included.
  std::uint64_t note(ActorId caller, std::uint64_t generation) {
    Seen& seen = seen_[caller];
    if (seen.order != 0) by_order_.erase(seen.order);
    seen.order = next_order_++;
    by_order_[seen.order] = caller;
    const std::uint64_t newest = seen.generation = std::max(seen.generation, generation);
    if (seen_.size() > callers_max_) {
      seen_.erase(by_order_.begin()->second);
      by_order_.erase(by_order_.begin());
    }
    return newest;
  }
  std::size_t size() const { return seen_.size(); }

 private:
  struct Seen {
    std::uint64_t generation = 0;
    std::uint64_t order = 0;  // when it bound last; 0: not yet
  };
  const std::size_t callers_max_;
  std::map<ActorId, Seen> seen_;
  std::map<std::uint64_t, ActorId> by_order_;
  std::uint64_t next_order_ = 1;
};

}  // namespace troupe::detail
