#include "runtime/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace troupe {
namespace {

// How often a holder may give the lock back between our opening the file and our locking it.
constexpr int kAttemptsMax = 100;

Status failed(const char* what, const std::string& path) {
  return error(Code::kPermissionDenied, "{} {}: {}", what, path, std::strerror(errno));
}

std::string content_of(int fd) {
  std::array<char, 1024> text;
  const ssize_t count = ::pread(fd, text.data(), text.size(), 0);
  return std::string(text.data(), static_cast<std::size_t>(count > 0 ? count : 0));
}

// Whether the path still names the file that was opened: its holder removes it.
bool still_there(int fd, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

Result<FileLock> FileLock::take(const std::string& path, std::string_view holder) {
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!fd.valid()) return failed("opening", path);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return Status(Code::kAlreadyExists, content_of(fd.get()));
      return error(Code::kUnsupported, "{} cannot be locked: {}", path, std::strerror(errno));
    }
    if (!still_there(fd.get(), path)) continue;
    if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), holder.data(), holder.size(), 0) !=
                                             static_cast<ssize_t>(holder.size())) {
      return failed("writing", path);
    }
    return FileLock(path, std::move(fd));
  }
  return error(Code::kUnavailable, "{} is taken and given back all the time", path);
}

FileLock::~FileLock() {
  if (fd_.valid()) ::unlink(path_.c_str());
}

}  // namespace troupe
