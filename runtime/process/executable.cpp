#include "runtime/process/executable.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <climits>
#include <span>
#include <string_view>

#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"

namespace troupe::process {
namespace {

constexpr const char* kSelf = "/proc/self/exe";
// What the kernel writes behind the path of a file that was removed or replaced.
constexpr std::string_view kDeleted = " (deleted)";

}  // namespace

Result<std::shared_ptr<Executable>> Executable::self() {
  static Mutex mutex;
  static std::shared_ptr<Executable> known;
  MutexLock lock(mutex);
  if (!known) known = TROUPE_TRY(open_self());
  return known;
}

Result<std::shared_ptr<Executable>> Executable::open_self() {
  UniqueFd file(::open(kSelf, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return errno_status(errno, "open", kSelf);
  char path[PATH_MAX];
  const ssize_t length = ::readlink(kSelf, path, sizeof(path));
  if (length < 0) return errno_status(errno, "read", kSelf);
  std::string_view name(path, static_cast<std::size_t>(length));
  if (name.ends_with(kDeleted)) name.remove_suffix(kDeleted.size());
  return std::shared_ptr<Executable>(new Executable(std::move(file), std::string(name)));
}

Result<std::shared_ptr<Executable>> Executable::open(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return errno_status(errno, "open", path);
  return std::shared_ptr<Executable>(new Executable(std::move(file), path));
}

Result<std::uint64_t> Executable::xxh3() {
  MutexLock lock(mutex_);
  if (xxh3_) return *xxh3_;
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return errno_status(errno, "read", path_);
  if (!S_ISREG(status.st_mode)) {
    return error(Code::kInvalidArgument, "{} is not a file that can be run", path_);
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    xxh3_ = xxh3_64({});
    return *xxh3_;
  }
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file_.get(), 0);
  if (memory == MAP_FAILED) return errno_status(errno, "map", path_);
  xxh3_ = xxh3_64(std::span(static_cast<const std::byte*>(memory), size));
  ::munmap(memory, size);
  return *xxh3_;
}

}  // namespace troupe::process
