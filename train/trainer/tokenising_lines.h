#pragma once
// How far the tokenising of a run's data is: one line that is redrawn on a terminal, a line now and
// then elsewhere.
//
//   [=====>              ]  tokenising: 64.1 MB of 256.0 MB  120k rows  16.2M tokens  21.4 MB/s
//   0:03

#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "train/data/build_dataset.h"
#include "train/report/progress.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

// Thread-safe. `clock` and `output` must outlive it.
class TokenisingLines {
 public:
  TokenisingLines(const Clock& clock, ProgressOutput& output) : clock_(clock), output_(output) {}
  ~TokenisingLines() { finish(); }
  void show(const SamplesMade& made);
  // Leaves the last line standing; nothing where nothing was shown.
  void finish();

 private:
  void end_set() TROUPE_REQUIRES(mutex_);

  const Clock& clock_;
  ProgressOutput& output_;
  Mutex mutex_;
  std::string set_ TROUPE_GUARDED_BY(mutex_);
  TimePoint began_ TROUPE_GUARDED_BY(mutex_), shown_ TROUPE_GUARDED_BY(mutex_);
  std::int64_t bytes_before_ TROUPE_GUARDED_BY(mutex_) = 0;  // made when `began_` was taken
  std::string last_ TROUPE_GUARDED_BY(mutex_);               // what is so far
  bool told_ TROUPE_GUARDED_BY(mutex_) = false;              // something of this set
  bool written_ TROUPE_GUARDED_BY(mutex_) = true;            // `last_` was, and ended
};

}  // namespace troupe::train
