// Light actors through a real head and node: placement, names, handles passed on, what they ask of
// each other.

#include <doctest/doctest.h>

#include "scheduler/embedded/embedded_cluster.h"
#include "tests/actors/driver_client.h"
#include "tests/actors/light_test_actors.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"
#include "troupe/spawn.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

// A driver whose actors run another program than the test itself.
struct LightCluster {
  std::unique_ptr<scheduler::EmbeddedCluster> cluster =
      scheduler::EmbeddedCluster::start(
          {.num_cpus = 4, .on_output = [](const std::string&, std::string_view) {}})
          .value();
  net::LoopThread thread{"driver"};
  DriverClient driver = connect_driver(*cluster, thread, "test_actors_light_host");
  const std::shared_ptr<scheduler::HeadClient>& head = driver.head;
  const std::shared_ptr<detail::ActorClient>& client = driver.client;
  ~LightCluster() {
    client->close();
    cluster->stop();
  }
  LightActors<Cell> cells(std::size_t count, ActorOptions options, int start) {
    options.isolation = Isolation::kShared;
    return detail::spawn_many<Cell>(client, count, options, start).value();
  }
  std::vector<wire::ActorInfo> actors() {
    return head->actors(false, Deadline::after(20s)).value();
  }
};

int held_by(const ActorHandle<Cell>& cell) {
  return cell.with({.timeout = 20s, .retry = true}).call<&Cell::get>().get(20s).value();
}
int settled(const ActorHandle<Cell>& cell, int expected) {
  const Deadline patience = Deadline::after(20s);
  while (held_by(cell) != expected && !patience.passed()) std::this_thread::yield();
  return held_by(cell);
}

TEST_CASE_FIXTURE(LightCluster, "the head sees one entry for a process, with its count") {
  const auto named = cells(500, {.name = "cells"}, 5);
  REQUIRE(held_by(named[499]) == 5);
  const auto list = actors();
  REQUIRE(list.size() == 1);
  CHECK(list[0].type == "Cell[]");
  CHECK(list[0].light_count == 500);
  CHECK(list[0].state == wire::ActorState::kAlive);
  CHECK(list[0].actor_id == named.hosts().at(0));
  // It has the resources of one.
  const auto nodes = head->nodes(Deadline::after(20s)).value();
  CHECK(nodes.at(0).available.at("CPU") == 3 * wire::kResourceUnit);

  const auto found = detail::find_light<Cell>(client, "cells", {.timeout = 20s}).value();
  CHECK(found.size() == 500);
  CHECK(found[17] == named[17]);
  CHECK(detail::find_light<Counter>(client, "cells", {.timeout = 20s}).status().code() ==
        Code::kInvalidArgument);
  CHECK(detail::find<Cell>(client, "cells", {.timeout = 20s}).status().code() ==
        Code::kInvalidArgument);
  CHECK(detail::find_light<Cell>(client, "absent", {.timeout = 20s}).status().code() ==
        Code::kNotFound);
  REQUIRE(detail::kill(client, found, {}).ok());
  CHECK(named[3].call<&Cell::get>().get(20s).status().code() == Code::kActorDied);
}

TEST_CASE("light actors are found by their host's name, in its namespace") {
  auto cluster = Cluster::start_embedded({.num_cpus = 2,
                                          .on_output = [](const std::string&, std::string_view) {},
                                          .program = bin_dir() + "/test_actors_light_host",
                                          .namespace_name = "shop"})
                     .value();
  const ActorOptions options{.name = "cells", .isolation = Isolation::kShared};
  const auto made = cluster.spawn_many<Cell>(20, options, 3).value();
  REQUIRE(held_by(made[19]) == 3);
  const auto found = cluster.get_light_actors<Cell>("cells").value();
  CHECK(found.size() == 20);
  CHECK(found[7] == made[7]);
  CHECK(cluster.get_light_actors<Cell>("cells", {.namespace_name = "shop"}).value()[0] == made[0]);
  CHECK(cluster.get_light_actors<Cell>("cells", {.namespace_name = "mill"}).status().code() ==
        Code::kNotFound);
}

