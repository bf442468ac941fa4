// What was moved from, or closed, says so: nothing of it crashes, hangs, or does something else.

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/actors/lives_actors.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"

namespace troupe::tests::moved_from_test {
namespace {

using namespace std::chrono_literals;

const ActorOptions kSmall{.num_cpus = 0};

// Everything that can be asked of a Cluster, by its name.
std::vector<std::pair<std::string, Status>> answers_of(Cluster& cluster,
                                                       const ActorHandle<Life>& life) {
  std::vector<GangMember<Life>> gang;
  gang.emplace_back(kSmall);
  return {
      {"spawn", cluster.spawn<Life>(kSmall).status()},
      {"spawn_gang", cluster.spawn_gang(std::move(gang)).status()},
      {"get_actor", cluster.get_actor<Life>("life").status()},
      {"get_actor in", cluster.get_actor<Life>("life", {.namespace_name = "n"}).status()},
      {"get_light_actors", cluster.get_light_actors<Life>("life").status()},
      {"get_or_create", cluster.get_or_create<Life>({.name = "x"}).status()},
      {"kill", cluster.kill(life)},
      {"kill light", cluster.kill(LightActors<Life>())},
      {"stop", cluster.stop(life).status()},
      {"supervise", cluster.supervise({}).status()},
      {"connect_to", cluster.connect_to(life.id(), "x", Deadline::after(1s)).status()},
      {"nodes", cluster.nodes().status()},
      {"create_placement_group", cluster.create_placement_group({}).status()},
      {"get_placement_group", cluster.get_placement_group("g").status()},
      {"placement_groups", cluster.placement_groups().status()},
  };
}

TEST_CASE("a Cluster that was moved from or closed answers so, whatever it is asked") {
  auto cluster = Cluster::start_embedded({.num_cpus = 1,
                                          .on_output = [](const std::string&, std::string_view) {},
                                          .program = bin_dir() + "/test_actors_lives_host"})
                     .value();
  const auto life = cluster.spawn<Life>({.name = "life", .num_cpus = 0}).value();
  REQUIRE(life.call<&Life::pid>().get(20s).ok());
  Cluster taken = std::move(cluster);
  // (No structured bindings: clang 14 has none in the lambdas of CHECK_MESSAGE.)
  for (const auto& answer : answers_of(cluster, life)) {
    const std::string& name = answer.first;
    const Status& status = answer.second;
    CHECK_MESSAGE(status.code() == Code::kFailedPrecondition, name << ": " << status.to_string());
    CHECK_MESSAGE(status.message().find("moved from") != std::string::npos, name);
  }
  bool told = false;
  auto watch = cluster.watch(life, [&](const wire::ActorInfo&) { told = true; });
  CHECK(detail::Access::client(cluster) == nullptr);
  CHECK(cluster.job_id().empty());
  CHECK(cluster.node_id().empty());
  CHECK(cluster.namespace_name().empty());
  CHECK(cluster.head_address().host.empty());
  CHECK(cluster.token().empty());
  cluster.close();
  CHECK(life.call<&Life::pid>().get(20s).ok());  // the other one has it all
  taken.close();
  for (const auto& answer : answers_of(taken, life)) {
    const std::string& name = answer.first;
    const Status& status = answer.second;
    CHECK_MESSAGE(status.code() == Code::kFailedPrecondition, name << ": " << status.to_string());
    CHECK_MESSAGE(status.message() == "this Cluster was closed", name);
  }
  CHECK(life.call<&Life::pid>().get(20s).status().code() == Code::kCancelled);
  taken.close();
  taken = std::move(cluster);
  CHECK(taken.nodes().status().message().find("moved from") != std::string::npos);
  CHECK(!told);
}

TEST_CASE("a Future that was moved from is ready, with that as its error") {
  Promise<int> promise;
  auto future = promise.future();
  auto taken = std::move(future);
  CHECK(future.ready());
  CHECK(future.get(1s).status().code() == Code::kFailedPrecondition);
  future.cancel();
  CHECK(!taken.ready());
  Status seen;
  auto chained = std::move(future).then([&](const Result<int>& n) { seen = n.status(); });
  CHECK(seen.code() == Code::kFailedPrecondition);
  CHECK(chained.get(1s).ok());
  std::vector<Future<int>> several;
  several.push_back(std::move(taken));
  several.push_back(std::move(future));
  CHECK(when_all(std::move(several)).get(1s).status().code() == Code::kFailedPrecondition);
  CHECK(when_all(std::move(future), make_ready_future<int>(3)).get(1s).status().code() ==
        Code::kFailedPrecondition);
  const auto awaits = [](Future<int> f) -> Future<int> {
    co_return (co_await std::move(f)).status();
  };
  CHECK(awaits(std::move(future)).get(1s).status().code() == Code::kFailedPrecondition);
  // One whose result was taken, too.
  auto ready = make_ready_future<int>(3);
  CHECK(ready.get(1s).value() == 3);
  CHECK(std::move(ready).then([](Result<int> n) { return n; }).get(1s).status().code() ==
        Code::kFailedPrecondition);
  Promise<int> moved = std::move(promise);
  CHECK(!promise.set(3));
  promise.set_cancel([] {});
  CHECK(promise.future().get(1s).status().code() == Code::kFailedPrecondition);
}

TEST_CASE("handles, readers, groups and supervisors that were moved from") {
  StreamReader<int> stream(Status(Code::kNotFound, "nothing"));
  StreamReader<int> taken = std::move(stream);
  CHECK(stream.next(1s).status().code() == Code::kFailedPrecondition);
  CHECK(stream.next().get(1s).status().code() == Code::kFailedPrecondition);
  stream.cancel();
  CHECK(taken.next(1s).status().code() == Code::kNotFound);

  auto cluster = Cluster::start_embedded({.num_cpus = 1,
                                          .on_output = [](const std::string&, std::string_view) {},
                                          .program = bin_dir() + "/test_actors_lives_host"})
                     .value();
  auto life = cluster.spawn<Life>(kSmall).value();
  const auto kept = std::move(life);
  CHECK(life.empty());
  CHECK(life.call<&Life::pid>().get(1s).status().code() == Code::kFailedPrecondition);
  CHECK(cluster.kill(life).code() == Code::kFailedPrecondition);
  CHECK(cluster.stop(life).status().code() == Code::kFailedPrecondition);
  auto watch = cluster.watch(life, [](const wire::ActorInfo&) {});
  watch.stop();

  auto supervisor = cluster.supervise({}).value();
  const auto crew = std::move(supervisor);
  CHECK(supervisor.info(1s).status().code() == Code::kFailedPrecondition);
  CHECK(supervisor.wait_for_end(1s).code() == Code::kFailedPrecondition);
  CHECK(supervisor.end().code() == Code::kFailedPrecondition);
  auto nothing = supervisor.watch([](const wire::SupervisorInfo&) {});
  auto group = cluster.create_placement_group({.bundles = {{{"CPU", 0.5}}}}).value();
  const auto reserved = std::move(group);
  CHECK(group.ready(1s).code() == Code::kFailedPrecondition);
  CHECK(group.info(1s).status().code() == Code::kFailedPrecondition);
  CHECK(group.remove(1s).code() == Code::kFailedPrecondition);
  CHECK(kept.call<&Life::pid>().get(20s).ok());
}

}  // namespace
}  // namespace troupe::tests::moved_from_test
