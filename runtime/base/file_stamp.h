#pragma once
// Size, time and inode: they tell an unchanged file without reading it.

#include <cstdint>
#include <string>

#include "runtime/base/status.h"

namespace troupe {

// A file that is written to, replaced or moved from another file system has another one.
struct FileStamp {
  std::uint64_t size_bytes = 0;
  std::int64_t modified_unix_ns = 0;
  std::uint64_t inode = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// Follows links. kNotFound and its like where there is no such file.
Result<FileStamp> file_stamp(const std::string& path);

}  // namespace troupe
