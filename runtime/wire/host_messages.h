#pragma once
// What a node and the actor's process it started say on the Unix socket between them (descriptor 3
// of the process). Some messages travel with file descriptors.
//
// The socket's end is the process's end: a host that reads end-of-file exits at once, so a driver
// that embeds a node and is killed with -9 leaves nobody behind. Where a keeper holds the node's
// end too (runtime/process/keeper.h), the socket stays while the node's daemon is away, and what is
// said waits in it.

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "runtime/base/variant.h"
#include "runtime/wire/types.h"

namespace troupe::wire {

// node → host, first. With one descriptor where has_saved_state: the segment of the last save().
struct HostStart {
  ActorSpec spec;
  std::uint64_t generation = 0;
  NodeId node_id;
  Endpoint node_endpoint;
  Endpoint head_endpoint;
  // The cluster's token: never in argv, environment or logs.
  Bytes token;
  bool has_saved_state = false;
  // How the cluster protects its connections: net::Security.
  std::uint8_t security = 0;
  std::uint32_t protocol_version = kProtocolVersion;  // of the node; 0: of before nodes said theirs
  // The name of the node with which the state that the actor had saved was lost; empty: none was.
  std::string state_lost_with;
  std::map<std::string, std::string> node_labels;
  TROUPE_WIRE(HostStart, spec, generation, node_id, node_endpoint, head_endpoint, token,
              has_saved_state, security, protocol_version, state_lost_with, node_labels);
};
// node → host, with one descriptor: an authenticated connection whose target was this actor; or a
// stranger's, of which nothing is known but that it named this actor.
struct HostConnection {
  std::string target;  // "actor/ID" or "actor/ID/PURPOSE"
  std::string peer;    // who it is, for messages
  bool same_node = false;
  // TLS has yet to be done (net::HandedOver); `target` is "actor/ID".
  bool untouched = false;
  TROUPE_WIRE(HostConnection, target, peer, same_node, untouched);
};
// node → host: finish within grace_ms and exit.
struct HostStop {
  std::int64_t grace_ms = 0;
  std::string reason;
  // What is queued counts, too, and nothing new is taken. Answered by HostDrained.
  bool drain = false;
  bool comes_back = false;  // another process of the actor will be started
  TROUPE_WIRE(HostStop, grace_ms, reason, drain, comes_back);
};
// host → node: the constructor ran (and load(), where there was saved state).
struct HostReady {
  std::uint32_t protocol_version = kProtocolVersion;  // of the program; 0: of before it was said
  // What the actor had saved was lost with its node, and no copy was found (ActorSpec::replicas).
  bool state_lost = false;
  TROUPE_WIRE(HostReady, protocol_version, state_lost);
};
// host → node: the constructor failed; the process exits next.
struct HostFailed {
  Status status;
  TROUPE_WIRE(HostFailed, status);
};
// host → node, with one descriptor: a sealed segment that holds the actor's saved state and must
// outlive the process. The newest one replaces the one before. (Layout: actors/saved_state.h.)
struct HostSavedState {
  std::uint64_t generation = 0;
  TROUPE_WIRE(HostSavedState, generation);
};
// host → node, with one descriptor: a segment to keep for the job on this node, under a name. The
// process that puts it is its owner. A name whose owner is another process that runs is not taken.
// Without a descriptor and with `drop`: forget it.
struct HostKeepSegment {
  std::string name;
  bool drop = false;
  TROUPE_WIRE(HostKeepSegment, name, drop);
};
// host → node: take over the job's segment of this name. The node answers when the process group of
// the owner before is gone, or says why not. Asked again with the same number it answers once more.
struct HostAttachSegment {
  std::uint64_t request_id = 0;
  std::string name;
  std::int64_t timeout_ms = 0;  // how long the node may wait
  TROUPE_WIRE(HostAttachSegment, request_id, name, timeout_ms);
};
// node → host, with one descriptor where the status is ok: the segment; the process owns it now.
struct HostAttachReply {
  std::uint64_t request_id = 0;
  Status status;
  TROUPE_WIRE(HostAttachReply, request_id, status);
};

// host → node: it does nothing more, and exits next; at the latest grace_ms after a HostStop with
// `drain`, however much is left.
struct HostDrained {
  std::int64_t calls_dropped = 0;  // that were queued, or cut short
  TROUPE_WIRE(HostDrained, calls_dropped);
};
// host → node: what the actor says of its health, each HealthPolicy::interval_ms; from its own
// thread, so that silence says something, too.
struct HostHealth {
  Status status;
  TROUPE_WIRE(HostHealth, status);
};

// In the order of their numbers on the wire: a new one goes to the end.
struct HostMessages
    : Alternatives<HostStart, HostConnection, HostStop, HostReady, HostFailed, HostSavedState,
                   HostKeepSegment, HostAttachSegment, HostAttachReply, HostDrained, HostHealth> {};
using HostMessage = Variant<HostMessages>;

Bytes encode(const HostMessage& message);
Result<HostMessage> decode_host(std::span<const std::byte> frame);

}  // namespace troupe::wire

namespace troupe {
extern template class Variant<wire::HostMessages>;
}  // namespace troupe
