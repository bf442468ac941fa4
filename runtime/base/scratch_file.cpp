#include "runtime/base/scratch_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/file_system.h"

namespace troupe {
namespace {

// Room grows by doubling, between these.
constexpr std::size_t kRoomBytesMin = std::size_t{1} << 16, kRoomBytesMax = std::size_t{1} << 28;

Result<UniqueFd> unnamed_file(const std::string& folder) {
  if (folder.empty()) {
    UniqueFd fd(::memfd_create("troupe-scratch", MFD_CLOEXEC));
    if (!fd.valid()) return errno_status(errno, "create", "memory for scratch data");
    return fd;
  }
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid()) return fd;
  // Not every file system has files without names.
  std::string path = join_path(folder, ".scratch-XXXXXX");
  UniqueFd named(::mkostemp(path.data(), O_CLOEXEC));
  if (!named.valid()) return errno_status(errno, "create a file in", folder);
  if (::unlink(path.c_str()) != 0) return errno_status(errno, "unlink", path);
  return named;
}

}  // namespace

Result<ScratchFile> ScratchFile::create(const std::string& folder) {
  return ScratchFile(TROUPE_TRY(unnamed_file(folder)),
                     folder.empty() ? std::string("memory") : folder);
}

ScratchFile::ScratchFile(ScratchFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      folder_(std::move(other.folder_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      room_(std::exchange(other.room_, 0)) {}

ScratchFile& ScratchFile::operator=(ScratchFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(folder_, other.folder_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(room_, other.room_);
  return *this;
}

ScratchFile::~ScratchFile() {
  if (data_) ::munmap(data_, room_);
}

Status ScratchFile::reserve(std::size_t more_bytes) {
  if (more_bytes <= room_ - size_) return {};
  const std::size_t least = size_ + more_bytes;
  std::size_t room = room_ + std::clamp(room_, kRoomBytesMin, kRoomBytesMax);
  room = (std::max(room, least) + kRoomBytesMin - 1) / kRoomBytesMin * kRoomBytesMin;
  int failed = EINTR;
  while (failed == EINTR)
    failed =
        ::posix_fallocate(fd_.get(), static_cast<off_t>(room_), static_cast<off_t>(room - room_));
  if (failed != 0) return errno_status(failed, "reserve room for scratch data in", folder_);
  void* const data = data_
                         ? ::mremap(data_, room_, room, MREMAP_MAYMOVE)
                         : ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (data == MAP_FAILED) return errno_status(errno, "map scratch data in", folder_);
  data_ = static_cast<std::byte*>(data);
  room_ = room;
  return {};
}

Status ScratchFile::append(std::span<const std::byte> data) {
  if (data.empty()) return {};
  TROUPE_RETURN_IF_ERROR(reserve(data.size()));
  std::memcpy(data_ + size_, data.data(), data.size());
  size_ += data.size();
  return {};
}

Status ScratchFile::grow(std::size_t more_bytes) {
  TROUPE_RETURN_IF_ERROR(reserve(more_bytes));
  size_ += more_bytes;
  return {};
}

}  // namespace troupe
