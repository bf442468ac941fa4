#include "scheduler/node/embedded.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "runtime/process/child.h"
#include "scheduler/client/head_client.h"

#include <cstdlib>
#include <future>

namespace troupe::scheduler {
namespace {

using namespace std::chrono_literals;

std::string host_program() {
  char self[4096] = {};
  REQUIRE(::readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const std::string path = self;
  return path.substr(0, path.rfind('/')) + "/test_scheduler_node_host";
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
  spec.image.path = host_program();
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

TEST_CASE("wrong amounts are refused") {
  EmbeddedOptions options;
  options.resources["slots"] = -1;
  CHECK(EmbeddedCluster::start(options).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::scheduler
