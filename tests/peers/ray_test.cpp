// Ray's C++ test cases that concern actors, with a head, a node and real processes. The names in
// brackets are those of ray_cases.txt; tools/peer-cases makes a table of them.

#include <doctest/doctest.h>
#include <signal.h>

#include <memory>

#include "runtime/wire/types.h"
#include "tests/peers/ray_actors.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 20s;
constexpr auto kQuiet = [](const std::string&, std::string_view) {};
const ActorOptions kFree{.num_cpus = 0};

std::string host_program() { return bin_dir() + "/test_peers_host"; }

Cluster start() {
  return Cluster::start_embedded({.num_cpus = 4,
                                  .on_output = kQuiet,
                                  .program = host_program(),
                                  .namespace_name = "ray"})
      .value();
}
Result<Cluster> another_driver(const Cluster& cluster) {
  return Cluster::connect({.host = cluster.head_address().host,
                           .port = cluster.head_address().port,
                           .token = cluster.token(),
                           .program = host_program(),
                           .namespace_name = "ray",
                           .on_output = kQuiet});
}
// Until the actor is in this state; its information then.
wire::ActorInfo wait_for(Cluster& cluster, const ActorHandle<Counter>& actor,
                         wire::ActorState state) {
  auto promise = std::make_shared<Promise<wire::ActorInfo>>();
  auto future = promise->future();
  const ActorWatch watch = cluster.watch(actor, [promise, state](const wire::ActorInfo& info) {
    if (info.state == state) (void)promise->set(info);
  });
  return future.get(kPatience).value();
}

TEST_CASE("a cluster is started, used and shut down [Initialized]") {
  auto cluster = start();
  CHECK(cluster.nodes().value().size() == 1);
  cluster.close();
  CHECK_FALSE(cluster.spawn<Counter>(kFree, 1).ok());
}

TEST_CASE(
    "calls in order see one state; constructor arguments, results and none "
    "[ConstructorArguments] [ApiTest.ActorTest] [VoidFunction]") {
  auto cluster = start();
  const auto counter = cluster.spawn<Counter>(kFree, 10).value();
  std::vector<Future<int>> sums;
  for (int i = 1; i <= 10; ++i) sums.push_back(counter.call<&Counter::add>(i));
  int expected = 10;
  for (int i = 1; i <= 10; ++i) {
    CHECK(sums[static_cast<std::size_t>(i - 1)].get(kPatience).value() == (expected += i));
  }
  CHECK(counter.call<&Counter::reset>().get(kPatience).ok());
  CHECK(counter.call<&Counter::get>().get(kPatience).value() == 0);
}

TEST_CASE(
    "named actors are found, also by other drivers; an absent name is told [NamedActor] "
    "[GetActorTest]") {
  auto cluster = start();
  const auto counter = cluster.spawn<Counter>({.name = "counter", .num_cpus = 0}, 1).value();
  const auto found = cluster.get_actor<Counter>("counter").value();
  CHECK(found == counter);
  CHECK(found.call<&Counter::add>(1).get(kPatience).value() == 2);
  CHECK(cluster.get_actor<Counter>("nobody").status().code() == Code::kNotFound);
  auto other = another_driver(cluster).value();
  const auto theirs = other.get_actor<Counter>("counter").value();
  CHECK(theirs.call<&Counter::add>(1).get(kPatience).value() == 3);
}

TEST_CASE("a name is taken once, and means one class [DuplicateRegister] [NotExistFunction]") {
  auto cluster = start();
  const auto counter = cluster.spawn<Counter>({.name = "counter", .num_cpus = 0}, 1).value();
  CHECK(counter.call<&Counter::get>().get(kPatience).value() == 1);
  const auto again = cluster.spawn<Counter>({.name = "counter", .num_cpus = 0}, 5).value();
  CHECK(again.call<&Counter::get>().get(kPatience).status().code() == Code::kAlreadyExists);
  CHECK(counter.call<&Counter::get>().get(kPatience).value() == 1);
  CHECK(cluster.get_actor<OtherCounter>("counter").status().code() == Code::kInvalidArgument);
}

TEST_CASE("kill with a restart: state anew, and the actor knows [KillRestarts]") {
  auto cluster = start();
  const auto counter = cluster.spawn<Counter>({.num_cpus = 0, .max_restarts = 1}, 1).value();
  CHECK(counter.call<&Counter::add>(5).get(kPatience).value() == 6);
  CHECK_FALSE(counter.call<&Counter::was_restarted>().get(kPatience).value());
  const auto pid = counter.call<&Counter::pid>().get(kPatience).value();
  CHECK(cluster.kill(counter, {.allow_restart = true}).ok());
  const auto retrying = counter.with({.timeout = kPatience, .retry = true});
  CHECK(retrying.call<&Counter::was_restarted>().get(kPatience).value());
  CHECK(retrying.call<&Counter::get>().get(kPatience).value() == 1);
  CHECK(retrying.call<&Counter::pid>().get(kPatience).value() != pid);
}

