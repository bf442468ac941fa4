#pragma once
// A file system in memory that fails on command: the Nth operation, a full disk, a crash, a power
// cut that drops what was not synced. Code under test takes a FileSystem& and cannot tell.
//
// Names in a directory and bytes in a file are durable only after sync_directory and sync: the
// strictest reading of POSIX. May be used from several threads.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"

namespace troupe::tests {

class FaultyFileSystem final : public FileSystem {
 public:
  FaultyFileSystem();
  // Another process's view of the same disk: operations are counted, and fail, on their own; space
  // and what survives are common.
  explicit FaultyFileSystem(FaultyFileSystem& other);
  ~FaultyFileSystem() override;

  // Counts create, open, append, write_at, sync, close, rename, remove, remove_tree,
  // create_directories, list, read, read_at, map and sync_directory since the start.
  std::uint64_t operation_count() const;
  // The operation with this number (0 is the next) fails with `code`; an append has written half of
  // its bytes by then. Later ones succeed.
  void fail_operation(std::uint64_t number, Code code = Code::kDataLoss);
  // The process dies at this operation: it has done half of its work where it can, and it and all
  // later ones fail until revive().
  void crash_at_operation(std::uint64_t number);
  // Whether the failure or crash that was asked for has happened.
  bool fault_happened() const;
  // Appends beyond this total of file bytes fail with kResourceExhausted, having written what fits.
  void set_space_bytes(std::uint64_t bytes);

  // What survives.
  enum class Survives {
    kEverything,     // the process was killed, the machine lives
    kSyncedOnly,     // power cut: names and bytes that were synced
    kNamesNotBytes,  // power cut where the directories were written out but not the bytes
  };
  // Ends a crash: open files are gone, the tree is what survives. Of the views of one disk, call it
  // on each, the last one with what survives.
  void revive(Survives survives);

  // The files under `path`, whole relative paths, for comparisons.
  std::map<std::string, std::string> snapshot(const std::string& path) const;
  // Overwrites a file's bytes behind everybody's back: damage.
  void set_content(const std::string& path, std::string content);

  Result<std::unique_ptr<WritableFile>> create(const std::string& path,
                                               unsigned mode = 0644) override;
  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path,
                                                    unsigned mode = 0644) override;
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
  Status sync_directory(const std::string& path) override;

 private:
  struct Node;
  struct Disk;
  class OpenFile;
  class File;
  class Positional;
  class Readable;
  using NodePointer = std::shared_ptr<Node>;

  // Counts an operation; the error it must end with, or ok.
  Status begin(const char* what, const std::string& path);
  NodePointer find(const std::string& path) const;
  // The directory of `path` and the last name of it.
  std::pair<NodePointer, std::string> parent(const std::string& path) const;
  std::uint64_t used_bytes() const;

  // Writes what fits; the error where that is not all.
  Status write_into(Node& node, std::uint64_t offset, std::string_view text,
                    const std::string& path);

  std::shared_ptr<Disk> disk_;  // its mutex guards everything here, too
  std::uint64_t operation_count_ = 0;
  std::uint64_t fail_at_ = ~std::uint64_t{0};
  Code fail_code_ = Code::kDataLoss;
  bool crash_ = false;
  bool crashed_ = false;
  bool fault_happened_ = false;
  bool half_done_ = false;  // the operation that begins now is the one to fail
  std::uint64_t life_ = 0;  // files opened before a crash are dead after it
};

}  // namespace troupe::tests
