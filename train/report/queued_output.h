#pragma once
// Output that its writer does not wait for: a terminal that is stopped (Ctrl-S), or a pipe that
// nobody reads, must not hold up who follows a run, for a new controller waits for the driver.

#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "train/report/progress.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

class QueuedOutput final : public ProgressOutput {
 public:
  // `inner` outlives it, is written to by a thread of its own, and may be by others once finish()
  // has returned. Beyond `queued_max_bytes` what is written is left out, and told where it would
  // have stood.
  explicit QueuedOutput(ProgressOutput& inner, std::size_t queued_max_bytes = std::size_t{4} << 20);
  ~QueuedOutput() override { finish(); }
  QueuedOutput(const QueuedOutput&) = delete;
  QueuedOutput& operator=(const QueuedOutput&) = delete;

  bool is_terminal() const override { return inner_.is_terminal(); }
  int width() const override { return inner_.width(); }
  // Returns at once. Any thread; not after finish().
  void write(std::string_view text) override;
  // Waits until all has been written, however long the inner output waits for its reader.
  void finish();

 private:
  void write_queued();

  ProgressOutput& inner_;
  const std::size_t queued_max_bytes_;
  Mutex mutex_;
  CondVar changed_;
  std::string queued_ TROUPE_GUARDED_BY(mutex_);
  std::int64_t left_out_ TROUPE_GUARDED_BY(mutex_) = 0;  // lines
  bool finishing_ TROUPE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace troupe::train
