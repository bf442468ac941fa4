#pragma once
// What a node tells a process of its GPUs beside CUDA_VISIBLE_DEVICES, in variables of the
// environment.

namespace troupe {

// UUIDs, with commas between them, of the node's GPUs whose memory some GPU that the process sees
// cannot read, or the other way round, as the driver says. Not set: there is none, or nobody knows.
inline constexpr const char* kGpusWithoutPeerAccess = "TROUPE_GPUS_WITHOUT_PEER_ACCESS";

// The NUMA node that all GPUs which the process sees are at. Not set: there are several, or nobody
// knows.
inline constexpr const char* kGpuNumaNode = "TROUPE_GPU_NUMA_NODE";

}  // namespace troupe
