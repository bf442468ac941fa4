#include "scheduler/packages/unpack.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"
#include "scheduler/packages/package_file.h"

namespace troupe::scheduler {
namespace {

namespace fs = std::filesystem;
using wire::PackageEntryKind;

// Takes the first bytes off.
Result<std::span<const std::byte>> take(std::span<const std::byte>& bytes, std::uint64_t count) {
  if (count > bytes.size()) {
    return Status(Code::kDataLoss, "the package's file is shorter than it says");
  }
  const auto taken = bytes.first(count);
  bytes = bytes.subspan(count);
  return taken;
}

struct Contents {
  std::vector<wire::PackageEntry> entries;
  std::vector<std::span<const std::byte>> bytes;  // of each
};

Result<Contents> contents_of(std::span<const std::byte> bytes) {
  const auto header = TROUPE_TRY(take(bytes, kPackageHeaderBytes));
  if (std::memcmp(header.data(), kPackageMagic.data(), kPackageMagic.size()) != 0) {
    return Status(Code::kDataLoss, "the file is no package");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    length |= std::to_integer<std::uint64_t>(header[8 + i]) << (8 * i);
  }
  if (length > limits::kPackageManifestBytesMax) {
    return error(Code::kDataLoss, "a package's manifest of {} bytes", length);
  }
  auto manifest = wire::decode_package_manifest(TROUPE_TRY(take(bytes, length)));
  if (!manifest.ok()) return Status(Code::kDataLoss, manifest.status().message());
  TROUPE_RETURN_IF_ERROR(check_entries(manifest->entries));
  Contents contents{std::move(manifest->entries), {}};
  for (const auto& entry : contents.entries) {
    contents.bytes.push_back(TROUPE_TRY(take(bytes, entry.size_bytes)));
  }
  if (bytes.empty()) return contents;
  return error(Code::kDataLoss, "{} bytes follow the files of a package", bytes.size());
}

Status make_entry(const wire::PackageEntry& entry, std::span<const std::byte> content,
                  const std::string& path) {
  if (entry.kind == PackageEntryKind::kFile) {
    const auto file = TROUPE_TRY(PosixFileSystem().create(path, entry.executable ? 0500 : 0400));
    TROUPE_RETURN_IF_ERROR(file->append(content));
    return file->close();
  }
  const int made = entry.kind == PackageEntryKind::kDirectory
                       ? ::mkdir(path.c_str(), 0700)
                       : ::symlink(entry.target.c_str(), path.c_str());
  return made == 0 ? Status() : errno_status(errno, "make", path);
}

Status unpack(const Contents& contents, const std::string& directory) {
  for (std::size_t i = 0; i < contents.entries.size(); ++i) {
    const wire::PackageEntry& entry = contents.entries[i];
    TROUPE_RETURN_IF_ERROR(make_entry(entry, contents.bytes[i], join_path(directory, entry.path)));
  }
  for (const wire::PackageEntry& entry : contents.entries) {
    if (entry.kind != PackageEntryKind::kDirectory) continue;
    const std::string path = join_path(directory, entry.path);
    if (::chmod(path.c_str(), 0500) != 0) return errno_status(errno, "close", path);
  }
  return {};
}

bool is_as_made(const wire::PackageEntry& entry, std::span<const std::byte> content,
                const std::string& path) {
  std::error_code ec;
  const auto status = fs::symlink_status(path, ec);
  if (entry.kind == PackageEntryKind::kDirectory) return fs::is_directory(status);
  if (entry.kind == PackageEntryKind::kSymlink) {
    return fs::is_symlink(status) && fs::read_symlink(path, ec) == entry.target;
  }
  if (!fs::is_regular_file(status)) return false;
  if (((status.permissions() & fs::perms::owner_exec) != fs::perms::none) != entry.executable) {
    return false;
  }
  const auto there = PosixFileSystem().map(path);
  return there.ok() && std::ranges::equal((*there)->bytes(), content);
}

}  // namespace

Status unpack_package(std::span<const std::byte> bytes, const std::string& directory) {
  const auto contents = TROUPE_TRY(contents_of(bytes));
  if (::mkdir(directory.c_str(), 0700) != 0) return errno_status(errno, "make", directory);
  Status unpacked = unpack(contents, directory);
  if (!unpacked.ok()) (void)remove_unpacked(directory);
  return unpacked;
}

Status check_unpacked(std::span<const std::byte> bytes, const std::string& directory) {
  const auto contents = TROUPE_TRY(contents_of(bytes));
  for (std::size_t i = 0; i < contents.entries.size(); ++i) {
    const std::string path = join_path(directory, contents.entries[i].path);
    if (is_as_made(contents.entries[i], contents.bytes[i], path)) continue;
    return error(Code::kDataLoss, "{} is not what was unpacked there", path);
  }
  return {};
}

Status remove_unpacked(const std::string& directory) {
  // Who may not write to a folder may not empty it either.
  std::error_code ec;
  (void)::chmod(directory.c_str(), 0700);
  for (auto it = fs::recursive_directory_iterator(directory, ec);
       !ec && it != fs::recursive_directory_iterator(); it.increment(ec)) {
    std::error_code ignored;
    if (!fs::is_directory(it->symlink_status(ignored))) continue;
    (void)::chmod(it->path().c_str(), 0700);
  }
  return PosixFileSystem().remove_tree(directory);
}

}  // namespace troupe::scheduler
