#pragma once
// A package as one file (README.md: its bytes): what is in it, and how it is written.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "runtime/wire/package_manifest.h"

namespace troupe::scheduler {

// Where things lie in a package.
inline constexpr std::string_view kPackageWork = "work";        // the working folder
inline constexpr std::string_view kPackageProgram = "program";  // a program outside of it
inline constexpr std::string_view kPackageLibraries = "lib";

inline constexpr std::string_view kPackageMagic = "troupepk";
// The magic and the manifest's length.
inline constexpr std::size_t kPackageHeaderBytes = 16;

// What becomes an entry of a package.
struct PackageSource {
  wire::PackageEntry entry;
  std::string from;  // a file: where it lies on this machine
};

// Whether a symbolic link leads to something in its package, or to nothing.
bool link_stays_inside(const wire::PackageEntry& link);

// Whether these may be the entries of a package, in this order. kInvalidArgument names the first
// that may not.
Status check_entries(const std::vector<wire::PackageEntry>& entries);

// Writes the package's file. kAborted where a file is longer or shorter than its entry says, or
// becomes so while it is read; kCancelled where `go_on`, asked between pieces, says no.
Result<wire::Package> write_package(FileSystem& files, std::vector<PackageSource> sources,
                                    const std::string& path, const std::function<bool()>& go_on);

// What a package with these bytes is called.
wire::Package name_of_package(std::span<const std::byte> bytes);

}  // namespace troupe::scheduler
