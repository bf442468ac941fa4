#pragma once
// A file system that tells what is done with files, and fails as injected faults say.
//
// Operations: create, open_append, open_positional, append, write_at, sync, close, rename, remove,
// remove_tree, create_directories, sync_directory, read, open, map, list. Each is a point of its
// own (PointKind::kFile, then kFileEnd), told to the recorder and judged by the faults.

#include <atomic>

#include "runtime/base/file_system.h"
#include "train/chaos/injector.h"
#include "train/progress/progress_recorder.h"

namespace troupe::train {

class ObservedFileSystem final : public FileSystem {
 public:
  // `files` and, where they are given, `recorder` and `faults` outlive it and every file opened
  // through it. Thread-safe as `files` is.
  explicit ObservedFileSystem(FileSystem& files);
  void observe(ProgressRecorder* recorder, FileFaults* faults);

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
  Result<unsigned> permissions(const std::string& path) override;
  Status sync_directory(const std::string& path) override;

 private:
  class Operation;
  class Writable;
  class Positional;

  FileSystem& files_;
  std::atomic<ProgressRecorder*> recorder_{nullptr};
  std::atomic<FileFaults*> faults_{nullptr};
};

}  // namespace troupe::train
