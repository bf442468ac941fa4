#include "runtime/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace troupe::memory {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Code code_of_errno(int number) {
  switch (number) {
    case ENOMEM:
    case ENOSPC:
      return Code::kOutOfMemory;
    case EMFILE:
    case ENFILE:
      return Code::kResourceExhausted;
    case EPERM:
    case EACCES:
      return Code::kPermissionDenied;
    default:
      return Code::kInvalidArgument;
  }
}

Status system_error(const char* call, const std::string& what) {
  const int number = errno;
  return error(code_of_errno(number), "{}: {} failed: {}", what, call, std::strerror(number));
}

}  // namespace

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

Result<Segment> Segment::create(const std::string& name, std::size_t size_bytes,
                                Populate populate) {
  const std::string what = fmt::format("shared-memory segment '{}' of {} bytes", name, size_bytes);
  if (size_bytes == 0) return error(Code::kInvalidArgument, "{}: a segment cannot be empty", what);
  if (name.size() > 200)
    return error(Code::kInvalidArgument, "{}: its name is longer than 200 characters", what);
  // The kernel would try, and the out-of-memory killer would answer.
  const auto physical = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes();
  if (populate == Populate::kNow && size_bytes > physical)
    return error(Code::kOutOfMemory, "{}: this machine has {} bytes of memory", what, physical);
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return system_error("memfd_create", what);
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0)
    return system_error("ftruncate", what);
  // Reserving here turns a later SIGBUS on full memory into an error now.
  if (populate == Populate::kNow &&
      ::fallocate(fd.get(), 0, 0, static_cast<off_t>(size_bytes)) != 0 && errno != EOPNOTSUPP)
    return system_error("fallocate", what);
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0)
    return system_error("sealing", what);
  return map(std::move(fd), size_bytes, Access::kReadWrite, populate);
}

Result<Segment> Segment::adopt(UniqueFd fd, std::size_t size_bytes, Access access,
                               Populate populate) {
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0)
    return error(Code::kInvalidArgument, "adopting a segment: descriptor {} is not open", fd.get());
  if (static_cast<std::size_t>(info.st_size) != size_bytes || size_bytes == 0)
    return error(Code::kProtocol, "adopting a segment: it has {} bytes where {} were announced",
                 static_cast<long long>(info.st_size), size_bytes);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals)
    return error(Code::kProtocol,
                 "adopting a segment: the descriptor is not a memfd sealed against changing size");
  return map(std::move(fd), size_bytes, access, populate);
}

Result<Segment> Segment::map(UniqueFd fd, std::size_t size_bytes, Access access,
                             Populate populate) {
  const int protection = PROT_READ | (access == Access::kReadWrite ? PROT_WRITE : 0);
  const int flags = MAP_SHARED | (populate == Populate::kNow ? MAP_POPULATE : 0);
  void* data = ::mmap(nullptr, size_bytes, protection, flags, fd.get(), 0);
  if (data == MAP_FAILED)
    return system_error("mmap", fmt::format("shared-memory segment of {} bytes", size_bytes));
  Segment segment;
  segment.fd_ = std::move(fd);
  segment.data_ = static_cast<std::byte*>(data);
  segment.size_bytes_ = size_bytes;
  segment.access_ = access;
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      access_(other.access_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    unmap();
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    access_ = other.access_;
  }
  return *this;
}

Segment::~Segment() { unmap(); }

void Segment::unmap() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
  data_ = nullptr;
}

Result<UniqueFd> Segment::duplicate_fd() const {
  UniqueFd copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return system_error("duplicating a segment's descriptor", "segment");
  return copy;
}

}  // namespace troupe::memory
