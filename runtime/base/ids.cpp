#include "runtime/base/ids.h"

#include <charconv>

namespace troupe::detail {

Result<std::array<std::uint64_t, 2>> parse_id(std::string_view hex, std::string_view kind) {
  std::array<std::uint64_t, 2> parts{};
  bool good = hex.size() == 32;
  for (std::size_t i = 0; good && i < 2; ++i) {
    const char* first = hex.data() + 16 * i;
    const auto [end, code] = std::from_chars(first, first + 16, parts[i], 16);
    good = code == std::errc() && end == first + 16;
  }
  if (!good) return error(Code::kInvalidArgument, "'{}' is not a {} (32 hex digits)", hex, kind);
  return parts;
}

std::string id_text(std::uint64_t high, std::uint64_t low) {
  return fmt::format("{:016x}{:016x}", high, low);
}

std::string brief_id_text(std::uint64_t high) { return fmt::format("{:08x}", high >> 32); }

}  // namespace troupe::detail
