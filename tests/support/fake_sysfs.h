#pragma once
// A file system of texts: /proc, /sys and /dev as a test describes them.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"

namespace troupe::tests {

// Texts by path; nothing can be written.
struct FakeSysfs final : FileSystem {
  std::map<std::string, std::string> texts = {
      {"/proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"}};
  std::vector<std::string> devices;

  static Status refused() { return error(Code::kUnsupported, "read only"); }
  Result<std::unique_ptr<WritableFile>> create(const std::string&, unsigned) override {
    return refused();
  }
  Result<std::unique_ptr<WritableFile>> open_append(const std::string&, unsigned) override {
    return refused();
  }
  Result<std::string> read(const std::string& path, std::uint64_t) override {
    const auto found = texts.find(path);
    if (found == texts.end()) return error(Code::kNotFound, "no {}", path);
    return found->second;
  }
  Result<std::unique_ptr<MappedFile>> map(const std::string&) override { return refused(); }
  Status rename(const std::string&, const std::string&) override { return refused(); }
  Status remove(const std::string&) override { return refused(); }
  Status remove_tree(const std::string&) override { return refused(); }
  Status create_directories(const std::string&, unsigned) override { return refused(); }
  Result<std::vector<DirectoryEntry>> list(const std::string&) override {
    std::vector<DirectoryEntry> entries;
    for (const auto& name : devices) entries.push_back({name});
    return entries;
  }
  bool exists(const std::string& path) override { return texts.contains(path); }
  Result<std::uint64_t> size(const std::string&) override { return refused(); }
  Status sync_directory(const std::string&) override { return refused(); }
};

}  // namespace troupe::tests
