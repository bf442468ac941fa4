#pragma once
// What a node's daemon and its keeper (runtime/process/keeper.h) say on the socket between them,
// one message a packet, and what the daemon puts down with the keeper for the daemon after it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/variant.h"
#include "runtime/wire/types.h"

namespace troupe::wire {

inline constexpr std::uint32_t kKeeperProtocolVersion = 2;

// --- daemon → keeper -----------------------------------------------------------------------------

// First. Answered by everything that the keeper has (KeeperEntry, KeeperChild), then KeeperWelcome.
struct KeeperHello {
  std::uint32_t protocol_version = kKeeperProtocolVersion;
  TROUPE_WIRE(KeeperHello, protocol_version);
};
// Starts a program. With descriptors: the program's file (not where it is started by its path),
// then one for each of `descriptors`, which are the numbers they get in the new process. Answered
// by KeeperSpawned.
struct KeeperSpawn {
  std::uint64_t child_id = 0;  // never used twice
  std::string path;            // for messages, and `by_path`
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // "NAME=value", besides the keeper's own
  std::vector<std::int32_t> descriptors;
  bool by_path = false;
  std::string working_directory;  // empty: the keeper's
  bool new_session = false;
  TROUPE_WIRE(KeeperSpawn, child_id, path, argv, environment, descriptors, by_path,
              working_directory, new_session);
};
// Holds bytes and at most one descriptor under a key. Where none comes, the one before stays.
struct KeeperPut {
  std::string key;
  Bytes bytes;
  TROUPE_WIRE(KeeperPut, key, bytes);
};
struct KeeperDrop {
  std::string key;
  TROUPE_WIRE(KeeperDrop, key);
};
// The daemon has dealt with this child's end.
struct KeeperForget {
  std::uint64_t child_id = 0;
  TROUPE_WIRE(KeeperForget, child_id);
};
// The daemon runs. A keeper that hears nothing for its hold time ends its children and itself; one
// whose daemon is gone does so at the end of the node's lease, too: the head may start its actors
// elsewhere then.
struct KeeperAlive {
  std::int64_t lease_end_ns = 0;  // by the machine's monotonic clock; 0: the node has none
  TROUPE_WIRE(KeeperAlive, lease_end_ns);
};
// Ends the children at once, then the keeper; the end of the connection says that it is done.
struct KeeperQuit {
  TROUPE_WIRE(KeeperQuit);
};

// --- keeper → daemon -----------------------------------------------------------------------------

// With the entry's descriptor, where it has one.
struct KeeperEntry {
  std::string key;
  Bytes bytes;
  TROUPE_WIRE(KeeperEntry, key, bytes);
};
struct KeeperChild {
  std::uint64_t child_id = 0;
  std::int64_t pid = 0;
  bool ended = false;
  ExitStatus exit;  // where it has ended
  TROUPE_WIRE(KeeperChild, child_id, pid, ended, exit);
};
// kAlreadyExists while another daemon is connected.
struct KeeperWelcome {
  Status status;
  TROUPE_WIRE(KeeperWelcome, status);
};
struct KeeperSpawned {
  std::uint64_t child_id = 0;
  Status status;
  std::int64_t pid = 0;
  TROUPE_WIRE(KeeperSpawned, child_id, status, pid);
};
struct KeeperExited {
  std::uint64_t child_id = 0;
  ExitStatus exit;
  TROUPE_WIRE(KeeperExited, child_id, exit);
};

// --- what entries hold ---------------------------------------------------------------------------

// An actor of the node, with a descriptor of its StartActor (encoded).
struct KeptActor {
  ActorId actor_id;
  std::uint64_t generation = 0;
  std::uint64_t host = 0;  // its process's number, the keeper's child_id; 0: it has none now
  bool ready = false;
  bool constructor_failed = false;
  bool ends_for_good = false;
  Status cause;
  std::vector<std::string> gpus;  // that its process has, or its last one had, by name
  TROUPE_WIRE(KeptActor, actor_id, generation, host, ready, constructor_failed, ends_for_good,
              cause, gpus);
};
// A job's segment, with its descriptor.
struct KeptSegment {
  JobId job_id;
  std::string name;
  std::uint64_t owner = 0;  // a process's number
  TROUPE_WIRE(KeptSegment, job_id, name, owner);
};
struct KeptNode {
  Endpoint endpoint;
  std::string name;
  bool joined = false;  // once
  // The lease: when (monotonic clock of the machine) what the head last answered was sent.
  std::int64_t contact_ns = 0;
  std::int64_t heartbeat_timeout_ms = 0;
  TROUPE_WIRE(KeptNode, endpoint, name, joined, contact_ns, heartbeat_timeout_ms);
};

// A GPU: what a next daemon must know to tell when it is free.
struct KeptGpu {
  std::string name;
  std::uint64_t idle_bytes = 0;  // used as nobody held it
  std::vector<std::int64_t> idle_pids;
  JobId last_job;
  bool releasing = false;  // its processes are gone, and its memory was not free yet
  bool lost = false;
  std::string trouble;
  TROUPE_WIRE(KeptGpu, name, idle_bytes, idle_pids, last_job, releasing, lost, trouble);
};
struct KeptGpus {
  std::vector<KeptGpu> gpus;
  TROUPE_WIRE(KeptGpus, gpus);
};

// In the order of their numbers on the wire: a new one goes to the end.
struct KeeperMessages
    : Alternatives<KeeperHello, KeeperSpawn, KeeperPut, KeeperDrop, KeeperForget, KeeperAlive,
                   KeeperQuit, KeeperEntry, KeeperChild, KeeperWelcome, KeeperSpawned, KeeperExited,
                   KeptActor, KeptSegment, KeptNode, KeptGpus> {};
using KeeperMessage = Variant<KeeperMessages>;

Bytes encode(const KeeperMessage& message);
Result<KeeperMessage> decode_keeper(std::span<const std::byte> packet);

}  // namespace troupe::wire

namespace troupe {
extern template class Variant<wire::KeeperMessages>;
}  // namespace troupe
