#pragma once
// Segments of the object store on disk: a file each, in a folder of this node's own that is made at
// the first write and removed at the end. A file is a header (magic, length, XXH3 of the bytes) and
// the bytes; one that is not what was written is kDataLoss.

#include <cstdint>
#include <mutex>
#include <string>

#include "runtime/base/status.h"
#include "scheduler/objects/object_memory.h"
#include "troupe/unique_fd.h"

namespace troupe::scheduler {

// Thread-safe.
class SpillFolder {
 public:
  // `parent` is made where it is missing; what daemons that were killed have left in it is removed.
  SpillFolder(std::string parent, std::string name)
      : parent_(std::move(parent)), name_(std::move(name)) {}
  ~SpillFolder();
  SpillFolder(const SpillFolder&) = delete;
  SpillFolder& operator=(const SpillFolder&) = delete;

  // kResourceExhausted, kPermissionDenied, with the path.
  Status write(std::uint64_t segment, ObjectMemory& memory);
  // Into memory of the same size. kDataLoss.
  Status read(std::uint64_t segment, ObjectMemory& memory);
  void remove(std::uint64_t segment);
  std::string path() const { return parent_ + "/" + name_; }

 private:
  std::string path_of(std::uint64_t segment) const;
  Status make();
  void remove_what_others_left() const;

  const std::string parent_;
  const std::string name_;
  std::mutex mutex_;
  UniqueFd lock_;  // flock()ed: the folder is in use
};

}  // namespace troupe::scheduler
