#include "tests/actors/driver_client.h"

#include <chrono>
#include <utility>

#include "actors/head_directory.h"
#include "tests/support/test_data.h"

namespace troupe::tests {

DriverClient connect_driver(const scheduler::EmbeddedCluster& cluster, net::LoopThread& thread,
                            const std::string& host_program, const std::string& namespace_name) {
  return connect_driver(cluster.head_address(), cluster.token(), cluster.node_id(), thread,
                        host_program, namespace_name);
}

DriverClient connect_driver(const net::Address& head, const net::Token& token, NodeId node,
                            net::LoopThread& thread, const std::string& host_program,
                            const std::string& namespace_name) {
  auto random = std::make_shared<SystemRandom>();
  wire::ClientHello hello;
  hello.client_id = ClientId::make(*random);
  hello.job_id = JobId::make(*random);
  hello.kind = "driver";
  hello.namespace_name = namespace_name;
  DriverClient made;
  made.head = scheduler::HeadClient::connect(thread.loop(), head, token, hello,
                                             Deadline::after(std::chrono::seconds(20)))
                  .value();
  auto environment = std::make_shared<detail::ChannelEnvironment>();
  environment->loop = &thread.loop();
  environment->token = token;
  environment->node_id = node;
  environment->directory = std::make_shared<detail::HeadDirectory>(thread.loop(), made.head);
  detail::ClientOptions options;
  options.environment = std::move(environment);
  options.job_id = hello.job_id;
  options.client_id = hello.client_id;
  options.image = [path = bin_dir() + "/" + host_program]() -> Result<wire::Image> {
    return wire::Image{path, 0};
  };
  options.random = std::move(random);
  made.client = std::make_shared<detail::ActorClient>(std::move(options));
  return made;
}

}  // namespace troupe::tests
