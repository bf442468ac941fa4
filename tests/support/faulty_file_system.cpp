#include "tests/support/faulty_file_system.h"

#include <algorithm>
#include <functional>

#include "runtime/base/check.h"

namespace troupe::tests {

// A file or a directory: what the process sees, and what the disk holds.
struct FaultyFileSystem::Node {
  bool is_directory = false;
  std::string bytes, durable_bytes;
  std::map<std::string, NodePointer> entries, durable_entries;
};

namespace {

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : path + "/") {
    if (c != '/') {
      part += c;
    } else if (!part.empty() && part != ".") {
      parts.push_back(std::exchange(part, {}));
    } else {
      part.clear();
    }
  }
  return parts;
}

class Copy final : public MappedFile {
 public:
  explicit Copy(std::string bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

Status missing(const char* what, const std::string& path) {
  return error(Code::kNotFound, "cannot {} {}: No such file or directory", what, path);
}

}  // namespace

class FaultyFileSystem::File final : public WritableFile {
 public:
  File(FaultyFileSystem& files, NodePointer node, std::string path)
      : files_(files), node_(std::move(node)), path_(std::move(path)), life_(files.life_) {}

  using WritableFile::append;
  Status append(std::span<const std::byte> data) override {
    TROUPE_RETURN_IF_ERROR(alive());
    std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
    Status status = files_.begin("write", path_);
    if (!status) {
      if (files_.half_done_) node_->bytes += text.substr(0, text.size() / 2);
      return status;
    }
    const auto used = files_.used_bytes();
    const auto space = files_.space_bytes_ - std::min(files_.space_bytes_, used);
    node_->bytes += text.substr(0, std::min<std::uint64_t>(space, text.size()));
    if (text.size() > space) {
      return error(Code::kResourceExhausted, "cannot write {}: No space left on device", path_);
    }
    return {};
  }

  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    TROUPE_RETURN_IF_ERROR(alive());
    TROUPE_RETURN_IF_ERROR(files_.begin("write", path_));
    if (node_->bytes.size() < offset + data.size()) node_->bytes.resize(offset + data.size());
    std::copy_n(reinterpret_cast<const char*>(data.data()), data.size(),
                node_->bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }

  Status sync() override {
    TROUPE_RETURN_IF_ERROR(alive());
    TROUPE_RETURN_IF_ERROR(files_.begin("sync", path_));
    node_->durable_bytes = node_->bytes;
    return {};
  }

  Status close() override {
    TROUPE_RETURN_IF_ERROR(alive());
    return files_.begin("close", path_);
  }

 private:
  Status alive() const {
    return life_ == files_.life_
               ? Status()
               : error(Code::kCancelled, "the process that opened {} died", path_);
  }
  FaultyFileSystem& files_;
  NodePointer node_;
  std::string path_;
  std::uint64_t life_;
};

FaultyFileSystem::FaultyFileSystem() : root_(std::make_shared<Node>()) {
  root_->is_directory = true;
}
FaultyFileSystem::~FaultyFileSystem() = default;

void FaultyFileSystem::fail_operation(std::uint64_t number, Code code) {
  fail_at_ = operation_count_ + number;
  fail_code_ = code;
  crash_ = false;
  fault_happened_ = false;
}

void FaultyFileSystem::crash_at_operation(std::uint64_t number) {
  fail_operation(number, Code::kCancelled);
  crash_ = true;
}

Status FaultyFileSystem::begin(const char* what, const std::string& path) {
  const auto number = operation_count_++;
  half_done_ = !crashed_ && number == fail_at_;
  if (crashed_) return error(Code::kCancelled, "cannot {} {}: the process is dead", what, path);
  if (number != fail_at_) return {};
  fault_happened_ = true;
  crashed_ = crash_;
  return error(fail_code_, "cannot {} {}: injected failure", what, path);
}

void FaultyFileSystem::revive(Survives survives) {
  crashed_ = false;
  fail_at_ = ~std::uint64_t{0};
  ++life_;
  const std::function<void(Node&)> restore = [&](Node& node) {
    if (survives == Survives::kEverything) return;
    if (survives == Survives::kSyncedOnly) node.entries = node.durable_entries;
    node.bytes = node.durable_bytes;
    node.durable_entries = node.entries;
    for (auto& [name, child] : node.entries) restore(*child);
  };
  restore(*root_);
}

FaultyFileSystem::NodePointer FaultyFileSystem::find(const std::string& path) const {
  NodePointer node = root_;
  for (const auto& part : parts_of(path)) {
    const auto it = node->entries.find(part);
    if (it == node->entries.end()) return nullptr;
    node = it->second;
  }
  return node;
}

std::pair<FaultyFileSystem::NodePointer, std::string> FaultyFileSystem::parent(
    const std::string& path) const {
  auto parts = parts_of(path);
  TROUPE_CHECK(!parts.empty());
  const std::string name = parts.back();
  std::string directory;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) directory += "/" + parts[i];
  auto node = find(directory);
  return {node && node->is_directory ? node : nullptr, name};
}

std::uint64_t FaultyFileSystem::used_bytes() const {
  std::uint64_t bytes = 0;
  const std::function<void(const Node&)> add = [&](const Node& node) {
    bytes += node.bytes.size();
    for (const auto& [name, child] : node.entries) add(*child);
  };
  add(*root_);
  return bytes;
}