TEST_CASE("kill for good: calls fail as died, the name is free [KillForGood]") {
  auto cluster = start();
  const ActorOptions options{.name = "counter", .num_cpus = 0, .max_restarts = 1};
  const auto counter = cluster.spawn<Counter>(options, 1).value();
  CHECK(counter.call<&Counter::get>().get(kPatience).ok());
  CHECK(cluster.kill(counter).ok());
  CHECK(counter.call<&Counter::get>().get(kPatience).status().code() == Code::kActorDied);
  (void)wait_for(cluster, counter, wire::ActorState::kDead);
  CHECK(cluster.get_actor<Counter>("counter").status().code() == Code::kNotFound);
  const auto next = cluster.spawn<Counter>(options, 3).value();
  CHECK(next.call<&Counter::get>().get(kPatience).value() == 3);
}

TEST_CASE("400 KB there and back [LargeArray]") {
  auto cluster = start();
  const auto counter = cluster.spawn<Counter>(kFree, 1).value();
  std::vector<std::uint64_t> numbers(50'000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  const auto reversed = counter.call<&Counter::reversed>(numbers).get(kPatience).value();
  CHECK(std::vector<std::uint64_t>(reversed.rbegin(), reversed.rend()) == numbers);
}

TEST_CASE("an actor that ends its process: its calls fail, the process is gone [ProcessExit]") {
  auto cluster = start();
  const auto counter = cluster.spawn<Counter>(kFree, 1).value();
  const auto pid = static_cast<pid_t>(counter.call<&Counter::pid>().get(kPatience).value());
  const Status ended = counter.call<&Counter::end_process>().get(kPatience);
  CHECK((ended.code() == Code::kActorDied || ended.code() == Code::kUnavailable));
  CHECK(counter.call<&Counter::get>().get(kPatience).status().code() == Code::kActorDied);
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE("a handle as an argument and as a result [ActorHandleTest]") {
  auto cluster = start();
  const auto counter = cluster.spawn<Counter>(kFree, 1).value();
  const auto parent = cluster.spawn<Parent>(kFree).value();
  CHECK(parent.call<&Parent::add_to>(counter, 4).get(kPatience).value() == 5);
  CHECK(counter.call<&Counter::get>().get(kPatience).value() == 5);
  const auto child = parent.call<&Parent::make>("", false).get(kPatience).value();
  CHECK(child.call<&Counter::get>().get(kPatience).value() == 7);
}

TEST_CASE("a detached child outlives the actor that made it [DefaultActorLifetimeTest]") {
  auto cluster = start();
  const auto parent = cluster.spawn<Parent>(kFree).value();
  const auto child = parent.call<&Parent::make>("child", true).get(kPatience).value();
  CHECK(child.call<&Counter::add>(1).get(kPatience).value() == 8);
  CHECK(cluster.kill(parent).ok());
  CHECK(parent.call<&Parent::add_to>(child, 1).get(kPatience).status().code() == Code::kActorDied);
  CHECK(child.call<&Counter::add>(1).get(kPatience).value() == 9);
  CHECK(cluster.kill(child).ok());
}

TEST_CASE(
    "what a method throws reaches its caller, and the actor lives on [ExceptionTest.Method]") {
  auto cluster = start();
  const auto counter = cluster.spawn<Counter>(kFree, 1).value();
  const Status failed = counter.call<&Counter::fail>().get(kPatience);
  CHECK(failed.code() == Code::kActorError);
  CHECK(failed.to_string().find("a wrong turn") != std::string::npos);
  CHECK(failed.to_string().find("Counter::fail") != std::string::npos);
  CHECK(counter.call<&Counter::get>().get(kPatience).value() == 1);
}

TEST_CASE("what a constructor throws ends the calls [ExceptionTest.Constructor]") {
  auto cluster = start();
  const auto thrower = cluster.spawn<Thrower>(kFree).value();
  const Status failed = thrower.call<&Thrower::nothing>().get(kPatience);
  CHECK(failed.code() == Code::kActorDied);
  CHECK(failed.to_string().find("no such thing can be made") != std::string::npos);
}

TEST_CASE("all nodes with their resources [GetAllNodeInfoTest]") {
  auto cluster = start();
  const auto nodes = cluster.nodes().value();
  REQUIRE(nodes.size() == 1);
  CHECK(nodes[0].node_id == cluster.node_id());
  CHECK(nodes[0].state == wire::NodeState::kAlive);
  CHECK(nodes[0].total.at("CPU") == 4 * wire::kResourceUnit);
  CHECK_FALSE(nodes[0].endpoint.host.empty());
}

TEST_CASE("environment variables of one actor are not another's [RuntimeEnvTaskLevelEnvVarsTest]") {
  auto cluster = start();
  const auto with =
      cluster.spawn<Counter>({.num_cpus = 0, .environment = {{"TROUPE_TEST_A", "one"}}}, 1).value();
  const auto without = cluster.spawn<Counter>(kFree, 1).value();
  CHECK(with.call<&Counter::variable>("TROUPE_TEST_A").get(kPatience).value() == "one");
  CHECK(without.call<&Counter::variable>("TROUPE_TEST_A").get(kPatience).value().empty());
}

TEST_CASE("futures: ready, waited for, continued [CompareWithFuture]") {
  auto cluster = start();
  const auto counter = cluster.spawn<Counter>(kFree, 1).value();
  auto sum = counter.call<&Counter::add>(2);
  auto doubled = counter.call<&Counter::add>(3).then([](Result<int> n) { return 2 * n.value(); });
  CHECK(doubled.get(kPatience).value() == 12);
  CHECK(sum.ready());  // the calls of one caller end in order
  CHECK(sum.get(0s).value() == 3);
}

}  // namespace
}  // namespace troupe::tests
