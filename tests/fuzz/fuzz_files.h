#pragma once
// Files in memory that hold what an input says.

#include "runtime/base/check.h"
#include "tests/support/faulty_file_system.h"

namespace troupe::tests {

// Makes the file, and its directory where the path names one.
inline void put_file(FaultyFileSystem& files, const std::string& path, std::string_view content) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    TROUPE_CHECK(files.create_directories(path.substr(0, slash)).ok());
  }
  auto file = files.create(path);
  TROUPE_CHECK(file.ok() && (*file)->append(content).ok(), "{}", file.status().to_string());
}

}  // namespace troupe::tests
