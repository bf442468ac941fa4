#pragma once
// The head daemon: sockets, journal and clock around the state machine of scheduler/control.
//
// Messages that arrive together are decided together, their decisions are made durable with one
// sync, and only then do the answers leave. The sync is done on a thread of its own
// (journal_writer.h): while it takes its time heartbeats are answered and clients let in, and what
// is decided meanwhile is the next batch.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "scheduler/control/head_state.h"
#include "scheduler/head/http_server.h"
#include "scheduler/head/journal.h"
#include "troupe/log.h"

namespace troupe::scheduler {

struct HeadOptions {
  std::string host = "127.0.0.1";  // numeric address to listen on
  std::uint16_t port = 0;          // 0: a free one
  net::Token token;
  HeadConfig config;
  // How often a journal that cannot be written is tried again.
  Duration journal_retry = std::chrono::seconds(5);
  // Metrics over HTTP at /metrics, for Prometheus; nothing: none.
  std::optional<HttpServerOptions> metrics;
  bool metrics_port_is_wish = false;   // another one will do where it is taken
  std::string version;                 // shown among the metrics
  net::ConnectionOptions connections;  // to nodes and clients: how much may be said at once
};

class HeadDaemon {
 public:
  // Replays the journal, then listens. Loop thread. All references must outlive the daemon.
  // kAlreadyExists for a taken port, kDataLoss for a damaged journal, kInvalidArgument for times
  // that contradict each other (runtime/base/timing.h). A full disk keeps no head from starting:
  // what it knows is in the journal that is there. `on_end` is called once, on the loop's thread,
  // when the cluster has been stopped (StopCluster).
  static Result<std::unique_ptr<HeadDaemon>> start(net::EventLoop& loop, HeadOptions options,
                                                   Journal& journal, Random& random, Logger log,
                                                   std::function<void(std::string reason)> on_end);
  // Closes every connection; loop thread. Waits for a write of the journal that is under way.
  virtual ~HeadDaemon() = default;

  virtual const net::Address& address() const = 0;
  // Where the metrics are; nothing where there are none.
  virtual std::optional<net::Address> metrics_address() const = 0;
  // For tests and status lines. Loop thread.
  virtual const HeadState& state() const = 0;
};

}  // namespace troupe::scheduler
