#include "runtime/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "runtime/base/huge_pages.h"

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25
#endif

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

// A shared mapping of the file; a large one begins at a multiple of a huge page, so that huge pages
// of the file are mapped as such. MAP_FAILED on errors.
void* map_aligned(int fd, std::size_t size, int protection) {
  if (size < kHugePageBytes) return ::mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  void* const reserved = ::mmap(nullptr, size + kHugePageBytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(reserved);
  const std::size_t to_boundary = -reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes;
  std::byte* const at = begin + to_boundary;
  if (::mmap(at, size, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int number = errno;
    ::munmap(begin, size + kHugePageBytes);
    errno = number;
    return MAP_FAILED;
  }
  const std::size_t mapped = (size + page_bytes() - 1) / page_bytes() * page_bytes();
  if (to_boundary > 0) ::munmap(begin, to_boundary);
  if (to_boundary + mapped < size + kHugePageBytes)
    ::munmap(at + mapped, size + kHugePageBytes - to_boundary - mapped);
  return at;
}

// Puts huge pages into a new file, whose mapping begins at a multiple of one: a tenth of the time
// that small ones take, and loops over them miss fewer addresses. Shared memory gets none otherwise
// (shmem_enabled is "never" nearly everywhere); one that is asked for by name it does, where a page
// is there already (since Linux 6.1). What is refused gets small pages.
void fill_with_huge_pages(int fd, std::byte* data, std::size_t size) {
  for (std::size_t at = 0; at + kHugePageBytes <= size; at += kHugePageBytes) {
    if (::fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(page_bytes())) != 0) return;
    if (::madvise(data + at, kHugePageBytes, MADV_COLLAPSE) != 0) return;
  }
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
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0)
    return system_error("sealing", what);
  Segment made = TROUPE_TRY(map(std::move(fd), size_bytes, Access::kReadWrite));
  if (populate == Populate::kNow) {
    fill_with_huge_pages(made.fd(), made.data(), size_bytes);
    // Reserving here turns a later SIGBUS on full memory into an error now.
    if (::fallocate(made.fd(), 0, 0, static_cast<off_t>(size_bytes)) != 0 && errno != EOPNOTSUPP)
      return system_error("fallocate", what);
    made.populate();
  }
  return made;
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
  Segment segment = TROUPE_TRY(map(std::move(fd), size_bytes, access));
  if (populate == Populate::kNow) segment.populate();
  return segment;
}

Result<Segment> Segment::map(UniqueFd fd, std::size_t size_bytes, Access access) {
  const int protection = PROT_READ | (access == Access::kReadWrite ? PROT_WRITE : 0);
  void* data = map_aligned(fd.get(), size_bytes, protection);
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

// Advice: pages that are not mapped now are at their first touch.
void Segment::populate() {
  const int advice = access_ == Access::kReadWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  static_cast<void>(::madvise(data_, size_bytes_, advice));
}

void Segment::unmap() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
  data_ = nullptr;
}

void Segment::discard(std::size_t offset, std::size_t bytes) {
  // Advice: where the kernel refuses, the memory stays in use.
  static_cast<void>(::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(offset), static_cast<off_t>(bytes)));
}

Result<UniqueFd> Segment::duplicate_fd() const {
  UniqueFd copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return system_error("duplicating a segment's descriptor", "segment");
  return copy;
}

}  // namespace troupe::memory
