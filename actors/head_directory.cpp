#include "actors/head_directory.h"

#include "runtime/base/random.h"

namespace troupe::detail {

std::shared_ptr<Directory> make_head_directory(net::EventLoop& loop, const wire::HostStart& start) {
  SystemRandom random;
  const wire::ActorSpec& spec = start.spec;
  wire::ClientHello hello;
  hello.client_id = ClientId::make(random);
  hello.job_id = spec.job_id;
  hello.namespace_name = spec.namespace_name;
  hello.name = spec.name.empty() ? spec.type + " " + spec.actor_id.brief() : spec.name;
  hello.kind = "actor";
  return std::make_shared<HeadDirectory>(scheduler::HeadClient::make(
      loop, net::Address{start.head_endpoint.host, start.head_endpoint.port, {}},
      net::Token(start.token, net::security_from_number(start.security)), hello));
}

}  // namespace troupe::detail
