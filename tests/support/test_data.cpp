#include "tests/support/test_data.h"

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

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
  TROUPE_CHECK(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ec;
  std::filesystem::remove_all(path_, ec);
}

}  // namespace troupe::tests
