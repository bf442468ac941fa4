#include "tests/support/faulty_file_system.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include "runtime/base/check.h"

namespace troupe::tests {

// A file or a directory: what the process sees, and what the disk holds.
struct FaultyFileSystem::Node {
  bool is_directory = false;
  std::string bytes, durable_bytes;
  std::map<std::string, NodePointer> entries, durable_entries;
};

namespace {

using Lock = std::unique_lock<std::recursive_mutex>;

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

// What all views share.
struct FaultyFileSystem::Disk {
  mutable std::recursive_mutex mutex;
  NodePointer root = std::make_shared<Node>();
  std::uint64_t space_bytes = ~std::uint64_t{0};
};

// What a process holds of a file: dead once the process is.
class FaultyFileSystem::OpenFile {
 public:
  OpenFile(FaultyFileSystem& files, NodePointer node, std::string path)
      : files_(files), node_(std::move(node)), path_(std::move(path)), life_(files.life_) {}

 protected:
  // Locks, counts, and says whether the operation goes on.
  Status begin(const char* what) {
    if (life_ != files_.life_) {
      return error(Code::kCancelled, "the process that opened {} died", path_);
    }
    return files_.begin(what, path_);
  }
  Lock lock() const { return Lock(files_.disk_->mutex); }
  Status sync_bytes() {
    const auto held = lock();
    TROUPE_RETURN_IF_ERROR(begin("sync"));
    node_->durable_bytes = node_->bytes;
    return {};
  }
  Status close_file() {
    const auto held = lock();
    return begin("close");
  }
  // Half of it where this is the operation to fail.
  Status write(std::uint64_t offset, std::span<const std::byte> data) {
    const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
    Status status = begin("write");
    if (!status) {
      if (files_.half_done_) {
        static_cast<void>(
            files_.write_into(*node_, offset, text.substr(0, text.size() / 2), path_));
      }
      return status;
    }
    return files_.write_into(*node_, offset, text, path_);
  }
  FaultyFileSystem& files_;
  NodePointer node_;
  std::string path_;
  std::uint64_t life_;
};

class FaultyFileSystem::File final : public WritableFile, private OpenFile {
 public:
  using OpenFile::OpenFile;
  using WritableFile::append;
  Status append(std::span<const std::byte> data) override {
    const auto held = lock();
    return write(node_->bytes.size(), data);
  }
  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    const auto held = lock();
    return write(offset, data);
  }
  Status sync() override { return sync_bytes(); }
  Status close() override { return close_file(); }
};

class FaultyFileSystem::Positional final : public PositionalFile, private OpenFile {
 public:
  using OpenFile::OpenFile;
  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    const auto held = lock();
    TROUPE_CHECK(offset + data.size() <= node_->bytes.size(), "{}", path_);
    return write(offset, data);
  }
  Status sync() override { return sync_bytes(); }
  Status close() override { return close_file(); }
};

class FaultyFileSystem::Readable final : public ReadableFile, private OpenFile {
 public:
  using OpenFile::OpenFile;
  std::uint64_t size() const override {
    const auto held = lock();
    return node_->bytes.size();
  }
  Status read_at(std::uint64_t offset, std::span<std::byte> out) override {
    const auto held = lock();
    TROUPE_RETURN_IF_ERROR(begin("read"));
    if (offset > node_->bytes.size() || node_->bytes.size() - offset < out.size()) {
      return error(Code::kDataLoss, "{} ends at byte {}", path_, node_->bytes.size());
    }
    std::memcpy(out.data(), node_->bytes.data() + offset, out.size());
    return {};
  }
};

FaultyFileSystem::FaultyFileSystem() : disk_(std::make_shared<Disk>()) {
  disk_->root->is_directory = true;
}
FaultyFileSystem::FaultyFileSystem(FaultyFileSystem& other) : disk_(other.disk_) {}
FaultyFileSystem::~FaultyFileSystem() = default;

std::uint64_t FaultyFileSystem::operation_count() const {
  const Lock held(disk_->mutex);
  return operation_count_;
}

bool FaultyFileSystem::fault_happened() const {
  const Lock held(disk_->mutex);
  return fault_happened_;
}

void FaultyFileSystem::set_space_bytes(std::uint64_t bytes) {
  const Lock held(disk_->mutex);
  disk_->space_bytes = bytes;
}

