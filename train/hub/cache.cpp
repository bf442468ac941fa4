#include "train/hub/cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

namespace troupe::train::hub {
namespace {

constexpr std::uint64_t kRefBytesMax = 256;

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

// Threads and processes may write the same at the same time.
std::string temporary_of(const std::string& path) {
  static std::atomic<std::uint64_t> number = 0;
  return fmt::format("{}.{}-{}.tmp", path, ::getpid(), number++);
}

Status write_whole(FileSystem& files, const std::string& path, std::string_view text) {
  TROUPE_RETURN_IF_ERROR(files.create_directories(parent_of(path)));
  const auto temporary = temporary_of(path);
  auto file = TROUPE_TRY(files.create(temporary));
  TROUPE_RETURN_IF_ERROR(file->append(text));
  TROUPE_RETURN_IF_ERROR(file->close());
  return files.rename(temporary, path);
}

}  // namespace

std::string Cache::folder(const Repository& repository) const {
  return join_path(root_, repository.folder_name());
}

std::optional<std::string> Cache::commit_of(const Repository& repository) const {
  if (repository.is_commit()) return repository.revision;
  if (!is_safe_path(repository.revision)) return std::nullopt;
  auto text =
      files_.read(join_path(folder(repository), "refs/" + repository.revision), kRefBytesMax);
  if (!text.ok()) return std::nullopt;
  while (text->ends_with('\n')) text->pop_back();
  if (!is_commit(*text)) return std::nullopt;
  return std::move(*text);
}

std::string Cache::snapshot_folder(const Repository& repository, const std::string& commit) const {
  return join_path(folder(repository), "snapshots/" + commit);
}

std::optional<std::string> Cache::find_snapshot(const Repository& repository) const {
  const auto commit = commit_of(repository);
  if (!commit) return std::nullopt;
  auto path = snapshot_folder(repository, *commit);
  if (!files_.list(path).ok()) return std::nullopt;
  return path;
}

std::optional<std::string> Cache::find_file(const Repository& repository,
                                            const std::string& file) const {
  const auto commit = commit_of(repository);
  if (!commit || !is_safe_path(file)) return std::nullopt;
  auto path = join_path(snapshot_folder(repository, *commit), file);
  if (!files_.exists(path)) return std::nullopt;
  return path;
}

bool Cache::known_absent(const Repository& repository, const std::string& commit,
                         const std::string& file) const {
  return is_safe_path(file) &&
         files_.exists(join_path(folder(repository), ".no_exist/" + commit + "/" + file));
}

std::string Cache::blob(const Repository& repository, const std::string& etag) const {
  return join_path(folder(repository), "blobs/" + etag);
}

std::string Cache::lock(const Repository& repository, const std::string& etag) const {
  return join_path(root_, ".locks/" + repository.folder_name() + "/" + etag + ".lock");
}

Status Cache::write_ref(const Repository& repository, const std::string& commit) const {
  if (repository.revision == commit || !is_safe_path(repository.revision)) return {};
  if (commit_of(repository) == commit) return {};
  const auto path = join_path(folder(repository), "refs/" + repository.revision);
  return write_whole(files_, path, commit);
}

Status Cache::note_absent(const Repository& repository, const std::string& commit,
                          const std::string& file) const {
  if (!is_safe_path(file) || !is_commit(commit)) return {};
  const auto path = join_path(folder(repository), ".no_exist/" + commit + "/" + file);
  return write_whole(files_, path, "");
}

Result<std::string> Cache::place(const Repository& repository, const std::string& commit,
                                 const std::string& file, const std::string& etag) const {
  namespace fs = std::filesystem;
  auto path = join_path(snapshot_folder(repository, commit), file);
  TROUPE_RETURN_IF_ERROR(files_.create_directories(parent_of(path)));
  std::string target = "../../";
  for (auto deeper = std::ranges::count(file, '/'); deeper > 0; --deeper) target += "../";
  target += "blobs/" + etag;
  std::error_code failed;
  const auto temporary = temporary_of(path);
  fs::create_symlink(target, temporary, failed);
  if (failed) fs::copy_file(blob(repository, etag), temporary, failed);
  if (!failed) fs::rename(temporary, path, failed);
  if (failed)
    return error(Code::kPermissionDenied, "{} cannot be made: {}", path, failed.message());
  return path;
}

}  // namespace troupe::train::hub
