#pragma once
// The node daemon: starts the processes of actors, sees them end, hands them their connections,
// keeps what must outlive them.
//
// One port and one abstract Unix socket. A connection's target says whom it is for: "node" is
// answered here, "actor/ID…" is handed to that actor's process after authentication; no data passes
// through.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/types.h"

namespace troupe::scheduler {

// A line that an actor's process wrote; `actor` names it for people.
using OutputSink = std::function<void(const std::string& actor, std::string_view line)>;

struct NodeOptions {
  NodeId node_id;
  std::string name;                // host name; the head makes it unique
  std::string host = "127.0.0.1";  // numeric address to listen on, told to others
  std::uint16_t port = 0;          // 0: a free one
  net::Address head;
  net::Token token;
  wire::Resources resources;
  std::map<std::string, std::string> labels;
  // Each actor's output goes to LOG_DIR/ACTOR-ID.log; empty: only the last lines are kept, in
  // memory.
  std::string log_dir;
  OutputSink on_output;  // may be empty
  Duration join_timeout = std::chrono::seconds(60);
  Duration return_timeout = std::chrono::seconds(60);
};

class NodeDaemon {
 public:
  struct Handlers {
    // At each registration with the head. May be empty.
    std::function<void(const std::string& name)> on_registered;
    // The node has ended: ok when the head said so, else why (no head, refused). Once.
    std::function<void(Status)> on_stopped;
  };

  // Listens, then joins the head, which may not be up yet. Loop thread. References must outlive the
  // daemon.
  static Result<std::unique_ptr<NodeDaemon>> start(net::EventLoop& loop, NodeOptions options,
                                                   FileSystem& files, Random& random, Logger log,
                                                   Handlers handlers);
  // Kills every process that it started and waits for their ends. Loop thread.
  virtual ~NodeDaemon() = default;

  // Ends all actors, tells the head that the node leaves, then calls on_stopped. Loop thread.
  virtual void leave(const std::string& reason) = 0;
  virtual const net::Address& address() const = 0;
};

}  // namespace troupe::scheduler
