#include "runtime/base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "troupe/unique_fd.h"

namespace troupe {
namespace {

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Status append(std::span<const std::byte> data) override {
    while (!data.empty()) {
      const ssize_t n = ::write(fd_.get(), data.data(), data.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno_status(errno, "write", path_);
      data = data.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }

  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    while (!data.empty()) {
      const ssize_t n = ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno_status(errno, "write", path_);
      data = data.subspan(static_cast<std::size_t>(n));
      offset += static_cast<std::uint64_t>(n);
    }
    return {};
  }

  Status sync() override {
    return ::fsync(fd_.get()) == 0 ? Status() : errno_status(errno, "sync", path_);
  }

  // (A file system that cannot leaves it to sync().)
  void begin_sync() override { (void)::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE); }

  Status close() override {
    const int fd = fd_.release();
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) return errno_status(errno, "close", path_);
    return {};
  }

 private:
  UniqueFd fd_;
  std::string path_;
};

// Whole blocks go through `direct_`, the rest through `cached_`. Writers of neighbouring ranges
// share at most blocks that both write through the cache, which keeps them coherent.
class PosixPositionalFile final : public PositionalFile {
 public:
  // `direct` may be invalid: the file system knows no O_DIRECT.
  PosixPositionalFile(UniqueFd cached, UniqueFd direct, std::string path)
      : cached_(std::move(cached)), direct_(std::move(direct)), path_(std::move(path)) {}

  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    while (!data.empty()) {
      const auto [fd, size] = next_write(offset, data);
      const ssize_t n = ::pwrite(fd, data.data(), size, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EINVAL && fd == direct_.get()) {
        direct_.reset();  // blocks are larger here, or it was promised too much
        continue;
      }
      if (n < 0) return errno_status(errno, "write", path_);
      data = data.subspan(static_cast<std::size_t>(n));
      offset += static_cast<std::uint64_t>(n);
    }
    return {};
  }

  Status sync() override {
    return ::fsync(cached_.get()) == 0 ? Status() : errno_status(errno, "sync", path_);
  }

  Status close() override {
    direct_.reset();
    const int fd = cached_.release();
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) return errno_status(errno, "close", path_);
    return {};
  }

 private:
  // By which descriptor, and how many, the next bytes go.
  std::pair<int, std::size_t> next_write(std::uint64_t offset,
                                         std::span<const std::byte> data) const {
    const auto phase = static_cast<std::size_t>(offset % kBlockBytes);
    const bool same_phase = reinterpret_cast<std::uintptr_t>(data.data()) % kBlockBytes == phase;
    if (!direct_.valid() || !same_phase) return {cached_.get(), data.size()};
    if (phase == 0 && data.size() >= kBlockBytes) {
      return {direct_.get(), data.size() / kBlockBytes * kBlockBytes};
    }
    return {cached_.get(), std::min(data.size(), kBlockBytes - phase)};
  }

  UniqueFd cached_, direct_;
  std::string path_;
};

// A pipe without a writer would be waited for, instead of being refused as no regular file.
constexpr int kOpenRegular = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(UniqueFd fd, std::uint64_t size, std::string path)
      : fd_(std::move(fd)), size_(size), path_(std::move(path)) {}

  std::uint64_t size() const override { return size_; }
  Status read_at(std::uint64_t offset, std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t n = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno_status(errno, "read", path_);
      if (n == 0) return error(Code::kDataLoss, "{} ends at byte {}", path_, offset);
      out = out.subspan(static_cast<std::size_t>(n));
      offset += static_cast<std::uint64_t>(n);
    }
    return {};
  }

 private:
  UniqueFd fd_;
  std::uint64_t size_;
  std::string path_;
};

class PosixMappedFile final : public MappedFile {
 public:
  PosixMappedFile(void* data, std::size_t size) : data_(data), size_(size) {}
  ~PosixMappedFile() override {
    if (size_ > 0) ::munmap(data_, size_);
  }
  std::span<const std::byte> bytes() const override {
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  void* data_;
  std::size_t size_;
};

Result<std::unique_ptr<WritableFile>> open_writable(const std::string& path, int flags,
                                                    unsigned mode) {
  UniqueFd fd(::open(path.c_str(), flags | O_WRONLY | O_CREAT | O_CLOEXEC, mode));
  if (!fd.valid()) return errno_status(errno, "open for writing", path);
  return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(std::move(fd), path));
}

