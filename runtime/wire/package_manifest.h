#pragma once
// What is in a package (scheduler/packages), as its file says it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/wire/types.h"

namespace troupe::wire {

enum class PackageEntryKind : std::uint8_t { kFile, kDirectory, kSymlink };
constexpr PackageEntryKind last_value(PackageEntryKind) { return PackageEntryKind::kSymlink; }

struct PackageEntry {
  std::string path;  // within the package: "work/data/words.txt"
  PackageEntryKind kind = PackageEntryKind::kFile;
  bool executable = false;       // of a file: all that is kept of its mode
  std::uint64_t size_bytes = 0;  // of a file
  std::string target;            // of a symbolic link
  TROUPE_WIRE(PackageEntry, path, kind, executable, size_bytes, target);
  friend bool operator==(const PackageEntry&, const PackageEntry&) = default;
};

struct PackageManifest {
  std::vector<PackageEntry> entries;
  TROUPE_WIRE(PackageManifest, entries);
};

Bytes encode(const PackageManifest& manifest);
// kProtocol for anything that is not exactly one within the limits. What is in it is not judged.
Result<PackageManifest> decode_package_manifest(std::span<const std::byte> bytes);

}  // namespace troupe::wire
