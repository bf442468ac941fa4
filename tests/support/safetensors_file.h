#pragma once
// The tensors of a well-formed safetensors file, as they are stored.

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"

namespace troupe::tests {

struct StoredBytes {
  std::string dtype;  // "F32", "BF16", …
  std::string bytes;
};

inline std::map<std::string, StoredBytes> stored_tensors(const std::string& path) {
  PosixFileSystem files;
  const std::string file = files.read(path, 64u << 20).value();
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), 8);
  const json::Value header =
      json::parse(std::string_view(file).substr(8, header_size), path).value();
  std::map<std::string, StoredBytes> tensors;
  for (const auto& entry : header.as_object()) {
    if (entry.key() == "__metadata__") continue;
    const auto& offsets = entry.value().at("data_offsets").as_array();
    const auto begin = static_cast<std::size_t>(offsets[0].as_int64());
    const auto end = static_cast<std::size_t>(offsets[1].as_int64());
    tensors[std::string(entry.key())] = {std::string(entry.value().at("dtype").as_string()),
                                         file.substr(8 + header_size + begin, end - begin)};
  }
  return tensors;
}

}  // namespace troupe::tests
