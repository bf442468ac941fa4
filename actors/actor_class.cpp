#include "troupe/detail/actor_class.h"

#include "runtime/base/limits.h"
#include "runtime/base/status.h"

namespace troupe::detail {

static_assert(kPendingCallsMax == limits::kMailboxCallsMax);

Status other_state_error(std::string_view type, std::uint32_t saved, std::uint32_t own) {
  return error(Code::kFailedPrecondition,
               "{} has saved state of version {} (this program's kStateVersion is {}{}). Add "
               "`Status load_version(std::uint32_t version, std::span<const std::byte>)` to "
               "convert it",
               type, saved, own, saved == own ? ", but its type differs" : "");
}

Status no_load_error(std::string_view type) {
  return error(Code::kFailedPrecondition, "{} has saved state but no load()", type);
}

Status unhealthy_error(std::string_view type) {
  return error(Code::kFailedPrecondition, "{}::healthy() said no", type);
}

}  // namespace troupe::detail
