#include "disk.h"

#include <cstring>
#include <utility>

namespace troupe::simulation {
namespace {

Status no_file(const std::string& path) {
  return error(Code::kNotFound, "the simulated disk has no {}", path);
}
Status not_simulated(const std::string& path) {
  return error(Code::kUnsupported, "the simulated disk does not do this with {}", path);
}

}  // namespace

class Disk::File final : public WritableFile {
 public:
  File(Disk& disk, std::shared_ptr<std::string> bytes) : disk_(disk), bytes_(std::move(bytes)) {}
  using WritableFile::append;
  Status append(std::span<const std::byte> data) override {
    std::size_t count = data.size();
    Random* tears = std::exchange(disk_.tears_, nullptr);
    if (tears != nullptr) count = tears->below(data.size() + 1);
    bytes_->append(reinterpret_cast<const char*>(data.data()), count);
    if (tears != nullptr) return Status(Code::kCancelled, "the process died in an append");
    return {};
  }
  Status write_at(std::uint64_t, std::span<const std::byte>) override {
    return not_simulated("a file");
  }
  Status sync() override { return {}; }
  Status close() override { return {}; }

 private:
  Disk& disk_;
  const std::shared_ptr<std::string> bytes_;
};

class Disk::Readable final : public ReadableFile {
 public:
  explicit Readable(std::shared_ptr<std::string> bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_->size(); }
  Status read_at(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset > bytes_->size() || out.size() > bytes_->size() - offset) {
      return Status(Code::kDataLoss, "the simulated file ends before");
    }
    std::memcpy(out.data(), bytes_->data() + offset, out.size());
    return {};
  }

 private:
  const std::shared_ptr<std::string> bytes_;
};

troupe::Result<std::unique_ptr<ReadableFile>> Disk::open_readable(const std::string& path) {
  const auto found = files_.find(path);
  if (found == files_.end()) return no_file(path);
  return std::unique_ptr<ReadableFile>(std::make_unique<Readable>(found->second));
}

troupe::Result<std::unique_ptr<WritableFile>> Disk::create(const std::string& path, unsigned) {
  auto& bytes = files_[path] = std::make_shared<std::string>();
  return std::unique_ptr<WritableFile>(std::make_unique<File>(*this, bytes));
}

troupe::Result<std::unique_ptr<WritableFile>> Disk::open_append(const std::string& path,
                                                                unsigned mode) {
  const auto found = files_.find(path);
  if (found == files_.end()) return create(path, mode);
  return std::unique_ptr<WritableFile>(std::make_unique<File>(*this, found->second));
}

troupe::Result<std::string> Disk::read(const std::string& path, std::uint64_t bytes_max) {
  const auto found = files_.find(path);
  if (found == files_.end()) return no_file(path);
  if (found->second->size() > bytes_max) {
    return error(Code::kResourceExhausted, "{} is larger than {} bytes", path, bytes_max);
  }
  return *found->second;
}

troupe::Result<std::unique_ptr<MappedFile>> Disk::map(const std::string& path) {
  return not_simulated(path);
}

Status Disk::rename(const std::string& from, const std::string& to) {
  const auto found = files_.find(from);
  if (found == files_.end()) return no_file(from);
  auto bytes = std::move(found->second);
  files_.erase(found);
  files_[to] = std::move(bytes);
  return {};
}

Status Disk::remove(const std::string& path) {
  if (files_.erase(path) == 0) return no_file(path);
  return {};
}

Status Disk::remove_tree(const std::string& path) { return not_simulated(path); }

troupe::Result<std::vector<DirectoryEntry>> Disk::list(const std::string& path) {
  return not_simulated(path);
}

troupe::Result<std::uint64_t> Disk::size(const std::string& path) {
  const auto found = files_.find(path);
  if (found == files_.end()) return no_file(path);
  return std::uint64_t{found->second->size()};
}

}  // namespace troupe::simulation