// Makes the file that long and reserves its room where the file system can.
Status set_file_size(int fd, std::uint64_t size_bytes, const std::string& path) {
  const auto size = static_cast<off_t>(size_bytes);
  int result = 0;
  do {
    result = size == 0 ? 0 : ::fallocate(fd, 0, 0, size);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    return errno_status(errno, "reserve room for", path);
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_status(errno, "stat", path);
  // Not where it is so already: other writers are at work.
  if (info.st_size == size) return {};
  return ::ftruncate(fd, size) == 0 ? Status() : errno_status(errno, "set the size of", path);
}

Status from_error_code(const std::error_code& ec, std::string_view what, std::string_view path) {
  return ec ? errno_status(ec.value(), what, path) : Status();
}

}  // namespace

Status errno_status(int errno_value, std::string_view what, std::string_view subject) {
  Code code = Code::kInternal;
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      code = Code::kNotFound;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = Code::kPermissionDenied;
      break;
    case EEXIST:
    case EADDRINUSE:
      code = Code::kAlreadyExists;
      break;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case EFBIG:
      code = Code::kResourceExhausted;
      break;
    case ENOMEM:
      code = Code::kOutOfMemory;
      break;
    case EISDIR:
    case ENAMETOOLONG:
    case EINVAL:
    case ELOOP:
      code = Code::kInvalidArgument;
      break;
    case ETIMEDOUT:
      code = Code::kDeadlineExceeded;
      break;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EADDRNOTAVAIL:
      code = Code::kUnavailable;
      break;
    case EIO:
      code = Code::kDataLoss;
      break;
    default:
      break;
  }
  return error(code, "cannot {} {}: {}", what, subject,
               std::generic_category().message(errno_value));
}

Result<std::unique_ptr<WritableFile>> PosixFileSystem::create(const std::string& path,
                                                              unsigned mode) {
  return open_writable(path, O_TRUNC, mode);
}

Result<std::unique_ptr<WritableFile>> PosixFileSystem::open_append(const std::string& path,
                                                                   unsigned mode) {
  return open_writable(path, O_APPEND, mode);
}

Result<std::unique_ptr<PositionalFile>> PosixFileSystem::open_positional(const std::string& path,
                                                                         std::uint64_t size_bytes,
                                                                         unsigned mode) {
  UniqueFd cached(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, mode));
  if (!cached.valid()) return errno_status(errno, "open for writing", path);
  TROUPE_RETURN_IF_ERROR(set_file_size(cached.get(), size_bytes, path));
  UniqueFd direct(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  return std::unique_ptr<PositionalFile>(
      std::make_unique<PosixPositionalFile>(std::move(cached), std::move(direct), path));
}

Result<std::unique_ptr<ReadableFile>> PosixFileSystem::open_readable(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), kOpenRegular));
  if (!fd.valid()) return errno_status(errno, "open", path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errno_status(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return error(Code::kInvalidArgument, "{} is not a regular file", path);
  }
  return std::unique_ptr<ReadableFile>(std::make_unique<PosixReadableFile>(
      std::move(fd), static_cast<std::uint64_t>(info.st_size), path));
}

Result<std::string> PosixFileSystem::read(const std::string& path, std::uint64_t bytes_max) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(errno, "open", path);
  std::string content;
  std::string chunk(64 << 10, '\0');
  for (;;) {
    const ssize_t n = ::read(fd.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(errno, "read", path);
    if (n == 0) return content;
    content.append(chunk.data(), static_cast<std::size_t>(n));
    if (content.size() > bytes_max) {
      return error(Code::kInvalidArgument, "{} is larger than the limit of {} bytes", path,
                   bytes_max);
    }
  }
}

