#include "scheduler/objects/spill_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "runtime/base/check.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"

namespace troupe::scheduler {
namespace {

constexpr const char* kLockName = "/in-use";

Status write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_status(errno, "write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

// Whether all of them were there.
Result<bool> read_all(int fd, std::span<std::byte> bytes, std::uint64_t at,
                      const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_status(errno, "read", path);
    if (count == 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    at += static_cast<std::uint64_t>(count);
  }
  return true;
}

}  // namespace

SpillFolder::~SpillFolder() {
  if (!lock_.valid()) return;
  std::error_code ec;
  std::filesystem::remove_all(path(), ec);
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

Result<std::shared_ptr<const SpillFile>> SpillFolder::write(std::uint64_t segment,
                                                            std::span<const SpillPiece> pieces) {
  TROUPE_RETURN_IF_ERROR(make());
  const std::shared_ptr<SpillFile> made(
      new SpillFile(fmt::format("{}/{}.segment", path(), segment)));
  const std::string& name = made->path_;
  const auto create = [&] {
    return UniqueFd(::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
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
  if (!file.valid()) return errno_status(errno, "write", name);
  std::uint64_t at = 0;
  for (const SpillPiece& piece : pieces) {
    // Hashed first, by which its pages are mapped: the kernel writes what is mapped page by page,
    // and for each page that is not it clears the rest of the file's large page.
    made->pieces_[piece.offset] = {at, piece.bytes.size(), xxh3_64(piece.bytes)};
    TROUPE_RETURN_IF_ERROR(write_all(file.get(), piece.bytes, name));
    at += piece.bytes.size();
  }
  return std::shared_ptr<const SpillFile>(made);
}

SpillFile::~SpillFile() { ::unlink(path_.c_str()); }

Status SpillFile::read(std::uint64_t offset, std::span<std::byte> into) const {
  const auto piece = pieces_.find(offset);
  TROUPE_CHECK(piece != pieces_.end() && piece->second.bytes == into.size(),
               "no object of {} bytes lay at {} of what is in {}", into.size(), offset, path_);
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return error(Code::kDataLoss, "objects that were moved to disk cannot be read back: {}: {}",
                 path_, std::strerror(errno));
  }
  const bool whole = TROUPE_TRY(read_all(file.get(), into, piece->second.at, path_));
  if (!whole || xxh3_64(into) != piece->second.xxh3) {
    return error(Code::kDataLoss,
                 "objects that were moved to disk are damaged: {} is not what was written there",
                 path_);
  }
  return {};
}

}  // namespace troupe::scheduler
