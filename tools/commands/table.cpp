#include "tools/commands/table.h"

#include <algorithm>

#include "scheduler/policy/resources.h"

namespace troupe::tools {

std::string format_age(std::int64_t microseconds) {
  const std::int64_t seconds = std::max<std::int64_t>(0, microseconds / 1'000'000);
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 3600) return fmt::format("{}m {}s", seconds / 60, seconds % 60);
  if (seconds < 86400) return fmt::format("{}h {}m", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{}d {}h", seconds / 86400, seconds / 3600 % 24);
}

std::string format_use(std::string_view resource, std::int64_t used, std::int64_t total) {
  return fmt::format("{}/{}", scheduler::format_amount(resource, used),
                     scheduler::format_amount(resource, total));
}

}  // namespace troupe::tools
