#pragma once
// The disk under the head's journal: files in memory, and an append that a crash tears.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/random.h"

namespace troupe::simulation {

// What FileJournal needs of a file system; the rest is refused. What was appended survives a killed
// process, as it does on a machine that goes on.
class Disk final : public FileSystem {
 public:
  // The process dies in its next append: part of the bytes are written, by `random`, and it fails.
  void tear_next_append(Random& random) { tears_ = &random; }

  troupe::Result<std::unique_ptr<WritableFile>> create(const std::string& path,
                                                       unsigned mode) override;
  troupe::Result<std::unique_ptr<WritableFile>> open_append(const std::string& path,
                                                            unsigned mode) override;
  troupe::Result<std::unique_ptr<ReadableFile>> open_readable(const std::string& path) override;
  troupe::Result<std::string> read(const std::string& path, std::uint64_t bytes_max) override;
  troupe::Result<std::unique_ptr<MappedFile>> map(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status remove_tree(const std::string& path) override;
  Status create_directories(const std::string&, unsigned) override { return {}; }
  troupe::Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  bool exists(const std::string& path) override { return files_.contains(path); }
  troupe::Result<std::uint64_t> size(const std::string& path) override;
  Status sync_directory(const std::string&) override { return {}; }

 private:
  class File;
  class Readable;
  std::map<std::string, std::shared_ptr<std::string>> files_;
  Random* tears_ = nullptr;
};

}  // namespace troupe::simulation
