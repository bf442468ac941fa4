#pragma once
// The stores of other nodes: those whose objects are held here (homes), to which this store
// connects, and those that hold objects of this one (borrowers), which connect to it. On the loop's
// thread.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "scheduler/objects/object_store.h"
#include "troupe/log.h"

namespace troupe::scheduler {

class StorePeers {
 public:
  struct Options {
    NodeId node_id;
    wire::Endpoint endpoint;
    net::Token token;
    // A store that cannot be reached for so long is lost.
    Duration patience{};
    Logger log;
    // A home that does not answer may be lost: the head is to be asked (nodes_listed()). May be
    // empty.
    std::function<void()> ask_for_nodes;
    // Whether something else waits for a list of nodes; asked once a second while something does.
    std::function<bool()> others_wait;
    // Reads all messages that processes of this node have sent. Called before a BorrowObjects is
    // answered, which may be about an object whose PutObject is still in a socket.
    std::function<void()> read_processes;
    std::function<wire::StoreTotals(const wire::ReadStoreTotals& asked)> totals;
    // `store` was told something: its effects are to be carried out.
    std::function<void()> told;
  };
  // `store` outlives it.
  StorePeers(net::EventLoop& loop, ObjectStore& store, Options options)
      : loop_(loop), store_(store), options_(std::move(options)) {}
  ~StorePeers() { alive_.reset(); }
  StorePeers(const StorePeers&) = delete;
  StorePeers& operator=(const StorePeers&) = delete;

  // A connection of another node.
  void serve(net::AcceptedSocket socket);
  // ObjectEffect::Kind::kTellPeer.
  void tell_home(const NodeId& node, const wire::Endpoint& endpoint, wire::ObjectMessage message);
  void tell_borrower(const NodeId& node, const wire::ObjectMessage& message);
  // While homes owe an answer it looks after those that are silent.
  void watch_homes();
  // The head's list.
  void nodes_listed(const std::vector<wire::NodeInfo>& nodes);

 private:
  struct Home {
    wire::Endpoint endpoint;
    std::shared_ptr<net::Connection> connection;
    bool connecting = false;
    TimePoint down_since{};
    std::uint64_t attempt = 0;                   // to connect, the last one
    std::optional<TimePoint> silent_since = {};  // something was asked, and nothing has come
  };

  TimePoint now() const { return loop_.clock().now(); }
  void after(Duration delay, std::function<void()> work);
  void connect_home(const NodeId& node);
  void home_connected(const NodeId& node, std::uint64_t attempt, Result<ByteStream> stream);
  void home_lost(NodeId node, const std::string& why);
  bool is_silent(const Home& home) const;
  void on_borrower_frame(const std::shared_ptr<NodeId>& node,
                         const std::weak_ptr<net::Connection>& connection,
                         std::span<const std::byte> frame);

  net::EventLoop& loop_;
  ObjectStore& store_;
  const Options options_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<NodeId, Home> homes_;
  std::map<NodeId, std::shared_ptr<net::Connection>> borrowers_;
  std::map<NodeId, wire::Endpoint> borrower_endpoints_;  // where others fetch what they have
  std::map<NodeId, std::uint64_t> breaks_;               // the last one of each, by number
  std::uint64_t breaks_seen_ = 0;
  std::set<std::shared_ptr<net::Connection>> strangers_;  // have not said who they are
  std::uint64_t attempts_ = 0;
  bool watching_homes_ = false;
};

}  // namespace troupe::scheduler
