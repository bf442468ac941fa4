#include "actors/call_connection.h"

#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"
#include "runtime/base/machine.h"

namespace troupe::detail {
namespace {

std::uint64_t half_of_memory() {
  PosixFileSystem files;
  const auto bytes = detect_memory_bytes(files);
  return bytes.ok() ? static_cast<std::uint64_t>(*bytes) / 2 : limits::kUnknownMemoryCallBytesMax;
}

}  // namespace

net::ConnectionOptions call_connection_options() {
  static const std::uint64_t kHalfOfMemory = half_of_memory();
  net::ConnectionOptions options;
  options.attachment_bytes_max = kHalfOfMemory;
  return options;
}

}  // namespace troupe::detail
