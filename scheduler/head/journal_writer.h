#pragma once
// A journal on a thread of its own, so that a slow disk keeps nobody waiting but those whose
// decisions it is to keep.
//
// Thread rules: everything here is called on the loop's thread. The journal belongs to the writer's
// thread while a write is under way, else to the loop's; the loop's queue and the other one's hand
// it over, so there is no lock.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "scheduler/head/journal.h"

namespace troupe::scheduler {

class JournalWriter {
 public:
  struct Written {
    bool rewrite = false;
    Status status;
    Duration took{};
    std::uint64_t size_bytes = 0;  // of the journal
  };

  // Both must outlive it.
  JournalWriter(net::EventLoop& loop, Journal& journal);
  // Waits for the write that is under way, as long as the disk takes; its end is not told.
  ~JournalWriter();
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;

  bool busy() const { return busy_; }
  // As the journal says. Not while busy.
  bool can_append() const;
  bool wants_rewrite(std::uint64_t more_bytes) const;
  // Appends, or replaces everything; `done` is called on the loop's thread. Not while busy.
  void write(bool rewrite, std::vector<Delta> deltas, std::function<void(Written)> done);

 private:
  net::EventLoop& loop_;
  Journal& journal_;
  bool busy_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<net::LoopThread> thread_;
};

}  // namespace troupe::scheduler
