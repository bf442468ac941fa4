#include "train/checkpoint/inspect.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "runtime/base/hash.h"
#include "train/checkpoint/checkpoint_finder.h"

namespace troupe::train {
namespace {

constexpr std::size_t kReadBytes = 1u << 20;
constexpr int kVerifyThreadsMax = 64;

// Bytes of a file that have a hash of their own.
struct HashedRange {
  const ManifestFile* file;
  FilePart part;
  bool whole;  // the file has no other parts
};

std::vector<HashedRange> hashed_ranges(const Manifest& manifest) {
  std::vector<HashedRange> ranges;
  for (const auto& file : manifest.files) {
    if (file.parts.empty()) ranges.push_back({&file, {0, file.size_bytes, file.xxh3}, true});
    for (const auto& part : file.parts) ranges.push_back({&file, part, file.parts.size() == 1});
  }
  return ranges;
}

// The file with the size that it was written with.
Result<std::unique_ptr<ReadableFile>> open_checked(FileSystem& files, const std::string& path,
                                                   const ManifestFile& expected) {
  auto file = files.open_readable(path);
  if (!file) {
    if (file.status().code() != Code::kNotFound) return file.status();
    return error(Code::kDataLoss, "{} is missing", path);
  }
  if ((*file)->size() != expected.size_bytes) {
    return error(Code::kDataLoss, "{} has {} bytes instead of {}", path, (*file)->size(),
                 expected.size_bytes);
  }
  return file;
}

Result<std::uint64_t> hash_range(ReadableFile& file, const FilePart& part,
                                 std::vector<std::byte>& buffer) {
  Xxh3Stream hash;
  buffer.resize(kReadBytes);
  for (std::uint64_t done = 0; done < part.size_bytes;) {
    const auto size = std::min<std::uint64_t>(kReadBytes, part.size_bytes - done);
    const auto bytes = std::span(buffer).first(size);
    TROUPE_RETURN_IF_ERROR(file.read_at(part.offset + done, bytes));
    hash.update(bytes);
    done += size;
  }
  return hash.digest();
}

// The tensors of a safetensors file that have bytes in the part; none where that cannot be said.
std::vector<std::string> tensors_in(FileSystem& files, const std::string& path,
                                    const FilePart& part) {
  std::vector<std::string> names;
  if (!path.ends_with(".safetensors")) return names;
  auto file = files.open_readable(path);
  if (!file) return names;
  const auto header = SafetensorsHeader::read(**file, path);
  if (!header) return names;
  for (const auto& tensor : header->tensors) {
    if (tensor.begin < part.offset + part.size_bytes && part.offset < tensor.end) {
      names.push_back(tensor.name);
    }
  }
  return names;
}

std::optional<CheckpointDamage> check_range(FileSystem& files, const std::string& directory,
                                            const HashedRange& range,
                                            std::vector<std::byte>& buffer) {
  const std::string path = join_path(directory, range.file->name);
  CheckpointDamage damage;
  damage.file = range.file->name;
  auto file = open_checked(files, path, *range.file);
  if (!file) {
    // Said once for the file.
    if (range.part.offset > 0) return std::nullopt;
    damage.reason = file.status();
    return damage;
  }
  const auto hash = hash_range(**file, range.part, buffer);
  if (hash.ok() && *hash == range.part.xxh3) return std::nullopt;
  if (!range.whole) {
    damage.offset = range.part.offset;
    damage.size_bytes = range.part.size_bytes;
  }
  damage.tensors = tensors_in(files, path, range.part);
  const std::string where = range.whole ? ""
                                        : fmt::format(" in bytes {} to {}", range.part.offset,
                                                      range.part.offset + range.part.size_bytes);
  damage.reason =
      hash.ok() ? error(Code::kDataLoss,
                        "{} is damaged{}: its hash is not the one it was written with", path, where)
                : hash.status();
  return damage;
}

}  // namespace

std::vector<CheckpointDamage> check_files(FileSystem& files, const std::string& directory,
                                          const Manifest& manifest, int threads) {
  const auto ranges = hashed_ranges(manifest);
  std::vector<std::optional<CheckpointDamage>> found(ranges.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    std::vector<std::byte> buffer;
    for (std::size_t i = next++; i < ranges.size(); i = next++) {
      found[i] = check_range(files, directory, ranges[i], buffer);
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < std::min(threads, kVerifyThreadsMax); ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  std::vector<CheckpointDamage> damage;
  for (auto& one : found) {
    if (one) damage.push_back(std::move(*one));
  }
  return damage;
}

Result<Manifest> verify_checkpoint(FileSystem& files, const std::string& directory, int threads) {
  auto manifest = TROUPE_TRY(read_manifest(files, directory));
  const auto damage = check_files(files, directory, manifest, threads);
  if (!damage.empty()) return damage.front().reason;
  return manifest;
}

CheckpointInspection inspect_checkpoint(FileSystem& files, const std::string& path, int threads) {
  CheckpointInspection inspection;
  inspection.path = path;
  if (const auto entries = files.list(path); entries.ok()) {
    for (const auto& entry : *entries) inspection.size_bytes += entry.size_bytes;
  }
  const auto manifest = read_manifest(files, path);
  if (manifest.ok()) {
    inspection.step = manifest->step;
    inspection.format = manifest->format;
    inspection.has_optimizer = manifest->has_optimizer;
    inspection.world_size = manifest->world_size;
    inspection.damage = check_files(files, path, *manifest, threads);
    if (!inspection.damage.empty()) return inspection;
  }
  // What bytes alone do not show: names, markers, the fit of the pieces.
  const auto good = check_structure(files, path, manifest);
  if (good.ok()) {
    inspection.step = good->step;
    inspection.foreign = good->foreign;
  } else {
    CheckpointDamage damage;
    if (!manifest.ok() && manifest.status().code() != Code::kNotFound) damage.file = kManifestFile;
    damage.reason = good.status();
    inspection.damage.push_back(std::move(damage));
  }
  return inspection;
}

}  // namespace troupe::train
