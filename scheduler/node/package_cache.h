#pragma once
// The packages that a node has, in a folder of its own: each as its file, for other nodes, and
// unpacked, for processes.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_lock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "runtime/wire/control_messages.h"
#include "troupe/detail/mutex.h"

namespace troupe::scheduler {

// One thread has it, but for directory_of() and set_needed(), which any thread may call.
class PackageCache {
 public:
  // Takes a folder under `directory` that no other daemon has: packages-of-HOST-1, …-2. `bytes_max`
  // bounds files and unpacked folders together.
  static Result<std::unique_ptr<PackageCache>> open(const std::string& directory,
                                                    std::uint64_t bytes_max, const Clock& clock);
  ~PackageCache();  // of a folder without packages nothing stays

  // Looks at one more of the packages that a daemon before left there: it is here again where it is
  // what its hash says, and is removed where not. False: there is none any more.
  bool take_up_next();
  // The hashes of what is here.
  std::vector<std::string> all() const;
  // The unpacked folder; nothing: the package is not here. It counts as used now.
  std::optional<std::string> directory_of(const wire::Package& package);
  // A piece of its file. kNotFound.
  Result<wire::SegmentBytes> read(const wire::ReadPackage& request);
  // What is not to make room for others, by hash.
  void set_needed(std::set<std::string> sha256s);

  // A package's file while it comes. What is not finished leaves nothing.
  class Arrival {
   public:
    ~Arrival();
    Arrival(const Arrival&) = delete;
    Arrival& operator=(const Arrival&) = delete;
    // kDataLoss for more than the package has.
    Status append(std::span<const std::byte> bytes);
    // The whole of it has come: unpacks it. kDataLoss where it is not what its hash says.
    Status finish();
    std::uint64_t size() const { return size_; }

   private:
    friend class PackageCache;
    Arrival(PackageCache& cache, wire::Package package, std::string path)
        : cache_(cache), package_(std::move(package)), path_(std::move(path)) {}
    PackageCache& cache_;
    const wire::Package package_;
    const std::string path_;
    std::unique_ptr<WritableFile> file_;
    std::uint64_t size_ = 0;
  };
  // Makes room for it. kAlreadyExists: the package is here, and counts as used now; one that was
  // damaged meanwhile is not. kResourceExhausted: what is here is in use; the message has the
  // figures.
  Result<std::unique_ptr<Arrival>> receive(const wire::Package& package);

 private:
  struct Entry {
    std::uint64_t bytes = 0;  // that it counts for
    TimePoint used;
  };
  PackageCache(FileLock lock, std::string folder, std::uint64_t bytes_max, const Clock& clock)
      : lock_(std::move(lock)), folder_(std::move(folder)), bytes_max_(bytes_max), clock_(clock) {}
  std::string file_path(const std::string& sha256) const;
  Status look_around();
  Status check(const std::string& sha256) const;
  void add(const std::string& sha256, std::uint64_t file_bytes);
  void remove(const std::string& sha256);
  Status make_room(std::uint64_t bytes);
  Status keep(const wire::Package& package, const std::string& file);

  std::optional<FileLock> lock_;
  const std::string folder_;
  const std::uint64_t bytes_max_;
  const Clock& clock_;
  std::vector<std::string> left_;  // by a daemon before, by hash
  std::uint64_t arriving_bytes_ = 0;
  std::uint64_t next_name_ = 1;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ TROUPE_GUARDED_BY(mutex_);
  std::set<std::string> needed_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::scheduler
