#pragma once
// One process downloads a file into a cache, the others wait for it: huggingface_hub's lock, flock
// on a file that stays.

#include <functional>

#include "runtime/base/status.h"
#include "troupe/clock.h"
#include "troupe/unique_fd.h"

namespace troupe::train::hub {

class DownloadLock {
 public:
  // Waits while another process has it. `goes_on` is asked from time to time how much that one has
  // done; kDeadlineExceeded when it has done nothing more for two minutes.
  static Result<DownloadLock> take(const std::string& path,
                                   const std::function<std::uint64_t()>& goes_on,
                                   const std::function<void(Duration)>& wait);

  // False on a file system without locks: another process may download the same file.
  bool exclusive() const { return exclusive_; }

 private:
  DownloadLock(UniqueFd fd, bool exclusive) : fd_(std::move(fd)), exclusive_(exclusive) {}
  UniqueFd fd_;
  bool exclusive_;
};

}  // namespace troupe::train::hub
