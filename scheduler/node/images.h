#pragma once
// The program files that actors run, opened once and held.

#include <deque>
#include <memory>

#include "runtime/process/executable.h"
#include "runtime/wire/types.h"
#include "scheduler/node/package_place.h"

namespace troupe::scheduler {

// Loop thread only.
class Images {
 public:
  // `own`: the program to compare with besides the one at the image's path; empty: this process's.
  explicit Images(std::string own) : own_path_(std::move(own)) {}
  // The program with the image's hash: this process's own, or that at the image's path, or at its
  // place in `package`. Where the hash is zero, whatever is at the path. kNotFound;
  // kFailedPrecondition naming both when they differ.
  Result<std::shared_ptr<process::Executable>> find(const wire::Image& image,
                                                    const PackagePlace& package);

 private:
  Result<std::shared_ptr<process::Executable>> own();

  const std::string own_path_;
  std::shared_ptr<process::Executable> own_;
  std::deque<std::pair<wire::Image, std::shared_ptr<process::Executable>>> opened_;
};

}  // namespace troupe::scheduler
