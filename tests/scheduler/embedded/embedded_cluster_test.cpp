#include "scheduler/embedded/embedded_cluster.h"

#include <doctest/doctest.h>

#include "runtime/process/child.h"
#include "scheduler/client/ask_node.h"
#include "scheduler/client/head_client.h"
#include "tests/support/no_threads.h"
#include "tests/support/test_data.h"

#include <future>

namespace troupe::scheduler {
namespace {

using namespace std::chrono_literals;

TEST_CASE("an embedded cluster for which there is no thread is an error") {
  const troupe::tests::NoThreads none;
  CHECK(EmbeddedCluster::start({}).status().code() == Code::kResourceExhausted);
}

TEST_CASE("an embedded cluster runs actors and leaves nothing") {
  EmbeddedOptions options;
  options.num_cpus = 2;
  options.resources["slots"] = 1.5;
  auto started = EmbeddedCluster::start(options);
  REQUIRE_MESSAGE(started.ok(), started.status().to_string());
  auto& cluster = **started;
  CHECK(cluster.node().total.at("CPU") == 2 * wire::kResourceUnit);
  CHECK(cluster.node().total.at("slots") == 15'000);

  SystemRandom random;
  wire::ClientHello hello;
  hello.client_id = ClientId::make(random);
  hello.job_id = JobId::make(random);
  hello.name = hello.kind = "driver";
  net::LoopThread thread("driver");
  auto client = HeadClient::connect(thread.loop(), cluster.head_address(), cluster.token(), hello,
                                    Deadline::after(10s))
                    .value();
  wire::ActorSpec spec;
  spec.actor_id = ActorId::make(random);
  spec.type = "Parent";
  spec.job_id = hello.job_id;
  spec.owner = hello.client_id;
  spec.image.path = troupe::tests::bin_dir() + "/test_scheduler_node_host";
  auto alive = std::make_shared<std::promise<wire::ActorInfo>>();
  client->create_actors({spec}, false, false, [](Status) {});
  client->watch_actor(spec.actor_id, "", [alive](Result<wire::ActorInfo> info) {
    if (info.ok() && info->state == wire::ActorState::kAlive) alive->set_value(*info);
  });
  auto info = alive->get_future();
  REQUIRE(info.wait_for(20s) == std::future_status::ready);
  const auto pid = static_cast<pid_t>(info.get().pid);
  CHECK(!process::group_is_empty(pid));
  client->close();
  cluster.stop();
  CHECK(process::group_is_empty(pid));
}

TEST_CASE("node, driver and tools reach each other encrypted") {
  EmbeddedOptions options;
  options.num_cpus = 1;
  options.log_level = LogLevel::kWarning;
  options.token = net::Token(std::vector<std::byte>(32, std::byte{9}), net::Security::kTlsAlways);
  auto started = EmbeddedCluster::start(options);
  REQUIRE_MESSAGE(started.ok(), started.status().to_string());
  auto& cluster = **started;
  SystemRandom random;
  wire::ClientHello hello;
  hello.client_id = ClientId::make(random);
  hello.job_id = JobId::make(random);
  hello.name = hello.kind = "driver";
  net::LoopThread thread("driver");
  const auto connect = [&](const net::Token& token) {
    return HeadClient::connect(thread.loop(), cluster.head_address(), token, hello,
                               Deadline::after(10s));
  };
  CHECK(connect(options.token.with(net::Security::kInsecure)).status().code() ==
        Code::kFailedPrecondition);
  CHECK(connect(net::Token(std::vector<std::byte>(32, std::byte{8}), net::Security::kTlsAlways))
            .status()
            .code() == Code::kUnauthenticated);
  auto client = connect(options.token).value();
  CHECK(client->nodes(Deadline::after(10s)).value().size() == 1);
  const auto& node = cluster.node().endpoint;
  const auto answer = ask_node(thread.loop(), {node.host, node.port, {}}, options.token,
                               wire::ReadLogs{1, ActorId(), 1000}, Deadline::after(10s));
  REQUIRE_MESSAGE(answer.ok(), answer.status().to_string());
  CHECK(get<wire::LogText>(*answer).status.ok());
  client->close();
  cluster.stop();
}

TEST_CASE("wrong amounts are refused") {
  EmbeddedOptions options;
  options.resources["slots"] = -1;
  CHECK(EmbeddedCluster::start(options).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::scheduler
