#include "scheduler/objects/store_peers.h"

#include <utility>

namespace troupe::scheduler {
namespace {

constexpr Duration kConnectTime = std::chrono::seconds(3);
constexpr Duration kConnectPause = std::chrono::milliseconds(100);
// A home that has not answered for so long may be lost.
constexpr Duration kHomeSilence = std::chrono::seconds(1);

}  // namespace

void StorePeers::after(Duration delay, std::function<void()> work) {
  loop_.call_after(delay, [alive = std::weak_ptr(alive_), work = std::move(work)] {
    if (!alive.expired()) work();
  });
}

// --- homes ---------------------------------------------------------------------------------------

void StorePeers::tell_home(const NodeId& node, const wire::Endpoint& endpoint,
                           wire::ObjectMessage message) {
  Home& home = homes_[node];
  if (!endpoint.host.empty()) home.endpoint = endpoint;
  if (home.connection) {
    (void)home.connection->send(wire::encode(message));
  } else if (!home.connecting) {  // then everything is said again
    home.down_since = now();
    connect_home(node);
  }
}

void StorePeers::connect_home(const NodeId& node) {
  Home& home = homes_.at(node);
  home.connecting = true;
  home.attempt = ++attempts_;
  net::connect(loop_, {home.endpoint.host, home.endpoint.port, {}}, wire::kObjectPeersTarget,
               options_.token, Deadline::after(kConnectTime, loop_.clock()),
               [this, node, attempt = home.attempt,
                alive = std::weak_ptr(alive_)](Result<ByteStream> stream) {
                 if (!alive.expired()) home_connected(node, attempt, std::move(stream));
               });
}

void StorePeers::home_connected(const NodeId& node, std::uint64_t attempt,
                                Result<ByteStream> stream) {
  const auto found = homes_.find(node);
  if (found == homes_.end() || found->second.attempt != attempt) return;  // it was lost meanwhile
  Home& home = found->second;
  if (!stream.ok()) {
    if (now() - home.down_since >= options_.patience) {
      return home_lost(node, stream.status().to_string());
    }
    after(kConnectPause, [this, node, attempt] {
      const auto waiting = homes_.find(node);
      if (waiting != homes_.end() && waiting->second.attempt == attempt) connect_home(node);
    });
    return;
  }
  home.connecting = false;
  home.connection = net::make_connection(loop_, std::move(*stream), home.endpoint.to_string());
  home.connection->start(
      {.on_frame =
           [this, node, alive = std::weak_ptr(alive_)](std::span<const std::byte> frame) {
             if (alive.expired()) return;
             const auto message = wire::decode_object(frame);
             const auto found = homes_.find(node);
             if (!message.ok() || found == homes_.end()) return;
             found->second.silent_since.reset();
             store_.on_peer(node, found->second.endpoint, *message, now());
             options_.told();
           },
       .on_close =
           [this, node, alive = std::weak_ptr(alive_)](Status) {
             const auto found = alive.expired() ? homes_.end() : homes_.find(node);
             if (found == homes_.end()) return;
             Home& closed = found->second;
             closed.connection.reset();
             closed.down_since = now();
             connect_home(node);
           }});
  (void)home.connection->send(wire::encode(wire::ObjectMessage(
      wire::StoreHello{.node_id = options_.node_id, .endpoint = options_.endpoint})));
  store_.connected(node);
  options_.told();
}

void StorePeers::home_lost(NodeId node, const std::string& why) {
  options_.log.warning("the object store of node {} at {} is lost: {}", node.brief(),
                       homes_[node].endpoint.to_string(), why);
  homes_.erase(node);
  store_.home_gone(node, now());
  options_.told();
}

// A machine without power closes no connection: where a home does not answer, the head is asked
// whether its node is lost.
void StorePeers::watch_homes() {
  if (!options_.ask_for_nodes || std::exchange(watching_homes_, true)) return;
  bool silent = options_.others_wait();
  const std::set<NodeId> asked = store_.asked_homes();
  if (asked.empty() && !silent) {
    watching_homes_ = false;
    return;
  }
  for (const NodeId& node : asked) {
    const auto home = homes_.find(node);
    if (home == homes_.end()) continue;
    if (!home->second.silent_since) home->second.silent_since = now();
    silent = silent || is_silent(home->second);
  }
  if (silent) options_.ask_for_nodes();
  after(kHomeSilence, [this] {
    watching_homes_ = false;
    watch_homes();
  });
}

bool StorePeers::is_silent(const Home& home) const {
  return home.silent_since && now() - *home.silent_since >= kHomeSilence;
}

void StorePeers::nodes_listed(const std::vector<wire::NodeInfo>& nodes) {
  const std::set<NodeId> asked = store_.asked_homes();
  for (const wire::NodeInfo& node : nodes) {
    if (node.state != wire::NodeState::kDead) continue;
    const auto home = homes_.find(node.node_id);
    if (home != homes_.end() && asked.contains(node.node_id) && is_silent(home->second))
      home_lost(node.node_id, "it does not answer, and the head says that its node is lost");
  }
}

// --- borrowers -----------------------------------------------------------------------------------

void StorePeers::tell_borrower(const NodeId& node, const wire::ObjectMessage& message) {
  const auto borrower = borrowers_.find(node);
  if (borrower != borrowers_.end()) (void)borrower->second->send(wire::encode(message));
}

void StorePeers::serve(net::AcceptedSocket socket) {
  const auto connection = net::make_connection(loop_, std::move(socket.socket), socket.peer);
  strangers_.insert(connection);
  const auto node = std::make_shared<NodeId>();
  const std::weak_ptr<net::Connection> weak = connection;
  connection->start(
      {.on_frame =
           [this, node, weak, alive = std::weak_ptr(alive_)](std::span<const std::byte> frame) {
             if (!alive.expired()) on_borrower_frame(node, weak, frame);
           },
       .on_close =
           [this, node, weak, alive = std::weak_ptr(alive_)](Status) {
             if (alive.expired()) return;
             const auto closed = weak.lock();
             strangers_.erase(closed);
             const auto known = borrowers_.find(*node);
             if (known == borrowers_.end() || known->second != closed) return;
             borrowers_.erase(known);
             const std::uint64_t number = breaks_[*node] = ++breaks_seen_;
             after(options_.patience, [this, gone = *node, number] {
               // It has come back, or has gone once more since, and has that time.
               if (borrowers_.contains(gone) || breaks_[gone] != number) return;
               breaks_.erase(gone);
               borrower_endpoints_.erase(gone);
               store_.borrower_gone(gone);
               options_.told();
             });
           }});
}

void StorePeers::on_borrower_frame(const std::shared_ptr<NodeId>& node,
                                   const std::weak_ptr<net::Connection>& connection,
                                   std::span<const std::byte> frame) {
  const auto message = wire::decode_object(frame);
  const auto sender = connection.lock();
  if (!message.ok() || !sender) return;
  if (const auto* hello = get_if<wire::StoreHello>(&*message)) {
    *node = hello->node_id;
    strangers_.erase(sender);
    borrowers_[*node] = sender;
    borrower_endpoints_[*node] = hello->endpoint;
  }
  if (const auto* asked = get_if<wire::ReadStoreTotals>(&*message)) {
    (void)sender->send(wire::encode(wire::ObjectMessage(options_.totals(*asked))));
    return;
  }
  if (node->empty()) return;
  const auto known = borrowers_.find(*node);
  if (known == borrowers_.end() || known->second != sender) return;  // there is a newer one
  // The PutObject of an object that a process here has passed on may still be in its socket.
  if (get_if<wire::BorrowObjects>(&*message) != nullptr) options_.read_processes();
  store_.on_peer(*node, borrower_endpoints_[*node], *message, now());
  options_.told();
}

}  // namespace troupe::scheduler
