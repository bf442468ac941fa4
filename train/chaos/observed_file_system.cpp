#include "train/chaos/observed_file_system.h"

namespace troupe::train {

ObservedFileSystem::ObservedFileSystem(FileSystem& files) : files_(files) {}

void ObservedFileSystem::observe(ProgressRecorder* recorder, FileFaults* faults) {
  recorder_ = recorder;
  faults_ = faults;
}

// One operation on a file from its begin to its end.
class ObservedFileSystem::Operation {
 public:
  Operation(const ObservedFileSystem& owner, const char* name, const std::string& path,
            bool needs_room = false)
      : recorder_(owner.recorder_), faults_(owner.faults_), name_(name) {
    if (recorder_) recorder_->file(name_, true);
    if (!faults_) return;
    Point point{.kind = PointKind::kFile, .operation = name_};
    if (recorder_) {
      point.step = recorder_->step();
      point.stage = recorder_->stage();
    }
    verdict_ = faults_->judge(point, path, needs_room);
  }
  ~Operation() {
    if (recorder_) recorder_->file(name_, false);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // What does not write cannot be torn: it fails.
  Status check() const {
    return verdict_.kind == FileVerdict::Kind::kPass ? Status() : verdict_.error;
  }
  // Runs `write` with all of the bytes, or with a half.
  template <typename Write>
  Status write(std::span<const std::byte> data, Write&& write) const {
    if (verdict_.kind != FileVerdict::Kind::kTear) {
      TROUPE_RETURN_IF_ERROR(check());
      return write(data);
    }
    static_cast<void>(write(data.first(data.size() / 2)));
    if (verdict_.kill) faults_->end_process();
    return verdict_.error;
  }

 private:
  ProgressRecorder* recorder_;
  FileFaults* faults_;
  const char* name_;
  FileVerdict verdict_;
};

class ObservedFileSystem::Writable final : public WritableFile {
 public:
  Writable(const ObservedFileSystem& owner, std::unique_ptr<WritableFile> file, std::string path)
      : owner_(owner), file_(std::move(file)), path_(std::move(path)) {}
  using WritableFile::append;
  Status append(std::span<const std::byte> data) override {
    const Operation operation(owner_, "append", path_, true);
    return operation.write(data, [&](auto bytes) { return file_->append(bytes); });
  }
  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    const Operation operation(owner_, "write_at", path_);
    return operation.write(data, [&](auto bytes) { return file_->write_at(offset, bytes); });
  }
  Status sync() override {
    const Operation operation(owner_, "sync", path_);
    TROUPE_RETURN_IF_ERROR(operation.check());
    return file_->sync();
  }
  Status close() override {
    const Operation operation(owner_, "close", path_);
    TROUPE_RETURN_IF_ERROR(operation.check());
    return file_->close();
  }

 private:
  const ObservedFileSystem& owner_;
  std::unique_ptr<WritableFile> file_;
  const std::string path_;
};

class ObservedFileSystem::Positional final : public PositionalFile {
 public:
  Positional(const ObservedFileSystem& owner, std::unique_ptr<PositionalFile> file,
             std::string path)
      : owner_(owner), file_(std::move(file)), path_(std::move(path)) {}
  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    const Operation operation(owner_, "write_at", path_, true);
    return operation.write(data, [&](auto bytes) { return file_->write_at(offset, bytes); });
  }
  Status sync() override {
    const Operation operation(owner_, "sync", path_);
    TROUPE_RETURN_IF_ERROR(operation.check());
    return file_->sync();
  }
  Status close() override {
    const Operation operation(owner_, "close", path_);
    TROUPE_RETURN_IF_ERROR(operation.check());
    return file_->close();
  }

 private:
  const ObservedFileSystem& owner_;
  std::unique_ptr<PositionalFile> file_;
  const std::string path_;
};

Result<std::unique_ptr<WritableFile>> ObservedFileSystem::create(const std::string& path,
                                                                 unsigned mode) {
  const Operation operation(*this, "create", path, true);
  TROUPE_RETURN_IF_ERROR(operation.check());
  auto file = TROUPE_TRY(files_.create(path, mode));
  return std::unique_ptr<WritableFile>(std::make_unique<Writable>(*this, std::move(file), path));
}

Result<std::unique_ptr<WritableFile>> ObservedFileSystem::open_append(const std::string& path,
                                                                      unsigned mode) {
  const Operation operation(*this, "open_append", path, true);
  TROUPE_RETURN_IF_ERROR(operation.check());
  auto file = TROUPE_TRY(files_.open_append(path, mode));
  return std::unique_ptr<WritableFile>(std::make_unique<Writable>(*this, std::move(file), path));
}

Result<std::unique_ptr<PositionalFile>> ObservedFileSystem::open_positional(
    const std::string& path, std::uint64_t size_bytes, unsigned mode) {
  const Operation operation(*this, "open_positional", path, true);
  TROUPE_RETURN_IF_ERROR(operation.check());
  auto file = TROUPE_TRY(files_.open_positional(path, size_bytes, mode));
  return std::unique_ptr<PositionalFile>(
      std::make_unique<Positional>(*this, std::move(file), path));
}

Result<std::unique_ptr<ReadableFile>> ObservedFileSystem::open_readable(const std::string& path) {
  const Operation operation(*this, "open", path);
  TROUPE_RETURN_IF_ERROR(operation.check());
  return files_.open_readable(path);
}

Result<std::string> ObservedFileSystem::read(const std::string& path, std::uint64_t bytes_max) {
  const Operation operation(*this, "read", path);
  TROUPE_RETURN_IF_ERROR(operation.check());
  return files_.read(path, bytes_max);
}

Result<std::unique_ptr<MappedFile>> ObservedFileSystem::map(const std::string& path) {
  const Operation operation(*this, "map", path);
  TROUPE_RETURN_IF_ERROR(operation.check());
  return files_.map(path);
}

Status ObservedFileSystem::rename(const std::string& from, const std::string& to) {
  const Operation operation(*this, "rename", from);
  TROUPE_RETURN_IF_ERROR(operation.check());
  return files_.rename(from, to);
}

Status ObservedFileSystem::remove(const std::string& path) {
  const Operation operation(*this, "remove", path);
  TROUPE_RETURN_IF_ERROR(operation.check());
  return files_.remove(path);
}

Status ObservedFileSystem::remove_tree(const std::string& path) {
  const Operation operation(*this, "remove_tree", path);
  TROUPE_RETURN_IF_ERROR(operation.check());
  return files_.remove_tree(path);
}

Status ObservedFileSystem::create_directories(const std::string& path, unsigned mode) {
  const Operation operation(*this, "create_directories", path, true);
  TROUPE_RETURN_IF_ERROR(operation.check());
  return files_.create_directories(path, mode);
}

Result<std::vector<DirectoryEntry>> ObservedFileSystem::list(const std::string& path) {
  const Operation operation(*this, "list", path);
  TROUPE_RETURN_IF_ERROR(operation.check());
  return files_.list(path);
}

// No operations of their own: they neither change nor read what is in files.
bool ObservedFileSystem::exists(const std::string& path) { return files_.exists(path); }
Result<std::uint64_t> ObservedFileSystem::size(const std::string& path) {
  return files_.size(path);
}
Result<unsigned> ObservedFileSystem::permissions(const std::string& path) {
  return files_.permissions(path);
}

Status ObservedFileSystem::sync_directory(const std::string& path) {
  const Operation operation(*this, "sync_directory", path);
  TROUPE_RETURN_IF_ERROR(operation.check());
  return files_.sync_directory(path);
}

}  // namespace troupe::train