Result<std::unique_ptr<MappedFile>> PosixFileSystem::map(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), kOpenRegular));
  if (!fd.valid()) return errno_status(errno, "open", path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errno_status(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return error(Code::kInvalidArgument, "{} is not a regular file", path);
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) return errno_status(errno, "map", path);
  }
  return std::unique_ptr<MappedFile>(std::make_unique<PosixMappedFile>(data, size));
}

Status PosixFileSystem::rename(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str()) == 0
             ? Status()
             : errno_status(errno, "rename", fmt::format("{} to {}", from, to));
}

Status PosixFileSystem::remove(const std::string& path) {
  return ::remove(path.c_str()) == 0 ? Status() : errno_status(errno, "remove", path);
}

Status PosixFileSystem::remove_tree(const std::string& path) {
  std::error_code ec;
  std::filesystem::remove_all(path, ec);
  return from_error_code(ec, "remove", path);
}

Status PosixFileSystem::create_directories(const std::string& path, unsigned mode) {
  std::error_code ec;
  const bool existed = std::filesystem::is_directory(path, ec);
  if (existed) return {};
  std::filesystem::create_directories(path, ec);
  TROUPE_RETURN_IF_ERROR(from_error_code(ec, "create directory", path));
  return ::chmod(path.c_str(), mode) == 0 ? Status() : errno_status(errno, "chmod", path);
}

Result<std::vector<DirectoryEntry>> PosixFileSystem::list(const std::string& path) {
  std::error_code ec;
  std::vector<DirectoryEntry> entries;
  std::filesystem::directory_iterator it(path, ec);
  for (; !ec && it != std::filesystem::directory_iterator(); it.increment(ec)) {
    std::error_code ignored;
    DirectoryEntry entry{it->path().filename().string(), it->is_directory(ignored), 0};
    if (!entry.is_directory) entry.size_bytes = it->file_size(ignored);
    if (ignored) entry.size_bytes = 0;
    entries.push_back(std::move(entry));
  }
  TROUPE_RETURN_IF_ERROR(from_error_code(ec, "list", path));
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

bool PosixFileSystem::exists(const std::string& path) {
  std::error_code ec;
  return std::filesystem::exists(path, ec);
}

Result<std::unique_ptr<PositionalFile>> FileSystem::open_positional(const std::string& path,
                                                                    std::uint64_t, unsigned) {
  return error(Code::kUnsupported, "{} lies where files are not written in places", path);
}

Result<std::unique_ptr<ReadableFile>> FileSystem::open_readable(const std::string& path) {
  return error(Code::kUnsupported, "{} lies where files are not read in places", path);
}

Result<unsigned> FileSystem::permissions(const std::string& path) {
  return error(Code::kUnsupported, "{} lies where files have no permissions", path);
}

Result<unsigned> PosixFileSystem::permissions(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno_status(errno, "stat", path);
  return static_cast<unsigned>(info.st_mode & 07777);
}

Result<std::uint64_t> PosixFileSystem::size(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno_status(errno, "stat", path);
  return static_cast<std::uint64_t>(info.st_size);
}

Status PosixFileSystem::sync_directory(const std::string& path) {
  UniqueFd fd(::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(errno, "open directory", path);
  return ::fsync(fd.get()) == 0 ? Status() : errno_status(errno, "sync directory", path);
}

Status write_file_atomically(FileSystem& files, const std::string& path, std::string_view content,
                             unsigned mode) {
  const std::string temporary = path + ".tmp";
  const auto write = [&]() -> Status {
    auto file = TROUPE_TRY(files.create(temporary, mode));
    TROUPE_RETURN_IF_ERROR(file->append(content));
    TROUPE_RETURN_IF_ERROR(file->sync());
    TROUPE_RETURN_IF_ERROR(file->close());
    TROUPE_RETURN_IF_ERROR(files.rename(temporary, path));
    return files.sync_directory(std::filesystem::path(path).parent_path().string());
  };
  Status status = write();
  // The first failure is the one to report; the temporary file may or may not exist.
  if (!status.ok()) static_cast<void>(files.remove(temporary));
  return status;
}

std::string join_path(std::string_view directory, std::string_view name) {
  return (std::filesystem::path(directory) / name).string();
}

}  // namespace troupe
