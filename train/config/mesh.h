#pragma once
// The mesh as users write it, and which strategies go with it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

// A mesh of data-parallel axes: "2,4" or [2, 4] (replicate, shard), or by name: {dp_replicate: 2,
// dp_shard: 4}, "dp_replicate=2,dp_shard=4". An axis of another kind above 1 (tp, cp, sp, pp, ep)
// is kUnsupported and named. 0: not given.
struct MeshAxes {
  std::int64_t replicate = 0;
  std::int64_t shard = 0;
  friend bool operator==(const MeshAxes&, const MeshAxes&) = default;
};
Result<MeshAxes> read_mesh(const json::Value& value);
// Why an axis of that name above 1 is refused, or nothing where it is no such axis. Also with the
// ending "_size".
std::optional<std::string> refused_axis(std::string_view name);

// train/sharding's name of a strategy for any of its names: fsdp and full_shard are zero3, …
std::string canonical_strategy(std::string_view name);
// The strategy that a mesh means where none is given: ddp, zero3 or hsdp.
std::string strategy_of_mesh(const MeshAxes& mesh);
// FSDP's strategy on a mesh: within groups that are replicated zero3 is hsdp, and shard_grad_op is
// hsdp_zero2.
std::string fsdp_strategy_on(const MeshAxes& mesh, std::string_view strategy);
// The form of a mesh that a strategy has, where this one has another: "REPLICATE,1". Only hsdp and
// hsdp_zero2 go with every mesh.
std::optional<std::string> other_mesh_of(std::string_view strategy, const MeshAxes& mesh);

}  // namespace troupe::train
