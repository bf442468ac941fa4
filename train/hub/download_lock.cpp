#include "train/hub/download_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "runtime/base/file_system.h"

namespace troupe::train::hub {
namespace {

constexpr Duration kLookAgain = std::chrono::milliseconds(100);
// Longer than a holder waits that the hub has asked to (client.cpp: ten minutes of 429).
constexpr Duration kStandstill = std::chrono::minutes(12);

}  // namespace

Result<DownloadLock> DownloadLock::take(const std::string& path,
                                        const std::function<std::uint64_t()>& goes_on,
                                        const std::function<void(Duration)>& wait) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return errno_status(errno, "open", path);
  std::uint64_t done = goes_on();
  for (Duration still{};; still += kLookAgain) {
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return DownloadLock(std::move(fd), true);
    if (errno != EWOULDBLOCK && errno != EINTR) return DownloadLock(std::move(fd), false);
    if (const auto more = goes_on(); more != done) {
      done = more;
      still = {};
    }
    if (still >= kStandstill)
      return error(Code::kDeadlineExceeded,
                   "another process holds {} and downloads nothing; end it and try again", path);
    wait(kLookAgain);
  }
}

}  // namespace troupe::train::hub