Status FaultyFileSystem::write_into(Node& node, std::uint64_t offset, std::string_view text,
                                    const std::string& path) {
  const auto end = std::max<std::uint64_t>(node.bytes.size(), offset + text.size());
  const auto grows = end - node.bytes.size();
  const auto used = used_bytes();
  const auto space = disk_->space_bytes - std::min(disk_->space_bytes, used);
  const auto missing_bytes = grows - std::min(grows, space);
  node.bytes.resize(end - missing_bytes);
  text.remove_suffix(std::min<std::size_t>(missing_bytes, text.size()));
  std::copy(text.begin(), text.end(), node.bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  if (missing_bytes == 0) return {};
  return error(Code::kResourceExhausted, "cannot write {}: No space left on device", path);
}

void FaultyFileSystem::fail_operation(std::uint64_t number, Code code) {
  const Lock held(disk_->mutex);
  fail_at_ = operation_count_ + number;
  fail_code_ = code;
  crash_ = false;
  fault_happened_ = false;
}

void FaultyFileSystem::crash_at_operation(std::uint64_t number) {
  const Lock held(disk_->mutex);
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
  const Lock held(disk_->mutex);
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
  restore(*disk_->root);
}

FaultyFileSystem::NodePointer FaultyFileSystem::find(const std::string& path) const {
  NodePointer node = disk_->root;
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
  add(*disk_->root);
  return bytes;
}

std::map<std::string, std::string> FaultyFileSystem::snapshot(const std::string& path) const {
  const Lock held(disk_->mutex);
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
  const Lock held(disk_->mutex);
  const auto node = find(path);
  TROUPE_CHECK(node && !node->is_directory, "{}", path);
  node->bytes = node->durable_bytes = std::move(content);
}

Result<std::unique_ptr<WritableFile>> FaultyFileSystem::create(const std::string& path, unsigned) {
  const Lock held(disk_->mutex);
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
  const Lock held(disk_->mutex);
  const auto node = find(path);
  if (!node || node->is_directory) return create(path, mode);
  TROUPE_RETURN_IF_ERROR(begin("open for writing", path));
  return std::unique_ptr<WritableFile>(std::make_unique<File>(*this, node, path));
}

Result<std::unique_ptr<PositionalFile>> FaultyFileSystem::open_positional(const std::string& path,
                                                                          std::uint64_t size_bytes,
                                                                          unsigned mode) {
  const Lock held(disk_->mutex);
  auto node = find(path);
  if (!node || node->is_directory) {
    TROUPE_RETURN_IF_ERROR(create(path, mode));
    node = find(path);
  } else {
    TROUPE_RETURN_IF_ERROR(begin("open for writing", path));
  }
  if (node->bytes.size() > size_bytes) node->bytes.resize(size_bytes);
  const std::string zeros(size_bytes - node->bytes.size(), '\0');
  TROUPE_RETURN_IF_ERROR(write_into(*node, node->bytes.size(), zeros, path));
  return std::unique_ptr<PositionalFile>(std::make_unique<Positional>(*this, node, path));
}

Result<std::unique_ptr<ReadableFile>> FaultyFileSystem::open_readable(const std::string& path) {
  const Lock held(disk_->mutex);
  TROUPE_RETURN_IF_ERROR(begin("open", path));
  const auto node = find(path);
  if (!node || node->is_directory) return missing("open", path);
  return std::unique_ptr<ReadableFile>(std::make_unique<Readable>(*this, node, path));
}

Result<std::string> FaultyFileSystem::read(const std::string& path, std::uint64_t bytes_max) {
  const Lock held(disk_->mutex);
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
  const Lock held(disk_->mutex);
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
  const Lock held(disk_->mutex);
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
  const Lock held(disk_->mutex);
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
  const Lock held(disk_->mutex);
  TROUPE_RETURN_IF_ERROR(begin("create directory", path));
  NodePointer node = disk_->root;
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
  const Lock held(disk_->mutex);
  TROUPE_RETURN_IF_ERROR(begin("list", path));
  const auto node = find(path);
  if (!node || !node->is_directory) return missing("list", path);
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, child] : node->entries) {
    entries.push_back({name, child->is_directory, child->bytes.size()});
  }
  return entries;
}

bool FaultyFileSystem::exists(const std::string& path) {
  const Lock held(disk_->mutex);
  return find(path) != nullptr;
}

Result<std::uint64_t> FaultyFileSystem::size(const std::string& path) {
  const Lock held(disk_->mutex);
  const auto node = find(path);
  if (!node) return missing("stat", path);
  return std::uint64_t{node->bytes.size()};
}

Status FaultyFileSystem::sync_directory(const std::string& path) {
  const Lock held(disk_->mutex);
  TROUPE_RETURN_IF_ERROR(begin("sync directory", path));
  const auto node = find(path);
  if (!node || !node->is_directory) return missing("sync directory", path);
  node->durable_entries = node->entries;
  return {};
}

}  // namespace troupe::tests
