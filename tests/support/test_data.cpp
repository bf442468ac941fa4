#include "tests/support/test_data.h"

#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "runtime/base/check.h"

namespace troupe::tests {
namespace {

std::string from_environment(const char* name, const std::string& fallback) {
  const char* value = std::getenv(name);
  return value && *value ? value : fallback;
}

}  // namespace

std::optional<std::string> test_data(const std::string& name) {
  const std::string root = from_environment("TROUPE_TEST_DATA", source_dir() + "/../shared/data");
  const std::string path = root + "/" + name;
  if (std::filesystem::exists(path)) return path;
  std::printf("SKIPPED: no %s (set TROUPE_TEST_DATA to the folder with the test data)\n",
              name.c_str());
  return std::nullopt;
}

std::string source_dir() { return from_environment("TROUPE_SOURCE_DIR", "."); }
std::string bin_dir() {
  return from_environment("TROUPE_BIN_DIR",
                          std::filesystem::read_symlink("/proc/self/exe").parent_path().string());
}

void put_temporary_files_in_memory() {
  constexpr const char* kFolder = "/dev/shm";
  constexpr std::uint64_t kRoomBytes = 2u << 30;  // several times what a suite writes
  struct statfs info {};
  const bool fits = ::statfs(kFolder, &info) == 0 && info.f_type == TMPFS_MAGIC &&
                    info.f_bavail * static_cast<std::uint64_t>(info.f_bsize) >= kRoomBytes &&
                    (info.f_flags & ST_NOEXEC) == 0 && ::access(kFolder, W_OK | X_OK) == 0;
  if (fits) ::setenv("TMPDIR", kFolder, 0);
}

TemporaryDirectory::TemporaryDirectory(Place place) {
  const std::filesystem::path folder =
      place == Place::kOnDisk ? "/var/tmp" : std::filesystem::temp_directory_path();
  std::string name = (folder / "troupe-test-XXXXXX").string();
  TROUPE_CHECK(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ec;
  std::filesystem::remove_all(path_, ec);
}

}  // namespace troupe::tests