std::map<std::string, std::string> FaultyFileSystem::snapshot(const std::string& path) const {
  std::map<std::string, std::string> contents;
  const std::function<void(const Node&, const std::string&)> add = [&](const Node& node,
                                                                       const std::string& prefix) {
    for (const auto& [name, child] : node.entries) {
      if (child->is_directory) {
        add(*child, prefix + name + "/");
      } else {
        contents[prefix + name] = child->bytes;
      }
    }
  };
  if (const auto node = find(path)) add(*node, "");
  return contents;
}

void FaultyFileSystem::set_content(const std::string& path, std::string content) {
  const auto node = find(path);
  TROUPE_CHECK(node && !node->is_directory, "{}", path);
  node->bytes = node->durable_bytes = std::move(content);
}

Result<std::unique_ptr<WritableFile>> FaultyFileSystem::create(const std::string& path, unsigned) {
  TROUPE_RETURN_IF_ERROR(begin("open for writing", path));
  auto [directory, name] = parent(path);
  if (!directory) return missing("open for writing", path);
  auto& node = directory->entries[name];
  if (node && node->is_directory) {
    return error(Code::kInvalidArgument, "cannot open for writing {}: Is a directory", path);
  }
  if (!node) node = std::make_shared<Node>();
  node->bytes.clear();
  return std::unique_ptr<WritableFile>(std::make_unique<File>(*this, node, path));
}

Result<std::unique_ptr<WritableFile>> FaultyFileSystem::open_append(const std::string& path,
                                                                    unsigned mode) {
  const auto node = find(path);
  if (!node || node->is_directory) return create(path, mode);
  TROUPE_RETURN_IF_ERROR(begin("open for writing", path));
  return std::unique_ptr<WritableFile>(std::make_unique<File>(*this, node, path));
}

Result<std::string> FaultyFileSystem::read(const std::string& path, std::uint64_t bytes_max) {
  TROUPE_RETURN_IF_ERROR(begin("read", path));
  const auto node = find(path);
  if (!node || node->is_directory) return missing("open", path);
  if (node->bytes.size() > bytes_max) {
    return error(Code::kInvalidArgument, "{} is larger than the limit of {} bytes", path,
                 bytes_max);
  }
  return node->bytes;
}

Result<std::unique_ptr<MappedFile>> FaultyFileSystem::map(const std::string& path) {
  return std::unique_ptr<MappedFile>(
      std::make_unique<Copy>(TROUPE_TRY(read(path, ~std::uint64_t{0}))));
}

Status FaultyFileSystem::rename(const std::string& from, const std::string& to) {
  TROUPE_RETURN_IF_ERROR(begin("rename", from));
  auto [source, old_name] = parent(from);
  auto [target, new_name] = parent(to);
  if (!source || !target || !source->entries.contains(old_name)) return missing("rename", from);
  const auto node = source->entries[old_name];
  const auto existing = target->entries.find(new_name);
  if (existing != target->entries.end() && existing->second->is_directory &&
      !existing->second->entries.empty()) {
    return error(Code::kAlreadyExists, "cannot rename {} to {}: Directory not empty", from, to);
  }
  source->entries.erase(old_name);
  target->entries[new_name] = node;
  return {};
}

Status FaultyFileSystem::remove(const std::string& path) {
  TROUPE_RETURN_IF_ERROR(begin("remove", path));
  auto [directory, name] = parent(path);
  if (!directory || !directory->entries.contains(name)) return missing("remove", path);
  if (!directory->entries[name]->entries.empty()) {
    return error(Code::kAlreadyExists, "cannot remove {}: Directory not empty", path);
  }
  directory->entries.erase(name);
  return {};
}

Status FaultyFileSystem::remove_tree(const std::string& path) {
  auto [directory, name] = parent(path);
  const bool there = directory && directory->entries.contains(name);
  if (Status status = begin("remove", path); !status) {
    // Half of it: the first file that it comes to is gone.
    if (there && half_done_) {
      auto& entries = directory->entries[name]->entries;
      if (!entries.empty()) entries.erase(entries.begin());
    }
    return status;
  }
  if (there) directory->entries.erase(name);
  return {};
}

Status FaultyFileSystem::create_directories(const std::string& path, unsigned) {
  TROUPE_RETURN_IF_ERROR(begin("create directory", path));
  NodePointer node = root_;
  for (const auto& part : parts_of(path)) {
    auto& child = node->entries[part];
    if (!child) {
      child = std::make_shared<Node>();
      child->is_directory = true;
    }
    if (!child->is_directory) {
      return error(Code::kNotFound, "cannot create directory {}: Not a directory", path);
    }
    node = child;
  }
  return {};
}

Result<std::vector<DirectoryEntry>> FaultyFileSystem::list(const std::string& path) {
  TROUPE_RETURN_IF_ERROR(begin("list", path));
  const auto node = find(path);
  if (!node || !node->is_directory) return missing("list", path);
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, child] : node->entries) {
    entries.push_back({name, child->is_directory, child->bytes.size()});
  }
  return entries;
}

bool FaultyFileSystem::exists(const std::string& path) { return find(path) != nullptr; }

Result<std::uint64_t> FaultyFileSystem::size(const std::string& path) {
  const auto node = find(path);
  if (!node) return missing("stat", path);
  return std::uint64_t{node->bytes.size()};
}

Status FaultyFileSystem::sync_directory(const std::string& path) {
  TROUPE_RETURN_IF_ERROR(begin("sync directory", path));
  const auto node = find(path);
  if (!node || !node->is_directory) return missing("sync directory", path);
  node->durable_entries = node->entries;
  return {};
}

}  // namespace troupe::tests
