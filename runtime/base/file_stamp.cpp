#include "runtime/base/file_stamp.h"

#include <sys/stat.h>

#include <cerrno>

#include "runtime/base/file_system.h"

namespace troupe {

Result<FileStamp> file_stamp(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno_status(errno, "look at", path);
  return FileStamp{.size_bytes = static_cast<std::uint64_t>(status.st_size),
                   .modified_unix_ns =
                       std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
                   .inode = static_cast<std::uint64_t>(status.st_ino)};
}

}  // namespace troupe
