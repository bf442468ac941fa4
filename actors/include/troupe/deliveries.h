#pragma once
// What became of numbered messages under faults: an assertion for tests. Any thread.
//
//   Deliveries log;
//   log.sent(7); … log.acknowledged(7);      // by the caller
//   for (auto [number, times] : counted) log.seen(number, times);   // by who looks at the end
//   REQUIRE(log.exactly_once().ok());

#include <cstdint>
#include <map>

#include "troupe/detail/mutex.h"
#include "troupe/status.h"

namespace troupe {

class Deliveries {
 public:
  void sent(std::uint64_t number);
  void acknowledged(std::uint64_t number);
  // It had an effect so many times.
  void seen(std::uint64_t number, std::uint64_t times = 1);

  // kDataLoss, naming the first number and how many there are: what was acknowledged has no effect;
  // kInternal: an effect that nobody sent.
  Status none_lost() const;
  // kAlreadyExists: an effect more than once.
  Status none_twice() const;
  // Both.
  Status exactly_once() const;

 private:
  struct Entry {
    bool sent = false, acknowledged = false;
    std::uint64_t times = 0;
  };
  mutable Mutex mutex_;
  std::map<std::uint64_t, Entry> entries_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe
