#pragma once
// The CPU implementation: shared-memory rings between ranks of one node, TCP between nodes.
//
//   auto communicator = make_cpu_communicator(options, std::move(links));
//
// How links come about (actors, the daemon's port, a test) is not its business.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/collective/communicator.h"
#include "troupe/byte_stream.h"

namespace troupe::collective {

// A connected stream to another rank: a Unix socket where both are on one node (it carries
// the shared memory's descriptor, doorbells, and tells of the peer's death), else TCP, encrypted or
// not. Both ends
// must agree on same_node.
struct PeerLink {
  int rank;
  bool same_node;
  ByteStream stream;
};

struct CommunicatorOptions {
  int rank = 0;
  int world_size = 1;
  std::uint64_t generation = 0;
  // What the group is called (at most 63 characters); both ends of a link must say the same.
  std::string name = "world";
  // How long a waiting rank spins before it sleeps. Zero unless every rank on the node has a core
  // to itself: two ranks that spin on one core cost milliseconds per operation.
  Duration spin{0};
  // From how many bytes on an operation reads registered memory in place, the same on every rank of
  // a node; unset: what was measured, for ranks that spin and ranks that sleep.
  std::optional<std::size_t> in_place_bytes;
  // For forming the communicator, and for each operation without its own deadline.
  Duration default_timeout = std::chrono::seconds(60);
};

// Forms the communicator: exchanges greetings and shared memory over every link. `links`: one per
// other rank, any order. Blocks until every peer has come, at most default_timeout. Errors:
// kInvalidArgument (links do not fit the options), kFailedPrecondition (a peer of another name,
// rank, size or generation: both are named), kUnavailable and kDeadlineExceeded (naming the peer).
Result<std::unique_ptr<Communicator>> make_cpu_communicator(CommunicatorOptions options,
                                                            std::vector<PeerLink> links);

// Links among `world_size` ranks of this machine, result[rank] = that rank's links, for tests,
// benchmarks and embedded groups. nodes[rank]: the node a rank pretends to be on; ranks of one node
// get Unix socket pairs, others TCP over loopback. After a fork, destroy the other ranks' links.
Result<std::vector<std::vector<PeerLink>>> make_local_links(const std::vector<int>& nodes);

}  // namespace troupe::collective
