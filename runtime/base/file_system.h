#pragma once
// Files through an interface: production uses PosixFileSystem, tests wrap it to fail writes, drop
// what was not synced, or run out of space.
//
// Errors carry the path. A full disk is kResourceExhausted, a missing file kNotFound, a refused one
// kPermissionDenied. All calls may be made from any thread on different files.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace troupe {

// A file being written from its beginning, or from its end when opened for appending. Closed,
// without a sync, by its destructor.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Status append(std::span<const std::byte> data) = 0;
  Status append(std::string_view text) { return append(std::as_bytes(std::span(text))); }
  // Overwrites bytes that were appended before.
  virtual Status write_at(std::uint64_t offset, std::span<const std::byte> data) = 0;
  // fsync: what was appended survives a power loss when this returns ok.
  virtual Status sync() = 0;
  // The disk may write what was appended: sync() will have less to wait for. Waits for a
  // place in the disk's queue at the most.
  virtual void begin_sync() {}
  // Reports what a delayed write failed with. No call may follow.
  virtual Status close() = 0;
};

// A file's bytes, mapped read-only for as long as the object lives.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

// A file of a known size that is written in places, by one writer or by several at a time, in other
// processes too, each in its own places. Its bytes are zero where nothing was written. Closed,
// without a sync, by its destructor. One thread at a time.
class PositionalFile {
 public:
  // Bytes whose address and file offset are equal modulo this can go to the disk directly; what
  // lies before the first and behind the last whole block goes through the kernel's cache.
  static constexpr std::size_t kBlockBytes = 4096;

  virtual ~PositionalFile() = default;
  // Any range within the file. Fast where the address is as kBlockBytes says and the range is long.
  virtual Status write_at(std::uint64_t offset, std::span<const std::byte> data) = 0;
  // fsync: what was written, and the file's size, survive a power loss when this returns ok.
  virtual Status sync() = 0;
  // No call may follow.
  virtual Status close() = 0;
};

// A file being read in places. May be read from any thread.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // When it was opened.
  virtual std::uint64_t size() const = 0;
  // All of `out`; kDataLoss where the file ends before.
  virtual Status read_at(std::uint64_t offset, std::span<std::byte> out) = 0;
};

struct DirectoryEntry {
  std::string name;  // without the directory
  bool is_directory = false;
  std::uint64_t size_bytes = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Creates or truncates.
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path,
                                                       unsigned mode = 0644) = 0;
  // Creates where missing, else continues at the end.
  virtual Result<std::unique_ptr<WritableFile>> open_append(const std::string& path,
                                                            unsigned mode = 0644) = 0;
  // Creates where missing, makes the file `size_bytes` long and reserves its room
  // (kResourceExhausted now rather than halfway), keeping what others wrote into it. kUnsupported
  // unless overridden.
  virtual Result<std::unique_ptr<PositionalFile>> open_positional(const std::string& path,
                                                                  std::uint64_t size_bytes,
                                                                  unsigned mode = 0644);
  // kUnsupported unless overridden.
  virtual Result<std::unique_ptr<ReadableFile>> open_readable(const std::string& path);
  // The whole file; an error when it is larger than bytes_max.
  virtual Result<std::string> read(const std::string& path, std::uint64_t bytes_max) = 0;
  virtual Result<std::unique_ptr<MappedFile>> map(const std::string& path) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  // A file or an empty directory; kNotFound where there is none.
  virtual Status remove(const std::string& path) = 0;
  // A directory with all that is in it; ok where there is none. Does not follow links.
  virtual Status remove_tree(const std::string& path) = 0;
  virtual Status create_directories(const std::string& path, unsigned mode = 0755) = 0;
  // Sorted by name.
  virtual Result<std::vector<DirectoryEntry>> list(const std::string& path) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual Result<std::uint64_t> size(const std::string& path) = 0;
  // The mode's permission bits, such as 0600. kUnsupported where files have none.
  virtual Result<unsigned> permissions(const std::string& path);
  // fsync of a directory: names created, renamed or removed in it survive a power loss.
  virtual Status sync_directory(const std::string& path) = 0;
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<WritableFile>> create(const std::string& path,
                                               unsigned mode = 0644) override;
  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path,
                                                    unsigned mode = 0644) override;
  // Past the kernel's cache (O_DIRECT) where the file system allows it.
  Result<std::unique_ptr<PositionalFile>> open_positional(const std::string& path,
                                                          std::uint64_t size_bytes,
                                                          unsigned mode = 0644) override;
  Result<std::unique_ptr<ReadableFile>> open_readable(const std::string& path) override;
  Result<std::string> read(const std::string& path, std::uint64_t bytes_max) override;
  Result<std::unique_ptr<MappedFile>> map(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status remove_tree(const std::string& path) override;
  Status create_directories(const std::string& path, unsigned mode = 0755) override;
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  bool exists(const std::string& path) override;
  Result<std::uint64_t> size(const std::string& path) override;
  Result<unsigned> permissions(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
};

// Writes a file so that a reader sees the old bytes or the new ones, never half: temporary name in
// the same directory, fsync, rename, fsync of the directory.
Status write_file_atomically(FileSystem& files, const std::string& path, std::string_view content,
                             unsigned mode = 0644);

// The Status for errno after a failed system call: "cannot WHAT PATH: No such file or directory".
Status errno_status(int errno_value, std::string_view what, std::string_view subject);

// "a/b" of ("a", "b"); `name` alone when it is absolute or `directory` is empty.
std::string join_path(std::string_view directory, std::string_view name);

}  // namespace troupe
