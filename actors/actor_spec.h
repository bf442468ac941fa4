#pragma once
// The options of actors and placement groups as they travel.

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "troupe/options.h"
#include "troupe/placement_group.h"

namespace troupe::detail {

// The options as the cluster's ActorSpec, without what the caller's process knows (job, owner,
// image). kInvalidArgument names a field that makes no sense.
Result<wire::ActorSpec> make_spec(const ActorOptions& options);
// Adds units of a resource in fixed point. kInvalidArgument, naming `where`, for what is no
// multiple of 1/10,000; 0 adds nothing.
Status add_resource(wire::Resources& resources, const std::string& name, double amount,
                    const char* where);

// ActorOptions::max_concurrency and max_pending_calls. The head has no use for them: where they are
// set they travel before the constructor's arguments.
struct CallLimits {
  std::int32_t max_concurrency = 0;
  std::int32_t max_pending_calls = 0;
};
wire::Bytes with_call_limits(const CallLimits& limits, wire::Bytes constructor_arguments);
// Takes them off again.
CallLimits take_call_limits(std::span<const std::byte>& constructor_arguments);

// The options as the cluster's PlacementGroupSpec, without id, job and owner. kInvalidArgument
// names what makes no sense.
Result<wire::PlacementGroupSpec> make_group_spec(const PlacementGroupOptions& options);

}  // namespace troupe::detail
