// Placement groups through a real head and node.
//
// Names in brackets are the cases of Ray's cluster_mode_test.cc and api_test.cc that a test covers.

#include "troupe/placement_group.h"

#include <doctest/doctest.h>

#include "actors/actor_spec.h"
#include "scheduler/embedded/embedded_cluster.h"
#include "tests/actors/driver_client.h"
#include "tests/actors/segment_actors.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"
#include "troupe/spawn.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;
using GroupState = wire::PlacementGroupState;

constexpr auto kNoOutput = [](const std::string&, std::string_view) {};

// A driver whose actors run another program than the test itself.
struct PlacementFixture {
  std::unique_ptr<scheduler::EmbeddedCluster> cluster =
      scheduler::EmbeddedCluster::start({.num_cpus = 4,
                                         .resources = {{"disk", 2}},
                                         .labels = {{"zone", "a"}},
                                         .on_output = kNoOutput})
          .value();
  net::LoopThread thread{"driver"};
  DriverClient driver = connect_driver(*cluster, thread, "test_actors_segment_host");
  const std::shared_ptr<scheduler::HeadClient>& head = driver.head;
  const std::shared_ptr<detail::ActorClient>& client = driver.client;
  ~PlacementFixture() {
    client->close();
    cluster->stop();
  }
  PlacementGroup group(const PlacementGroupOptions& options) {
    auto spec = detail::make_group_spec(options).value();
    SystemRandom random;
    spec.group_id = GroupId::make(random);
    return detail::Access::create<PlacementGroup>(head, std::move(spec), Deadline::after(20s))
        .value();
  }
  ActorHandle<Memory> spawn(const ActorOptions& options) {
    return detail::spawn<Memory>(client, options).value();
  }
  double free_cpus() {
    const auto nodes = head->nodes(Deadline::after(20s)).value();
    return static_cast<double>(nodes.at(0).available.at("CPU")) / wire::kResourceUnit;
  }
};

TEST_CASE("a driver makes, finds and removes groups [CreateAndRemovePlacementGroup]") {
  auto cluster = Cluster::start_embedded({.num_cpus = 4, .on_output = kNoOutput}).value();
  auto group =
      cluster.create_placement_group({.bundles = {{{"CPU", 1}}, {{"CPU", 0.5}}}, .name = "train"})
          .value();
  CHECK(group.ready(20s).ok());
  CHECK(cluster.create_placement_group({.bundles = {{{"CPU", 1}}}, .name = "train"})
            .status()
            .code() == Code::kAlreadyExists);
  const auto found = cluster.get_placement_group("train").value();
  CHECK(found.id() == group.id());
  const auto info = found.info().value();
  CHECK(info.state == GroupState::kCreated);
  CHECK(info.bundles.at(1).resources.at("CPU") == wire::kResourceUnit / 2);
  CHECK(info.bundles.at(1).node_id == cluster.node_id());
  CHECK(cluster.get_placement_group("absent").status().code() == Code::kNotFound);
  CHECK(cluster.nodes().value().at(0).available.at("CPU") == wire::kResourceUnit * 5 / 2);
  CHECK(group.remove().ok());
  CHECK(group.remove().ok());
  CHECK(group.info().value().state == GroupState::kRemoved);
  CHECK(group.ready(20s).code() == Code::kFailedPrecondition);
  CHECK(cluster.get_placement_group("train").status().code() == Code::kNotFound);
  CHECK(cluster.placement_groups().value().size() == 1);
  CHECK(cluster.nodes().value().at(0).available.at("CPU") == wire::kResourceUnit * 4);
  CHECK(PlacementGroup().ready(1s).code() == Code::kFailedPrecondition);
}

