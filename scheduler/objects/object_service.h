#pragma once
// A node's object store: sockets, shared memory, disk and transfers around its decisions
// (object_store.h), on threads of its own, so that nothing of it runs in the node daemon's loop.
//
// A process comes over the node's local socket (target wire::kObjectsTarget) and hands in two
// packet sockets: one for its messages and their answers, one for notices. Other nodes' stores come
// by kObjectPeersTarget (who holds what) and kObjectBytesTarget (bytes).

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/net/transport.h"
#include "scheduler/objects/object_store.h"
#include "troupe/log.h"

namespace troupe::scheduler {

bool is_object_target(const std::string& target);

struct ObjectServiceOptions {
  ObjectStoreConfig store;
  net::Token token;
  std::string spill_parent;  // where its folder for objects on disk is made
  // Another node's store that cannot be reached for so long is lost.
  Duration peer_patience = std::chrono::seconds(5);
  // Has the cluster's nodes told by nodes_listed(), soon or late. On the store's own thread. None:
  // what is to be learned of them takes longer, and a copy that only another one has is not found.
  std::function<void()> ask_for_nodes = {};
  Logger log;
};

// What is in the store of another node, and what it has moved lately (`moves`); waits. Not on a
// loop's thread.
Result<wire::StoreTotals> read_store_totals(const net::Address& node, const net::Token& token,
                                            Deadline deadline, bool moves = false);

class ObjectService {
 public:
  // kResourceExhausted where there is no thread for it.
  static Result<std::unique_ptr<ObjectService>> start(ObjectServiceOptions options);
  virtual ~ObjectService() = default;  // ends everything; not on its own threads
  // A connection with one of the targets. Any thread.
  virtual void serve(net::AcceptedSocket socket) = 0;
  // Any thread.
  virtual void nodes_listed(std::vector<wire::NodeInfo> nodes) = 0;
};

}  // namespace troupe::scheduler
