#pragma once
// Objects on disk: a file for each segment that has left memory, in a folder of this node's own
// that is made at the first write and removed at the end. A file holds the bytes alone; their
// hashes (XXH3) stay in memory, as files mean nothing to another daemon. Bytes that are not what
// was written are kDataLoss.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "troupe/unique_fd.h"

namespace troupe::scheduler {

// An object's bytes, and where they lie in their segment.
struct SpillPiece {
  std::uint64_t offset = 0;
  std::span<const std::byte> bytes;
};

// The objects of one segment on disk. Removed with the last who uses it. Thread-safe.
class SpillFile {
 public:
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // The whole object that lay at `offset` of the segment. kDataLoss, with the path.
  Status read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  friend class SpillFolder;
  struct Written {
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
    std::uint64_t xxh3 = 0;
  };
  explicit SpillFile(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  std::map<std::uint64_t, Written> pieces_;  // by their offset in the segment
};

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
  Result<std::shared_ptr<const SpillFile>> write(std::uint64_t segment,
                                                 std::span<const SpillPiece> pieces);
  std::string path() const { return parent_ + "/" + name_; }
  // Also done before the first write.
  void remove_what_others_left() const;

 private:
  Status make();

  const std::string parent_;
  const std::string name_;
  std::mutex mutex_;
  UniqueFd lock_;  // flock()ed: the folder is in use
};

}  // namespace troupe::scheduler
