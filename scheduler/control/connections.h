#pragma once
// Control connections, and the clients (drivers, actors' processes, tools) that come by them.

#include "scheduler/control/context.h"
#include "scheduler/control/records.h"

namespace troupe::scheduler {

// Whether `who` speaks the head's protocol. kProtocol is told to who came, and noted here: either
// side may be the one to look.
Status check_version(Context& context, const std::string& who, std::uint32_t version);

class Connections {
 public:
  explicit Connections(Context& context) : context_(context) {}

  const std::map<PeerId, PeerRecord>& peers() const { return peers_; }
  const std::map<ClientId, ClientRecord>& clients() const { return clients_; }
  bool has_client(ClientId id) const { return clients_.contains(id); }
  // Null where there is none.
  const PeerRecord* find(PeerId peer) const;
  const ClientRecord* client(ClientId id) const;
  const ClientRecord* client_of(PeerId peer) const;
  // The namespace of the actors that it creates: the one that it named, or its job's.
  static std::string namespace_of(const ClientRecord& client);

  // A message came by it.
  const PeerRecord& used(PeerId peer) { return peers_[peer]; }
  void introduce_node(PeerId peer, NodeId id) { peers_[peer].node_id = id; }
  void introduce_client(PeerId peer, const wire::ClientHello& hello);
  // What a client has under way.
  void report(ClientId id, wire::Work work);
  const WorkDone& work_done() const { return work_done_; }
  void watch_nodes(PeerId peer, bool amounts) {
    peers_[peer].watches_nodes = true;
    peers_[peer].watches_amounts = amounts;
  }
  // The head ends it, or it has closed. A client whose connection closed has a while to come back.
  void end(PeerId peer) {
    peers_.erase(peer);
    context_.close(peer);
  }
  void closed(PeerId peer);

  // The client whose time to come back is over by this timer: it is forgotten.
  std::optional<ClientRecord> take_gone(const Timer& timer);
  // The head stood still: no part of the time in which clients may come back.
  void excuse_away(Duration pause);
  // A head that came back knows of a client only that it owns something.
  void await_owner(ClientId owner, JobId job_id);

 private:
  void await(ClientRecord& client, TimePoint until);

  Context& context_;
  std::map<PeerId, PeerRecord> peers_;
  std::map<ClientId, ClientRecord> clients_;
  WorkDone work_done_;
};

}  // namespace troupe::scheduler
