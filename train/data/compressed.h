#pragma once
// Compressed data files.

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace troupe::train {

// What gzip's or zstd's content becomes; nothing where the bytes are not compressed. Their first
// bytes decide, as in Hugging Face's datasets, not the file's name. bzip2 and xz are kUnsupported
// with what to do, damage is kDataLoss. `name` stands in errors.
Result<std::optional<std::string>> decompressed(std::string_view bytes, const std::string& name);

}  // namespace troupe::train
