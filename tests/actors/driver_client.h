#pragma once
// A driver's client of an embedded cluster whose actors run another program than the test itself.

#include <memory>
#include <string>

#include "actors/client.h"
#include "runtime/net/event_loop.h"
#include "scheduler/client/head_client.h"
#include "scheduler/embedded/embedded_cluster.h"

namespace troupe::tests {

struct DriverClient {
  std::shared_ptr<scheduler::HeadClient> head;
  std::shared_ptr<detail::ActorClient> client;
};

// On `thread`, which outlives it. `host_program`: the name of the program, among the built ones.
// Without a namespace names are in one of its job's own. `node`: on which it runs; empty: on none.
DriverClient connect_driver(const net::Address& head, const net::Token& token, NodeId node,
                            net::LoopThread& thread, const std::string& host_program,
                            const std::string& namespace_name = {});
DriverClient connect_driver(const scheduler::EmbeddedCluster& cluster, net::LoopThread& thread,
                            const std::string& host_program,
                            const std::string& namespace_name = {});

}  // namespace troupe::tests
