// Ranks on two machines, as the README starts them: the bits are those of one machine.

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/runs/tiny_run.h"
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
  for (const std::string strategy : {"ddp", "zero3"}) {
    CAPTURE(strategy);
    const Settings settings = {{"troupe.strategy", strategy}};
    const std::string one = tiny.file("one-" + strategy), two = tiny.file("two-" + strategy);
    tiny.must_train("one-" + strategy, settings);
    const std::uint64_t before[] = {machines->bytes_sent(0), machines->bytes_sent(1)};
    train_on(*machines, tiny, "two-" + strategy, settings);
    check_same_result(two, one);
    // DDP sends half of the gradients and half of their sums, each way, in each of eight steps;
    // what shards its parameters sends half of them twice more.
    const auto weights = contents(two + "/model.safetensors").size();
    for (const int side : {0, 1}) CHECK(machines->bytes_sent(side) - before[side] > 8 * weights);
  }
  CHECK((contents(tiny.file("two-zero3/model.safetensors")) ==
         contents(tiny.file("one-ddp/model.safetensors"))));
}

TEST_CASE("four ranks on two machines: shared memory within, the cable between") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  const TinyRun tiny;
  // The shard groups lie within the machines.
  const Settings settings = {{"troupe.workers", "4"},
                             {"per_device_train_batch_size", "1"},
                             {"troupe.strategy", "hsdp"},
                             {"troupe.mesh", "2,2"}};
  tiny.must_train("one", settings);
  train_on(*machines, tiny, "two", settings);
  check_same_result(tiny.file("two"), tiny.file("one"));
}

}  // namespace
}  // namespace troupe::tests
