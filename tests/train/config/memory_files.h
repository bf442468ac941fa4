#pragma once
// A file system of names and texts, read-only, for configuration tests.

#include <map>
#include <set>
#include <string>

#include "runtime/base/file_system.h"

namespace troupe::train::tests {

class MemoryFiles : public FileSystem {
 public:
  MemoryFiles() = default;
  explicit MemoryFiles(std::map<std::string, std::string> files) : files_(std::move(files)) {}

  void put(const std::string& path, std::string text) { files_[path] = std::move(text); }
  // As where the user has no right to read `path`.
  void deny(const std::string& path) { denied_.insert(path); }

  Result<std::string> read(const std::string& path, std::uint64_t bytes_max) override {
    if (denied_.contains(path)) return denied("open", path);
    const auto found = files_.find(path);
    if (found == files_.end()) {
      return error(Code::kNotFound, "cannot open {}: No such file or directory", path);
    }
    if (found->second.size() > bytes_max) {
      return error(Code::kInvalidArgument, "{}: {} bytes, the limit is {}", path,
                   found->second.size(), bytes_max);
    }
    return found->second;
  }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    if (denied_.contains(path)) return denied("list", path);
    std::vector<DirectoryEntry> out;
    for (const auto& [name, text] : files_) {
      if (name.starts_with(path + "/")) {
        out.push_back({name.substr(path.size() + 1), false, text.size()});
      }
    }
    if (out.empty()) return error(Code::kNotFound, "cannot list {}", path);
    return out;
  }
  bool exists(const std::string& path) override { return files_.contains(path) || list(path).ok(); }
  Result<std::uint64_t> size(const std::string& path) override {
    const auto found = files_.find(path);
    if (found == files_.end()) return error(Code::kNotFound, "no {}", path);
    return found->second.size();
  }

  Result<std::unique_ptr<WritableFile>> create(const std::string&, unsigned) override {
    return read_only();
  }
  Result<std::unique_ptr<WritableFile>> open_append(const std::string&, unsigned) override {
    return read_only();
  }
  Result<std::unique_ptr<MappedFile>> map(const std::string&) override { return read_only(); }
  Status rename(const std::string&, const std::string&) override { return read_only(); }
  Status remove(const std::string&) override { return read_only(); }
  Status remove_tree(const std::string&) override { return read_only(); }
  Status create_directories(const std::string&, unsigned) override { return read_only(); }
  Status sync_directory(const std::string&) override { return read_only(); }

 private:
  static Status denied(const char* what, const std::string& path) {
    return error(Code::kPermissionDenied, "cannot {} {}: Permission denied", what, path);
  }
  static Status read_only() { return Status(Code::kPermissionDenied, "read-only"); }
  std::map<std::string, std::string> files_;
  std::set<std::string> denied_;
};

// A configuration that is accepted, and the files it names.
inline constexpr const char* kGoodYaml = R"(model_name_or_path: tiny
train_from_scratch: true
stage: pt
do_train: true
finetuning_type: full
dataset: text
output_dir: out
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1e-4
lr_scheduler_type: cosine
warmup_ratio: 0.1
max_steps: 100
)";
inline MemoryFiles good_files() {
  return MemoryFiles({{"tiny/config.json", R"({"hidden_size": 64})"},
                      {"data/dataset_info.json", "{}"},
                      {"x.yaml", kGoodYaml}});
}

}  // namespace troupe::train::tests
