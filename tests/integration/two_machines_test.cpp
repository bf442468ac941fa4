// Ranks on two machines, as the README starts them: the bits are those of one machine.

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/integration/tiny_run.h"
#include "tests/support/two_machines.h"

namespace troupe::tests {
namespace {

using std::chrono::seconds;

constexpr seconds kStart{30};
constexpr seconds kRun{90};

// `troupe train` with NNODES=2 on both machines, to the end of both. Returns what node 0 printed.
std::string train_on(const TwoMachines& machines, const TinyRun& tiny, const std::string& output,
                     const Settings& changes) {
  // The second machine's home and temporary folders.
  const TinyRun elsewhere;
  const auto command = tiny.train_arguments(output, changes);
  const auto node = [&](int rank) {
    return std::map<std::string, std::string>{{"USE_RAY", "1"},
                                              {"NNODES", "2"},
                                              {"NODE_RANK", std::to_string(rank)},
                                              {"MASTER_ADDR", machines.address(0)},
                                              {"MASTER_PORT", "6379"}};
  };
  BackgroundCommand first(machines.inside(0, command), tiny.options(node(0)));
  REQUIRE_MESSAGE(first.wait_for_output("1 of 2 nodes", kStart), first.output());
  std::filesystem::create_directories(elsewhere.file("home/.troupe"));
  std::filesystem::copy_file(tiny.file("home/.troupe/token"), elsewhere.file("home/.troupe/token"));
  BackgroundCommand second(machines.inside(1, command), elsewhere.options(node(1)));
  REQUIRE_MESSAGE(second.wait_for_output("joined the cluster", kStart), second.output());
  REQUIRE_MESSAGE(first.wait(kRun) == 0, first.output());
  CHECK_MESSAGE(second.wait(kStart) == 0, second.output());
  tiny.check_nothing_left();
  elsewhere.check_nothing_left();
  return first.output();
}

TEST_CASE("two machines train the same bits as one") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  const TinyRun tiny;
  tiny.must_train("one");
  train_on(*machines, tiny, "two", {});
  check_same_result(tiny.file("two"), tiny.file("one"));
  // Half of the gradients went over the cable and half of their sums, each way, in each step.
  const auto weights = contents(tiny.file("two/model.safetensors")).size();
  for (const int side : {0, 1}) CHECK(machines->bytes_sent(side) > 8 * weights);
}

}  // namespace
}  // namespace troupe::tests