// peer: ActorHandleTest
TEST_CASE_FIXTURE(LightCluster, "handles are passed on and come back") {
  const auto many = cells(10, {}, 5);
  const auto caller = detail::spawn<CellCaller>(client, {}).value();
  CHECK(caller.call<&CellCaller::add>(many[3], 2).get(20s).value() == 7);
  CHECK(caller.call<&CellCaller::add_to_all>(many, 1).get(20s).value() == 10 * 6 + 2);
  CHECK(held_by(many[3].call<&Cell::self>().get(20s).value()) == 8);
  CHECK(caller.call<&CellCaller::own>(40).get(20s).value() == 82);
  // A list that lies is refused.
  Encoder out;
  out.put(std::uint64_t{30});
  out.put(std::uint64_t{10});
  Codec<std::vector<ActorId>>::encode(out, many.hosts());
  CHECK(decode_value<LightActors<Cell>>(out.take(), {client}).status().code() == Code::kProtocol);
}

TEST_CASE_FIXTURE(LightCluster, "neighbours do not wait for each other; continuations come") {
  const auto many = cells(4, {}, 5);
  const auto other = cells(1, {}, 70);
  const Status waited = many[0].call<&Cell::ask>(many[1]).get(20s).status();
  CHECK(waited.code() == Code::kFailedPrecondition);
  CHECK(many[0].call<&Cell::ask>(other[0]).get(20s).value() == 70);
  REQUIRE(many[1].call<&Cell::add>(4).get(20s).value() == 9);
  REQUIRE(many[0].call<&Cell::ask_later>(many[1]).get(20s).ok());
  CHECK(settled(many[0], 9) == 9);
  REQUIRE(many[0].call<&Cell::add_later>(1).get(20s).ok());
  CHECK(held_by(many[0]) == 10);
  // What was to continue one that has ended is dropped; its neighbours go on.
  for (int i = 0; i < 50; ++i) {
    (void)many[2].call<&Cell::ask_later>(other[0]);
    (void)many[2].call<&Cell::add_later>(1);
  }
  REQUIRE(detail::kill(client, many[2], {}).ok());
  REQUIRE(many[3].call<&Cell::ask_later>(other[0]).get(20s).ok());
  CHECK(settled(many[3], 70) == 70);
  // One ends its neighbour, for which it cannot wait, and one elsewhere.
  CHECK(many[3].call<&Cell::end>(many[0]).get(20s).ok());
  const auto dead = [](const ActorHandle<Cell>& cell) {
    const Deadline patience = Deadline::after(20s);
    const auto code = [&] { return cell.call<&Cell::get>().get(20s).status().code(); };
    while (code() != Code::kActorDied && !patience.passed()) std::this_thread::yield();
    return code() == Code::kActorDied;
  };
  CHECK(dead(many[0]));
  CHECK(many[3].call<&Cell::end>(other[0]).get(20s).ok());
  CHECK(other[0].call<&Cell::get>().get(20s).status().code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(LightCluster,
                  "hosts that do not fit wait, and say why; a crash goes over the node") {
  const auto wide = cells(4, {.num_cpus = 3, .max_restarts = 1, .light_per_host = 2}, 5);
  REQUIRE(held_by(wide[0]) == 5);
  const Status waiting = wide[3].with({.timeout = 50ms}).call<&Cell::get>().get(20s).status();
  CHECK(waiting.code() == Code::kDeadlineExceeded);
  CHECK(waiting.message().find("CPU") != std::string::npos);
  REQUIRE(detail::kill(client, wide[1], {}).ok());
  CHECK(wide[0].call<&Cell::crash>().get(20s).code() == Code::kUnavailable);
  CHECK(held_by(wide[0]) == 5);
  CHECK(wide[0].call<&Cell::generation>().get(20s).value() == 2);
  CHECK(wide[1].call<&Cell::get>().get(20s).status().code() == Code::kActorDied);
  // The last one's end makes room.
  REQUIRE(detail::kill(client, wide[0], {}).ok());
  CHECK(held_by(wide[3]) == 5);
}

}  // namespace
}  // namespace troupe::tests
