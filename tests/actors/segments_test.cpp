// Memory that outlives its process, through a real head and node.

#include <doctest/doctest.h>
#include <signal.h>

#include "scheduler/embedded/embedded_cluster.h"
#include "tests/actors/driver_client.h"
#include "tests/actors/segment_actors.h"
#include "tests/support/test_data.h"
#include "troupe/spawn.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

// A driver whose actors run another program than the test itself.
struct Fixture {
  std::unique_ptr<scheduler::EmbeddedCluster> cluster =
      scheduler::EmbeddedCluster::start(
          {.num_cpus = 8, .on_output = [](const std::string&, std::string_view) {}})
          .value();
  net::LoopThread thread{"driver"};
  DriverClient driver = connect_driver(*cluster, thread, "test_actors_segment_host");
  const std::shared_ptr<detail::ActorClient>& client = driver.client;
  ~Fixture() {
    client->close();
    cluster->stop();
  }
  ActorHandle<Memory> spawn(int max_restarts = -1) {
    return detail::spawn<Memory>(client, {.max_restarts = max_restarts}).value();
  }
  static pid_t pid_of(ActorHandle<Memory>& actor) {
    return static_cast<pid_t>(actor.call<&Memory::pid>().get(20s).value());
  }
  static Result<std::string> take(ActorHandle<Memory>& actor, const std::string& name,
                                  std::int64_t timeout_ms = 5000) {
    return actor.call<&Memory::take>(name, timeout_ms).get(20s);
  }
};

TEST_CASE_FIXTURE(Fixture, "another actor goes on with the memory of one that was killed") {
  auto owner = spawn();
  auto spare = spawn();
  REQUIRE(owner.call<&Memory::put>("rank-0/state", "step 7").get(20s).ok());
  CHECK(take(spare, "rank-0/state").status().code() == Code::kFailedPrecondition);
  CHECK(take(spare, "rank-1/state").status().code() == Code::kNotFound);
  REQUIRE(detail::kill_actor(client, owner.id(), {.allow_restart = true}).ok());
  // The head has agreed; the node hears of it in its own time.
  auto taken = take(spare, "rank-0/state");
  const auto by = Deadline::after(20s);
  while (taken.status().code() == Code::kFailedPrecondition && !by.passed()) {
    taken = take(spare, "rank-0/state");
  }
  REQUIRE_MESSAGE(taken.ok(), taken.status().to_string());
  CHECK(*taken == "step 7");
  // The actor comes back and finds it in use.
  CHECK(take(owner, "rank-0/state").status().code() == Code::kFailedPrecondition);
}

TEST_CASE_FIXTURE(Fixture, "a respawned actor takes its own memory back") {
  auto actor = spawn();
  auto other = spawn();
  REQUIRE(actor.call<&Memory::put>("a", "mine").get(20s).ok());
  REQUIRE(actor.call<&Memory::put>("b", "gone").get(20s).ok());
  REQUIRE(actor.call<&Memory::forget>("b").get(20s).ok());
  const pid_t before = pid_of(actor);
  REQUIRE(::kill(before, SIGKILL) == 0);
  const auto by = Deadline::after(20s);
  Result<int> pid = error(Code::kUnavailable, "not asked");
  while (!by.passed() && (!pid.ok() || *pid == before)) {
    const auto now = actor.with({.timeout = 5s, .retry = true}).call<&Memory::pid>().get(20s);
    if (now.ok()) pid = static_cast<int>(*now);
  }
  CHECK(take(actor, "a").value() == "mine");
  CHECK(take(actor, "b").status().code() == Code::kNotFound);
}

TEST_CASE_FIXTURE(Fixture, "a segment is read while its owner is stopped, and when it is dead") {
  auto owner = spawn();
  auto reader = spawn();
  const auto read = [&](const std::string& name) {
    return reader.call<&Memory::read>(owner, name).get(20s);
  };
  REQUIRE(owner.call<&Memory::put>("rank-0/progress", "backward").get(20s).ok());
  CHECK(read("rank-0/progress").value() == "backward");
  CHECK(read("rank-1/progress").status().code() == Code::kNotFound);
  const pid_t pid = pid_of(owner);
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  CHECK(read("rank-0/progress").value() == "backward");
  REQUIRE(detail::kill_actor(client, owner.id(), {}).ok());
  CHECK(read("rank-0/progress").value() == "backward");
  // The driver reads too, in pieces.
  const auto piece =
      client->read_segment(owner.id(), "rank-0/progress", 4, 4, Deadline::after(10s));
  REQUIRE(piece.ok());
  CHECK(piece->size_bytes == Memory::kBytes);
  CHECK(std::string(reinterpret_cast<const char*>(piece->bytes.data()), 4) == "ward");
}

}  // namespace
}  // namespace troupe::tests
