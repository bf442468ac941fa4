#pragma once
// Head and node inside a driver's process, as the Cluster that owns them sees them. An interface,
// so that programs that only connect link neither: actors/embedded implements it.

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/net/transport.h"

namespace troupe::detail {

// Any thread but the cluster's own.
class OwnCluster {
 public:
  virtual ~OwnCluster() = default;  // stop()
  virtual const net::Address& head_address() const = 0;
  virtual const net::Token& token() const = 0;
  virtual NodeId node_id() const = 0;
  // Waits for the end of the head after it was asked to stop the cluster.
  virtual void wait_for_end(Duration timeout) = 0;
  // Ends every actor's process, the node and the head; when it returns nothing is left.
  virtual void stop() = 0;
};

}  // namespace troupe::detail
