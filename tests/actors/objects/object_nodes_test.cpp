// Objects of several nodes.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/actors/objects/test_actors.h"
#include "tests/support/test_data.h"
#include "troupe/chaos_cluster.h"
#include "troupe/cluster.h"

namespace troupe::tests {
namespace {

using Floats = std::vector<float>;

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

struct Nodes {
  std::unique_ptr<ChaosCluster> cluster;
  Cluster driver;
  explicit Nodes(int count)
      : cluster(ChaosCluster::start({.nodes = count, .cpus_per_node = 2}, soon()).value()),
        driver(cluster->connect({.program = bin_dir() + "/test_actors_objects_host"}).value()) {}
  ActorHandle<Reader> reader_on(int node) {
    return driver.spawn<Reader>({.label_selector = on_node(node)}).value();
  }
};

TEST_CASE("an object is read on every node, and freed on all") {
  Nodes nodes(3);
  const auto a = nodes.reader_on(0);
  const auto b = nodes.reader_on(1);
  const auto c = nodes.reader_on(2);
  {
    const auto ref = a.call<&Reader::make>(1'000'000, 1.0f).get().value();
    CHECK(b.call<&Reader::sum>(ref).get().value() == 1'000'000);
    CHECK(c.call<&Reader::sum>(ref).get().value() == 1'000'000);
    CHECK((*ref.get().value()).back() == 1);
    // Passed on by one that has it from another.
    REQUIRE(b.call<&Reader::keep>(ref).get().ok());
    const auto kept = b.call<&Reader::kept>().get().value();
    REQUIRE(c.call<&Reader::keep>(kept.at(0)).get().ok());
  }
  CHECK(c.call<&Reader::sum_of_kept>().get().value() == 1'000'000);
  REQUIRE(c.call<&Reader::forget>().get().ok());
  CHECK(b.call<&Reader::sum_of_kept>().get().value() == 1'000'000);
}

TEST_CASE("with its node an object is lost, unless a copy of it was read on another") {
  Nodes nodes(3);
  const auto a = nodes.reader_on(1);
  const auto b = nodes.reader_on(2);
  const auto c = nodes.reader_on(0);
  const auto read = a.call<&Reader::make>(1000, 1.0f).get().value();
  const auto unread = a.call<&Reader::make>(1000, 2.0f).get().value();
  REQUIRE(b.call<&Reader::keep>(read).get().ok());
  REQUIRE(b.call<&Reader::sum_of_kept>().get().value() == 1000);
  REQUIRE(c.call<&Reader::keep>(read).get().ok());
  REQUIRE(nodes.cluster->kill_node(1).ok());
  // It is found on b's node, though a's, which knew of that, is gone.
  const auto found = c.call<&Reader::sum_of_kept>().get();
  CHECK_MESSAGE(found.ok(), found.status().to_string());
  CHECK(*found == 1000);
  REQUIRE(c.call<&Reader::keep>(unread).get().ok());
  const Status lost = c.call<&Reader::sum_of_kept>().get().status();
  CHECK_MESSAGE(lost.code() == Code::kObjectLost, lost.to_string());
  CHECK_MESSAGE(lost.to_string().find("no copy of it is found") != std::string::npos,
                lost.to_string());
  CHECK(b.call<&Reader::sum_of_kept>().get().value() == 1000);
}

}  // namespace
}  // namespace troupe::tests
