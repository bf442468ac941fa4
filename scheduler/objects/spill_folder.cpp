#include "scheduler/objects/spill_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <span>

#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"

namespace troupe::scheduler {
namespace {

constexpr std::uint64_t kSpillMagic = 0x314c4c4950535254;  // "TRSPILL1"
constexpr const char* kLockName = "/in-use";

struct SpillHeader {
  std::uint64_t magic = kSpillMagic;
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;
};

Status write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_status(errno, "write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

// How many of the bytes were there.
Result<std::size_t> read_all(int fd, std::span<std::byte> bytes, const std::string& path) {
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t count = ::read(fd, bytes.data() + have, bytes.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_status(errno, "read", path);
    if (count == 0) break;
    have += static_cast<std::size_t>(count);
  }
  return have;
}

}  // namespace

SpillFolder::~SpillFolder() {
  if (!lock_.valid()) return;
  std::error_code ec;
  std::filesystem::remove_all(path(), ec);
}

std::string SpillFolder::path_of(std::uint64_t segment) const {
  return fmt::format("{}/{}.segment", path(), segment);
}

void SpillFolder::remove_what_others_left() const {
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(parent_, ec)) {
    const std::string other = entry.path().string();
    const UniqueFd lock(::open((other + kLockName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!lock.valid() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::error_code ignored;
    std::filesystem::remove_all(other, ignored);
  }
}

Status SpillFolder::make() {
  const std::lock_guard lock(mutex_);
  if (lock_.valid()) return {};
  std::error_code ec;
  std::filesystem::create_directories(parent_, ec);
  if (ec) return errno_status(ec.value(), "make the folder", parent_);
  remove_what_others_left();
  if (::mkdir(path().c_str(), 0700) != 0 && errno != EEXIST) {
    return errno_status(errno, "make the folder", path());
  }
  const std::string name = path() + kLockName;
  UniqueFd taken(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!taken.valid()) return errno_status(errno, "make", name);
  if (::flock(taken.get(), LOCK_EX | LOCK_NB) != 0) return errno_status(errno, "lock", name);
  lock_ = std::move(taken);
  return {};
}

Status SpillFolder::write(std::uint64_t segment, ObjectMemory& memory) {
  TROUPE_RETURN_IF_ERROR(make());
  const std::span<const std::byte> bytes = memory.mapped();
  if (bytes.empty()) return Status(Code::kOutOfMemory, "a segment of objects cannot be mapped");
  const std::string path = path_of(segment);
  const auto create = [&] {
    return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  };
  UniqueFd file = create();
  if (!file.valid() && errno == ENOENT) {  // somebody has removed the folder
    {
      const std::lock_guard lock(mutex_);
      lock_.reset();
    }
    TROUPE_RETURN_IF_ERROR(make());
    file = create();
  }
  if (!file.valid()) return errno_status(errno, "write", path);
  const SpillHeader header{.bytes = bytes.size(), .xxh3 = xxh3_64(bytes)};
  Status written = write_all(file.get(), std::as_bytes(std::span(&header, 1)), path);
  if (written.ok()) written = write_all(file.get(), bytes, path);
  if (!written.ok()) ::unlink(path.c_str());
  return written;
}

Status SpillFolder::read(std::uint64_t segment, ObjectMemory& memory) {
  const std::string path = path_of(segment);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return error(Code::kDataLoss, "objects that were moved to disk cannot be read back: {}: {}",
                 path, std::strerror(errno));
  }
  const std::span<std::byte> bytes = memory.mapped();
  if (bytes.empty()) return Status(Code::kOutOfMemory, "a segment of objects cannot be mapped");
  SpillHeader header;
  const std::size_t head =
      TROUPE_TRY(read_all(file.get(), std::as_writable_bytes(std::span(&header, 1)), path));
  const std::size_t have = TROUPE_TRY(read_all(file.get(), bytes, path));
  if (head != sizeof header || header.magic != kSpillMagic || header.bytes != bytes.size() ||
      have != bytes.size() || xxh3_64(bytes) != header.xxh3) {
    return error(Code::kDataLoss,
                 "objects that were moved to disk are damaged: {} is not what was written there",
                 path);
  }
  return {};
}

void SpillFolder::remove(std::uint64_t segment) { ::unlink(path_of(segment).c_str()); }

}  // namespace troupe::scheduler
