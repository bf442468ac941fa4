#pragma once
// The image that actor processes run: a program's file, held open, so that it stays what it was
// when the job started even where the path is written anew.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "troupe/detail/mutex.h"
#include "troupe/unique_fd.h"

namespace troupe::process {

class Executable {
 public:
  // The program that runs now: one object, so that it is read and hashed once.
  static Result<std::shared_ptr<Executable>> self();
  static Result<std::shared_ptr<Executable>> open(const std::string& path);

  // For SpawnOptions::executable_fd.
  int fd() const { return file_.get(); }
  // As it was called when it was opened.
  const std::string& path() const { return path_; }
  // XXH3-64 of its bytes, computed at the first call (about 0.1 ms per MB that is in memory). Any
  // thread.
  Result<std::uint64_t> xxh3();

 private:
  static Result<std::shared_ptr<Executable>> open_self();
  Executable(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  const UniqueFd file_;
  const std::string path_;
  Mutex mutex_;
  std::optional<std::uint64_t> xxh3_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::process
