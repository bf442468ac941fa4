#include "train/trainer/surviving_memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "runtime/base/file_system.h"

namespace troupe::train {

Result<memory::Segment> map_found(UniqueFd fd) {
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return errno_status(errno, "look at", "a kept segment");
  return memory::Segment::adopt(std::move(fd), static_cast<std::size_t>(found.st_size),
                                memory::Access::kReadWrite, memory::Populate::kNow);
}

Result<std::optional<memory::Segment>> ProcessMemory::take(const std::string& name) {
  auto fd = TROUPE_TRY(take_descriptor(name));
  if (!fd) return std::optional<memory::Segment>();
  return std::optional<memory::Segment>(TROUPE_TRY(map_found(std::move(*fd))));
}

Status ProcessMemory::keep(const std::string& name, const memory::Segment& segment) {
  return keep_descriptor(name, segment.fd());
}

Result<std::optional<UniqueFd>> ProcessMemory::take_descriptor(const std::string& name) {
  MutexLock lock(mutex_);
  const auto found = kept_.find(name);
  if (found == kept_.end()) return std::optional<UniqueFd>();
  UniqueFd fd(::fcntl(found->second.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) return errno_status(errno, "duplicate", name);
  return std::optional<UniqueFd>(std::move(fd));
}

Status ProcessMemory::keep_descriptor(const std::string& name, int descriptor) {
  UniqueFd fd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) return errno_status(errno, "duplicate", name);
  MutexLock lock(mutex_);
  kept_.insert_or_assign(name, std::move(fd));
  return {};
}

Status ProcessMemory::forget(const std::string& name) {
  MutexLock lock(mutex_);
  kept_.erase(name);
  return {};
}

}  // namespace troupe::train
