// Ray's test cases that concern tasks and objects, of its C++ API and of its Python tests. The
// names in brackets are those of ray_cases.txt.

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/peers/ray_tasks.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"

namespace troupe::tests {

int plus(int, int) { return 0; }
Result<ObjectRef<int>> put_plus(ActorContext&, Object<int>, int) { return ObjectRef<int>(); }
GroupId group_of(ActorContext&) { return {}; }
Result<int> wait_nested(ActorContext&, const std::string&, const std::string&) { return 0; }
Result<int> wait_for_file(ActorContext&, const std::string&, const std::string&) { return 0; }

namespace {

using namespace std::chrono_literals;

struct RayTasks {
  TemporaryDirectory folder;
  Cluster cluster = start(0);

  Cluster start(std::uint64_t memory) {
    return Cluster::start_embedded({.num_cpus = 2,
                                    .on_output = [](const std::string&, std::string_view) {},
                                    .object_memory_bytes = memory,
                                    .object_spill_dir = folder.file("spill"),
                                    .program = bin_dir() + "/test_peers_host"})
        .value();
  }
  bool appears(const std::string& name) const {
    const Deadline patience = Deadline::after(20s);
    while (::access(folder.file(name).c_str(), F_OK) != 0) {
      if (patience.passed()) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }
};

TEST_CASE_FIXTURE(
    RayTasks,
    "what is put is got; tasks take values and references, one after the other "
    "[FullTest.PutGet] [FullTest.Tasks] [PutTest] [StaticGetTest] [CallWithValueTest] "
    "[CallWithObjectTest]") {
  const auto one = cluster.put(1).value();
  CHECK(*cluster.get(one).value() == 1);
  CHECK(cluster.submit<&plus>(1, 2).get().value() == 3);
  auto chained = one;
  for (int i = 0; i < 3; ++i) chained = cluster.submit<&put_plus>(chained, 10).get().value();
  CHECK(*chained.get().value() == 31);
}

TEST_CASE_FIXTURE(RayTasks,
                  "wait: all of three, some of them, one several times, none in no time "
                  "[FullTest.Wait] [WaitTest] [test_wait]") {
  std::vector<ObjectRef<int>> refs;
  for (int i = 0; i < 3; ++i) refs.push_back(cluster.put(i).value());
  CHECK(cluster.wait(refs, 3, 20s).value() == std::vector<std::size_t>{0, 1, 2});
  CHECK(cluster.wait(refs, 1, 20s).value().size() >= 1);
  refs.push_back(refs[0]);
  CHECK(cluster.wait(refs, 4, 20s).value().size() == 4);
  // Of calls it is futures that are waited for.
  auto waits = cluster.submit<&wait_for_file>(folder.file("began"), folder.file("gate"));
  CHECK(waits.get(10ms).status().code() == Code::kDeadlineExceeded);
  CHECK_FALSE(waits.ready());
  std::ofstream(folder.file("gate")) << "x";
  CHECK(waits.get(20s).value() == 1);
}

TEST_CASE_FIXTURE(RayTasks,
                  "a task runs in a bundle of a placement group [TaskWithPlacementGroup]") {
  const auto group = cluster.create_placement_group({.bundles = {{{"CPU", 1}}}}).value();
  REQUIRE(group.ready(20s).ok());
  CHECK(cluster.tasks({.placement_group = group.id(), .bundle_index = 0})
            .submit<&group_of>()
            .get(20s)
            .value() == group.id());
}

TEST_CASE_FIXTURE(RayTasks,
                  "cancel: before a task runs, while, afterwards, and what it has submitted "
                  "[test_cancel] [test_cancel.recursive]") {
  auto nested = cluster.submit<&wait_nested>(folder.file("a"), folder.file("never"));
  REQUIRE(appears("a"));
  auto beside = cluster.submit<&wait_for_file>(folder.file("b"), folder.file("never"));
  REQUIRE(appears("b"));
  auto waits = cluster.submit<&wait_for_file>(folder.file("c"), folder.file("never"));
  waits.cancel();
  CHECK(waits.get().status().code() == Code::kCancelled);
  nested.cancel();
  CHECK(nested.get().status().code() == Code::kCancelled);
  CHECK(appears("a.stopped"));
  beside.cancel();
  CHECK(appears("b.stopped"));
  CHECK_FALSE(std::filesystem::exists(folder.file("c")));
  auto done = cluster.submit<&plus>(1, 1);
  REQUIRE(done.get(20s).value() == 2);
  done.cancel();
}

TEST_CASE_FIXTURE(
    RayTasks,
    "many objects in a small store: all are right, no more comes back than is read, and "
    "the disk is free again [test_object_spilling] [test_spilled_object_deleted]") {
  using Numbers = std::vector<std::uint32_t>;
  cluster = start(8 << 20);
  constexpr std::size_t kObjects = 40;
  constexpr std::size_t kNumbers = 256 * 1024;  // 1 MiB
  std::uint64_t read_bytes = 0;
  {
    std::vector<ObjectRef<Numbers>> refs;
    for (std::uint32_t i = 0; i < kObjects; ++i) {
      refs.push_back(cluster.put(Numbers(kNumbers, i)).value());
    }
    std::mt19937 random(1);
    for (int i = 0; i < 150; ++i) {
      const std::uint32_t which = random() % kObjects;
      const auto object = refs[which].get().value();
      read_bytes += 4 * (*object).size();
      REQUIRE((*object).size() == kNumbers);
      REQUIRE((*object).front() == which);
      REQUIRE((*object).back() == which);
    }
    const auto store = cluster.object_store().value();
    CHECK(store.spilled_bytes > 0);
    CHECK(store.restored_bytes_total <= read_bytes);
  }
  const Deadline patience = Deadline::after(20s);
  while (cluster.object_store().value().spilled_bytes > 0 && !patience.passed()) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(cluster.object_store().value().spilled_bytes == 0);
}

}  // namespace
}  // namespace troupe::tests
