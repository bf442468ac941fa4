#pragma once
// Collectives among GPUs by NCCL, behind the table.
//
//   auto communicator = make_nccl_communicator({.library = …, .context = …, .host = &world});
//
// One per generation; subgroups for the mesh's axes. Nothing here blocks in the library: forming,
// making connections and operations are asked about until they are done, each with a deadline, and
// a thread looks after what the library finds out by itself (its asynchronous errors), after ranks
// whose link to `host` broke, and after operations that nobody waits for. What fails aborts all
// groups of the rank and `host`, through which the other ranks learn of it.
//
// Sums. kTree: of fp32 and bf16 by the fixed tree: every rank gets the parts of its shard from
// the others in pieces and adds them by the table's tree_sum; the bits are the CPU's. kLibrary: by
// NCCL in its own order, the same for every step but not for other numbers of ranks, other
// transports or versions (`deterministic: off`); of uneven shards by the tree still.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "train/cuda/communicator/device_communicator.h"
#include "train/cuda/device/cuda_library.h"

namespace troupe::train {

enum class DeviceReduction { kTree, kLibrary };

struct NcclOptions {
  std::shared_ptr<const CudaLibrary> library;
  // This rank's device; outlives the communicator and its subgroups.
  TroupeCudaContext* context = nullptr;
  // Over the same ranks; outlives them, too. The unique ids go over it. Its generation is theirs.
  collective::Communicator* host = nullptr;
  std::string name = "world";  // in errors, and in NCCL's own log
  // For forming a group, connections included that NCCL makes then.
  Duration form_timeout = std::chrono::minutes(5);
  // Of an operation without a deadline of its own: default_timeout().
  Duration operation_timeout = std::chrono::minutes(30);
  DeviceReduction reduction = DeviceReduction::kTree;
  // The device's memory for the parts of a sum, where there are several ranks.
  std::int64_t scratch_bytes = std::int64_t{32} << 20;
  // Four pieces of pinned memory of this size, once something goes over the host.
  std::int64_t chunk_bytes = std::int64_t{1} << 20;
  // How many of each group's first operations are compared among the ranks before they begin: NCCL
  // itself hangs, or mixes data up, where ranks do not mean the same. Afterwards a program goes
  // round in what was compared; what differs nevertheless ends by its deadline. Each comparison is
  // a small all_gather over `host`.
  std::uint64_t compared_operations = 64;
  // Between two looks of the thread.
  Duration watch_interval = std::chrono::milliseconds(10);
};

// The least version of NCCL that has what is used here: 2.18.
inline constexpr int kNcclVersionMin = 21800;
// "2.28.9" of 22809.
std::string nccl_version_text(int version);
// Whether ranks with these versions (0: none) can form a group. Errors: kUnsupported (missing or
// too old, on which rank), kFailedPrecondition (different ones).
Status check_nccl_versions(std::span<const std::int32_t> by_rank);

// Collective over `host`: all ranks succeed or none does. `host` is as good as before where it
// fails for NCCL's reasons, so that something else can be tried. Errors: kUnsupported (NCCL missing
// or too old, on which rank), kFailedPrecondition (versions that differ), kDeadlineExceeded and the
// library's, with what they usually come from; those of `host`.
Result<std::unique_ptr<DeviceCommunicator>> make_nccl_communicator(const NcclOptions& options);

}  // namespace troupe::train
