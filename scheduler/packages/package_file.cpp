#include "scheduler/packages/package_file.h"

#include <algorithm>
#include <set>

#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/limits.h"

namespace troupe::scheduler {
namespace {

constexpr std::size_t kPartBytesMax = 255;
constexpr std::size_t kPathBytesMax = 2048;  // leaves room for the folder that it is unpacked in

std::string_view first_part(std::string_view& path) {
  const std::size_t slash = std::min(path.find('/'), path.size());
  const std::string_view part = path.substr(0, slash);
  path.remove_prefix(std::min(slash + 1, path.size()));
  return part;
}

// "a/b", not "/a", "a//b", "a/", "a/./b", "a/../b".
bool is_plain_path(std::string_view path) {
  if (path.empty() || path.size() > kPathBytesMax || path.ends_with('/')) return false;
  if (path.find('\0') != std::string_view::npos) return false;
  while (!path.empty()) {
    const std::string_view part = first_part(path);
    if (part.empty() || part.size() > kPartBytesMax || part == "." || part == "..") return false;
  }
  return true;
}

Status has_changed(const std::string& path) {
  return error(Code::kAborted,
               "{} changed while it was packed: submit again when nobody writes to it, or leave it "
               "out with --exclude",
               path);
}

Status put_file(FileSystem& files, const PackageSource& source, WritableFile& out,
                std::span<std::byte> piece, const std::function<bool()>& go_on) {
  const auto file = TROUPE_TRY(files.open_readable(source.from));
  const std::uint64_t size = source.entry.size_bytes;
  if (file->size() != size) return has_changed(source.from);
  for (std::uint64_t offset = 0; offset < size; offset += piece.size()) {
    if (!go_on()) return Status(Code::kCancelled, "the packing was interrupted");
    const auto part = piece.first(std::min<std::uint64_t>(size - offset, piece.size()));
    const Status read = file->read_at(offset, part);
    if (read.code() == Code::kDataLoss) return has_changed(source.from);
    TROUPE_RETURN_IF_ERROR(read);
    TROUPE_RETURN_IF_ERROR(out.append(part));
  }
  return {};
}

}  // namespace

// Folders in a package are folders, so each ".." at the beginning goes up one of them; what follows
// only goes down, by links that stay inside themselves.
bool link_stays_inside(const wire::PackageEntry& link) {
  const auto depth = std::count(link.path.begin(), link.path.end(), '/');
  std::string_view rest = link.target;
  if (rest.empty() || rest.size() > kPathBytesMax || rest.starts_with('/')) return false;
  std::ptrdiff_t up = 0;
  for (; rest.starts_with("../") || rest == ".."; ++up) first_part(rest);
  return up <= depth && (rest.empty() || is_plain_path(rest));
}

Status check_entries(const std::vector<wire::PackageEntry>& entries) {
  if (entries.size() > limits::kPackageEntriesMax) {
    return error(Code::kInvalidArgument,
                 "a package of {} files, folders and links; at most {} are taken", entries.size(),
                 limits::kPackageEntriesMax);
  }
  std::set<std::string_view> folders{""};
  std::string_view before;
  for (const wire::PackageEntry& entry : entries) {
    const std::string_view path = entry.path;
    const auto refused = [&](std::string_view why) {
      return error(Code::kInvalidArgument, "'{}' in a package {}", path.substr(0, 200), why);
    };
    if (!is_plain_path(path)) return refused("is no plain path inside of it");
    if (path <= before) return refused("is there twice, or out of order");
    before = path;
    const std::size_t slash = path.rfind('/');
    if (!folders.contains(slash == std::string_view::npos ? "" : path.substr(0, slash))) {
      return refused("lies in no folder of it");
    }
    if (entry.kind == wire::PackageEntryKind::kDirectory) folders.insert(path);
    if (entry.kind != wire::PackageEntryKind::kFile && (entry.size_bytes != 0 || entry.executable))
      return refused("is no file, and has a file's size or mode");
    const bool is_link = entry.kind == wire::PackageEntryKind::kSymlink;
    if (is_link ? !link_stays_inside(entry) : !entry.target.empty()) {
      return refused("is a link that leaves it");
    }
  }
  return {};
}

Result<wire::Package> write_package(FileSystem& files, std::vector<PackageSource> sources,
                                    const std::string& path, const std::function<bool()>& go_on) {
  std::sort(sources.begin(), sources.end(),
            [](const auto& a, const auto& b) { return a.entry.path < b.entry.path; });
  wire::PackageManifest manifest;
  for (const PackageSource& source : sources) manifest.entries.push_back(source.entry);
  TROUPE_RETURN_IF_ERROR(check_entries(manifest.entries));
  const wire::Bytes encoded = wire::encode(manifest);
  if (encoded.size() > limits::kPackageManifestBytesMax) {
    return error(Code::kInvalidArgument,
                 "the names of the files of a package have {} bytes; at most {} are taken",
                 encoded.size(), limits::kPackageManifestBytesMax);
  }
  const auto out = TROUPE_TRY(files.create(path, 0600));
  std::byte length[8];
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(encoded.size() >> (8 * i));
  TROUPE_RETURN_IF_ERROR(out->append(kPackageMagic));
  TROUPE_RETURN_IF_ERROR(out->append(length));
  TROUPE_RETURN_IF_ERROR(out->append(encoded));
  std::vector<std::byte> piece(1u << 20);
  for (const PackageSource& source : sources) {
    if (source.entry.kind != wire::PackageEntryKind::kFile) continue;
    TROUPE_RETURN_IF_ERROR(put_file(files, source, *out, piece, go_on));
  }
  TROUPE_RETURN_IF_ERROR(out->close());
  return name_of_package(TROUPE_TRY(files.map(path))->bytes());
}

wire::Package name_of_package(std::span<const std::byte> bytes) {
  return {to_hex(sha256(bytes)), bytes.size()};
}

}  // namespace troupe::scheduler
