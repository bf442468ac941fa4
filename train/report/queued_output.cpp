#include "train/report/queued_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/signal_block.h"

namespace troupe::train {

QueuedOutput::QueuedOutput(ProgressOutput& inner, std::size_t queued_max_bytes)
    : inner_(inner), queued_max_bytes_(queued_max_bytes) {
  const SignalBlock block;  // they are the program's
  thread_ = std::thread([this] { write_queued(); });
}

void QueuedOutput::write(std::string_view text) {
  MutexLock lock(mutex_);
  TROUPE_CHECK(!finishing_);
  // One line tells of all that is left out, so that order and counts stay right.
  if (left_out_ > 0 || queued_.size() + text.size() > queued_max_bytes_)
    left_out_ += std::max<std::int64_t>(1, std::ranges::count(text, '\n'));
  else
    queued_ += text;
  changed_.notify_all();
}

void QueuedOutput::finish() {
  {
    MutexLock lock(mutex_);
    finishing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void QueuedOutput::write_queued() {
  for (;;) {
    std::string text;
    {
      MutexLock lock(mutex_);
      const auto ready = [this]() TROUPE_NO_ANALYSIS { return finishing_ || !queued_.empty(); };
      if (!changed_.wait_until(mutex_, Deadline::after(std::chrono::hours(1)), ready)) continue;
      if (queued_.empty()) return;
      text = std::exchange(queued_, {});
      if (left_out_ > 0)
        text += fmt::format("notice: {} lines are left out here, which nobody read in time\n",
                            std::exchange(left_out_, 0));
    }
    inner_.write(text);
  }
}

}  // namespace troupe::train