TEST_CASE(
    "what exceeds the cluster does not become ready, and says why "
    "[CreatePlacementGroupExceedsClusterResource] [ResourcesManagementTest]") {
  auto cluster = Cluster::start_embedded({.num_cpus = 4, .on_output = kNoOutput}).value();
  auto group = cluster.create_placement_group({.bundles = {{{"CPU", 10'000}}}}).value();
  const Status waited = group.ready(50ms);
  CHECK(waited.code() == Code::kDeadlineExceeded);
  CHECK(waited.message().find("needs CPU 10000") != std::string::npos);
  CHECK(waited.message().find("CPU 4 of 4 free") != std::string::npos);
  auto two = cluster
                 .create_placement_group({.bundles = {{{"CPU", 1}}, {{"CPU", 1}}},
                                          .strategy = PlacementStrategy::kStrictSpread})
                 .value();
  CHECK(two.ready(50ms).message().find("each on a node of its own") != std::string::npos);
}

TEST_CASE_FIXTURE(PlacementFixture,
                  "an actor that fits a bundle runs there, another one is refused "
                  "[CreateActorWithPlacementGroup]") {
  auto train = group({.bundles = {{{"CPU", 1}, {"disk", 1}}, {{"CPU", 2}}}});
  REQUIRE(train.ready(20s).ok());
  CHECK(free_cpus() == 1);
  auto fits = spawn({.resources = {{"disk", 1}}, .placement_group = train.id(), .bundle_index = 0});
  CHECK(fits.call<&Memory::pid>().get(20s).ok());
  CHECK(free_cpus() == 1);  // it is the bundle's
  CHECK(train.info().value().bundles.at(0).available.at("CPU") == 0);
  auto large = spawn({.num_cpus = 2, .placement_group = train.id(), .bundle_index = 0});
  const Status refused = large.call<&Memory::pid>().get(20s).status();
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK(refused.message().find("bundle 0 has CPU 1, disk 1") != std::string::npos);
  auto any = spawn({.num_cpus = 2, .placement_group = train.id()});
  CHECK(any.call<&Memory::pid>().get(20s).ok());
  // Its actors end with it.
  CHECK(train.remove().ok());
  // The call may still be heard by the process that is being ended.
  Status ended;
  for (const auto until = Deadline::after(20s); ended.ok() && !until.passed();)
    ended = any.call<&Memory::pid>().get(20s).status();
  CHECK(ended.code() == Code::kActorDied);
  CHECK(ended.message().find("placement group was removed") != std::string::npos);
}

TEST_CASE_FIXTURE(PlacementFixture, "labels choose nodes") {
  auto here = spawn({.label_selector = {{"zone", "in(a,b)"}, {"old", "!exists()"}}});
  CHECK(here.call<&Memory::pid>().get(20s).ok());
  auto nowhere = spawn({.label_selector = {{"zone", "!a"}}});
  CHECK(nowhere.call<&Memory::pid>().get(20s).status().code() == Code::kResourceExhausted);
  auto rather = spawn({.label_preference = {{"zone", "z"}}});
  CHECK(rather.call<&Memory::pid>().get(20s).ok());
}

TEST_CASE("options that make no sense are refused by name [TaskOptionsCheckTest]") {
  const auto bad = [](const ActorOptions& options) {
    const auto spec = detail::make_spec(options);
    return spec.ok() ? std::string() : spec.status().message();
  };
  CHECK(bad({.num_cpus = 0.5}).empty());
  CHECK(bad({.resources = {{"disk", 2.0}}}).empty());
  CHECK(bad({.num_gpus = 0.5}).empty());
  CHECK(bad({.num_gpus = 2}).empty());
  CHECK(bad({.num_gpus = 1.5}).find("whole") != std::string::npos);
  CHECK(bad({.environment = {{"CUDA_VISIBLE_DEVICES", "0"}}}).empty());
  CHECK(bad({.num_gpus = 1, .environment = {{"CUDA_VISIBLE_DEVICES", "0"}}})
            .find("CUDA_VISIBLE_DEVICES") != std::string::npos);
  CHECK(bad({.num_cpus = -1}).find("CPU") != std::string::npos);
  CHECK(bad({.num_cpus = 0.00001}).find("1/10000") != std::string::npos);
  CHECK(bad({.node_affinity_soft = true}).find("node_affinity") != std::string::npos);
  CHECK(bad({.label_selector = {{"zone", ""}}}).find("label_selector") != std::string::npos);
  CHECK(bad({.bundle_index = 0}).find("placement_group") != std::string::npos);
  CHECK(bad({.placement_group = GroupId{1, 1}, .bundle_index = -2}).find("-2") !=
        std::string::npos);
  const auto bad_group = [](const PlacementGroupOptions& options) {
    const auto spec = detail::make_group_spec(options);
    return spec.ok() ? std::string() : spec.status().message();
  };
  CHECK(bad_group({.bundles = {{{"CPU", 1}}, {{"CPU", -1}}}}).find("bundles[1]") !=
        std::string::npos);
  CHECK(bad_group({.bundles = {{{"CPU", 1}}}, .bundle_label_selectors = {{}, {}}})
            .find("2 bundle_label_selectors for 1 bundles") != std::string::npos);
}

}  // namespace
}  // namespace troupe::tests
