#pragma once
// A lock on a path that one process holds: the kernel takes it away with the process, however that
// ends, so a file that a killed holder left behind locks nothing.

#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "troupe/unique_fd.h"

namespace troupe {

class FileLock {
 public:
  // Creates the file where it is missing and writes `holder` into it: who has the lock, for people.
  // kAlreadyExists, whose message is what the present holder wrote, where another FileLock has it,
  // of this process or another one. kUnsupported where the file system has no locks.
  static Result<FileLock> take(const std::string& path, std::string_view holder);

  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();  // gives it back and removes the file

 private:
  FileLock(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  UniqueFd fd_;
};

}  // namespace troupe
