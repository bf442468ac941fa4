#pragma once
// What lies with a node's keeper, read back into what the node's state machine takes up.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory/record_memory.h"
#include "runtime/process/keeper_client.h"
#include "scheduler/node/host_parent.h"
#include "scheduler/node/node_events.h"

namespace troupe::scheduler {

struct KeptState {
  struct Actor {
    wire::KeptActor record;
    wire::ActorSpec spec;
    UniqueFd saved_state;
    std::string state_lost_with;  // of its start
  };
  std::optional<wire::KeptNode> node;  // nothing: this node's daemon never joined a head
  std::optional<wire::KeptGpus> gpus;
  std::map<ActorId, Actor> actors;
  std::vector<std::pair<wire::KeptSegment, UniqueFd>> segments;
  std::map<ActorId, UniqueFd> outputs;  // their last lines (output_ring.h), of ended ones, too
  std::map<HostId, HostEnds> ends;
  std::map<HostId, wire::KeeperChild> children;
  std::vector<std::string> strays;    // entries that belong to nothing
  std::vector<std::string> problems;  // what could not be read, as sentences
};

KeptState decode_kept(process::KeeperClient::Contents contents);
// Where the daemon before listened.
std::optional<wire::Endpoint> kept_endpoint(const process::KeeperClient::Contents& contents);
// The socket on which it listened; once. Invalid: there is none.
UniqueFd kept_listener(process::KeeperClient::Contents& contents);
// Memory with one record ("TRPSTRT1"), an actor's start, however large its arguments are.
Result<memory::RecordMemory> encode_start(const wire::StartActor& start);

}  // namespace troupe::scheduler
