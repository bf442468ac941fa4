#include "train/trainer/numa_binding.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <thread>

#include "tests/support/test_data.h"

namespace troupe::train {
namespace {

TEST_CASE("lists of the kernel's") {
  CHECK(parse_number_list("0-3,8,10-11\n").value() == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(parse_number_list("\n")->empty());
  for (const char* bad : {"a", "1-", "3-1", "1,", "1;2", "-1"})
    CHECK_MESSAGE(parse_number_list(bad).status().code() == Code::kDataLoss, bad);
}

struct Nodes {
  troupe::tests::TemporaryDirectory folder;
  PosixFileSystem files;

  Nodes(const std::string& online, const std::string& processors) {
    REQUIRE(files.create_directories(folder.file("node1")).ok());
    REQUIRE(write_file_atomically(files, folder.file("online"), online).ok());
    REQUIRE(write_file_atomically(files, folder.file("node1/cpulist"), processors).ok());
  }
  // On a thread of its own: what was said, and on how many processors it may run then.
  std::pair<Result<std::string>, int> bind() {
    std::pair<Result<std::string>, int> outcome{std::string(), 0};
    std::thread([&] {
      outcome.first = bind_to_numa_node(files, 1, folder.path());
      cpu_set_t now;
      REQUIRE(::sched_getaffinity(0, sizeof now, &now) == 0);
      outcome.second = CPU_COUNT(&now);
    }).join();
    return outcome;
  }
};

TEST_CASE("a thread goes to the processors of a NUMA node that it may run on") {
  cpu_set_t mine;
  REQUIRE(::sched_getaffinity(0, sizeof mine, &mine) == 0);
  int first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &mine)) ++first;
  const int count = CPU_COUNT(&mine);

  auto bound = Nodes("0-1", std::to_string(first) + ",1022-1023").bind();
  CHECK(bound.first.value() == "runs on the 1 processors of NUMA node 1, its GPU's");
  CHECK(bound.second == 1);
  // One node, or none of its processors: as before.
  for (const auto& [online, processors] : {std::pair("0\n", "0"), std::pair("0-1", "1023")}) {
    bound = Nodes(online, processors).bind();
    CHECK(bound.first.value().empty());
    CHECK(bound.second == count);
  }
  CHECK(Nodes("0-1", "many").bind().first.status().code() == Code::kDataLoss);
}

}  // namespace
}  // namespace troupe::train
