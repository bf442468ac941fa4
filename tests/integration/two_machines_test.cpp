// Ranks on two machines, as the README starts them: the bits are those of one machine.

#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "tests/support/runs/tiny_run.h"
#include "tests/support/two_machines.h"

namespace troupe::tests {
namespace {

using std::chrono::seconds;

constexpr seconds kStart{30};
constexpr seconds kRun{90};

// `troupe train` with NNODES=2 on both machines; or, `elastic`, with one or two of them as they
// come.
class OnBoth {
 public:
  // Both have found each other; or the first one waits for nobody.
  OnBoth(const TwoMachines& machines, const TinyRun& tiny, const std::string& output,
         const Settings& changes, bool elastic = false, bool own_disk = false)
      : machines_(machines),
        command_(tiny.train_arguments(output, changes)),
        tiny_(tiny),
        elastic_(elastic) {
    if (own_disk) own_disk_ = tiny.file(output);
    first = std::make_unique<BackgroundCommand>(machines.inside(0, command_),
                                                tiny.options(environment(0)));
    REQUIRE_MESSAGE(first->wait_for_output("1 of 2 nodes", kStart), first->output());
    CHECK(
        first->output().find(elastic ? "the run begins" : "waiting for NODE_RANK=1, for 0 s of ") !=
        std::string::npos);
    std::filesystem::create_directories(elsewhere.file("home/.troupe"));
    std::filesystem::copy_file(tiny.file("home/.troupe/token"),
                               elsewhere.file("home/.troupe/token"));
    if (!elastic) start_second();
  }
  // The second machine's command, also after a failure.
  void start_second() {
    std::vector<std::string> command = command_;
    if (!own_disk_.empty()) {
      // `ip netns exec` gives it mounts of its own.
      const std::string mounts = "mount -t tmpfs disk '" + own_disk_ + "' && exec \"$@\"";
      command.insert(command.begin(), {"sh", "-c", mounts, "sh"});
    }
    second = std::make_unique<BackgroundCommand>(machines_.inside(1, command),
                                                 elsewhere.options(environment(1)));
    REQUIRE_MESSAGE(second->wait_for_output("is part of the run of", kStart), second->output());
  }
  // As a machine whose power goes.
  void kill_second() {
    for (const pid_t pid : elsewhere.processes()) ::kill(pid, SIGKILL);
    CHECK(second->wait(kStart) == 128 + SIGKILL);
  }
  // From the first one, by the id of the machine's node.
  CommandResult drain(int machine) {
    const auto troupe = [this](std::vector<std::string> command) {
      command.insert(command.begin(), troupe_program());
      command.insert(command.end(), {"--address", machines_.address(0) + ":6379"});
      return run_command(machines_.inside(0, command), tiny_.options());
    };
    const auto listed = json::parse(troupe({"nodes", "--json"}).out, "nodes");
    REQUIRE(listed.ok());
    std::string id;
    for (const auto& node : listed->as_object().at("nodes").as_array()) {
      if (json::find_string(node, "state") == "alive" &&
          json::find_string(*json::find(node, "labels"), "troupe-node-rank") ==
              std::to_string(machine))
        id = json::find_string(node, "node_id").value_or("");
    }
    return troupe({"drain", id});
  }
  void finish() {
    REQUIRE_MESSAGE(first->wait(kRun) == 0, first->output());
    CHECK_MESSAGE(second->wait(kStart) == 0, second->output());
    tiny_.check_nothing_left();
    elsewhere.check_nothing_left();
  }

  // The second machine with another RDZV_ID, or with one CPU: what it says, and that it ends.
  std::string start_stranger() {
    auto variables = environment(1);
    variables["RDZV_ID"] = "another";
    return refused(command_, variables, 2);
  }
  std::string start_small() {
    cpu_set_t cpus;
    REQUIRE(::sched_getaffinity(0, sizeof cpus, &cpus) == 0);
    int first = 0;
    while (!CPU_ISSET(first, &cpus)) ++first;
    std::vector<std::string> command{"taskset", "-c", std::to_string(first)};
    command.insert(command.end(), command_.begin(), command_.end());
    return refused(command, environment(1), 5);
  }

  // The second machine's home and temporary folders.
  const TinyRun elsewhere;
  std::unique_ptr<BackgroundCommand> first, second;

 private:
  std::string refused(const std::vector<std::string>& command,
                      const std::map<std::string, std::string>& variables, int exit_code) {
    BackgroundCommand joiner(machines_.inside(1, command), elsewhere.options(variables));
    CHECK(joiner.wait(kStart) == exit_code);
    return joiner.output();
  }
  std::map<std::string, std::string> environment(int rank) const {
    std::map<std::string, std::string> variables = {
        {"USE_RAY", "1"}, {"MASTER_ADDR", machines_.address(0)}, {"MASTER_PORT", "6379"}};
    if (elastic_) {
      variables.insert({{"MIN_NNODES", "1"}, {"MAX_NNODES", "2"}, {"RDZV_ID", "job"}});
    } else {
      variables.insert({{"NNODES", "2"}, {"NODE_RANK", std::to_string(rank)}});
    }
    return variables;
  }
  const TwoMachines& machines_;
  const std::vector<std::string> command_;
  const TinyRun& tiny_;
  const bool elastic_;
  std::string own_disk_;  // the folder that the second machine sees another disk at; empty: none
};

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
    // The second time each machine has a disk of its own, and rank 0 writes for both.
    const bool own_disk = strategy == "zero3";
    OnBoth run(*machines, tiny, "two-" + strategy, settings, false, own_disk);
    run.finish();
    check_same_result(two, one);
    CHECK((run.first->output().find("is not the same directory on the nodes of rank 1: rank 0 "
                                    "writes for them") != std::string::npos) == own_disk);
    // DDP sends half of the gradients and half of their sums, each way, in each of eight steps;
    // what shards its parameters sends half of them twice more.
    const auto weights = contents(two + "/model.safetensors").size();
    for (const int side : {0, 1}) CHECK(machines->bytes_sent(side) - before[side] > 8 * weights);
  }
  CHECK((contents(tiny.file("two-zero3/model.safetensors")) ==
         contents(tiny.file("one-ddp/model.safetensors"))));
  // And reads for both.
  std::filesystem::remove_all(tiny.file("two-zero3/checkpoint-8"));
  OnBoth again(*machines, tiny, "two-zero3",
               {{"troupe.strategy", "zero3"}, {"overwrite_output_dir", "false"}}, false, true);
  again.finish();
  CHECK_MESSAGE(again.first->output().find("checkpoint-6") != std::string::npos,
                again.first->output());
  check_same_result(tiny.file("two-zero3"), tiny.file("one-zero3"));
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
  OnBoth(*machines, tiny, "two", settings).finish();
  check_same_result(tiny.file("two"), tiny.file("one"));
}

const Settings kLongRun = {{"max_steps", "300"}, {"save_steps", "150"}};

// The same on one machine.
struct Alone {
  TinyRun tiny;
  Alone() { tiny.must_train("one", kLongRun); }
};
const Alone& alone() {
  static const Alone alone;
  return alone;
}

TEST_CASE("a machine that is killed and started again with the same command takes its place") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  const TinyRun& tiny = alone().tiny;
  OnBoth run(*machines, tiny, "two", kLongRun);
  REQUIRE_MESSAGE(run.first->wait_for_output("step 3/300 ", kStart), run.first->output());
  run.kill_second();
  REQUIRE_MESSAGE(run.first->wait_for_output("waiting for rank 1, for ", kStart),
                  run.first->output());
  REQUIRE_MESSAGE(run.first->wait_for_output(" s of 300 (troupe.join_timeout_s): needs ", kStart),
                  run.first->output());
  CHECK(run.first->wait_for_output("troupe-node-rank=1", seconds(1)));
  run.start_second();
  run.finish();
  check_same_result(tiny.file("two"), tiny.file("one"));
}

TEST_CASE("a cable that is cut and joined again: the run waits and goes on") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  const TinyRun& tiny = alone().tiny;
  OnBoth run(*machines, tiny, "cut", kLongRun);
  REQUIRE_MESSAGE(run.first->wait_for_output("step 3/300 ", kStart), run.first->output());
  machines->cut();
  REQUIRE_MESSAGE(run.first->wait_for_output("waiting for rank 1, for ", kStart),
                  run.first->output());
  machines->join();
  run.finish();
  check_same_result(tiny.file("cut"), tiny.file("one"));
}

TEST_CASE("a cable that stays cut: both sides end by the same limit") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  const TinyRun tiny;
  Settings settings = kLongRun;
  settings["troupe.join_timeout_s"] = "3";
  OnBoth run(*machines, tiny, "two", settings);
  REQUIRE_MESSAGE(run.first->wait_for_output("step 3/300 ", kStart), run.first->output());
  machines->cut();
  CHECK_MESSAGE(run.first->wait(seconds(20)) == exit_code(Code::kUnavailable), run.first->output());
  CHECK(run.first->output().find("could not be started again for 3 s (troupe.join_timeout_s)") !=
        std::string::npos);
  CHECK_MESSAGE(run.second->wait(seconds(20)) != 0, run.second->output());
  tiny.check_nothing_left();
  run.elsewhere.check_nothing_left();
}

TEST_CASE("a machine joins a run, is lost, joins again and leaves: the bits of any other world") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  const TinyRun tiny;
  Settings settings = {{"max_steps", "1200"},
                       {"save_steps", "1200"},
                       {"troupe.workers", ""},
                       {"troupe.threads_per_worker", "2"},
                       {"troupe.strategy", "zero3"},
                       {"troupe.last_call_s", "0"},
                       // The run has written into its folder before the second machine joins.
                       {"overwrite_output_dir", "false"},
                       {"troupe.deterministic", "across_world_sizes"}};
  Settings paced = settings;
  paced["troupe.chaos"] = "slow@rank=0,step=1,steps=1200,factor=30";  // or it were over before
  OnBoth run(*machines, tiny, "elastic", paced, true);
  REQUIRE_MESSAGE(run.first->wait_for_output("step 3/1200 ", kStart), run.first->output());
  const std::string refused = run.start_stranger();
  CHECK_MESSAGE(
      refused.find("was begun with MIN_NNODES=1 MAX_NNODES=2 RDZV_ID=job, and this "
                   "machine has MIN_NNODES=1 MAX_NNODES=2 RDZV_ID=another") != std::string::npos,
      refused);
  const std::string small = run.start_small();
  CHECK_MESSAGE(small.find("this machine offers CPU 1") != std::string::npos, small);
  CHECK_MESSAGE(small.find("the run's trainers on a machine take CPU 2") != std::string::npos,
                small);
  run.start_second();
  std::size_t told = 0;
  const auto becomes = [&](const std::string& world) {
    REQUIRE_MESSAGE(run.first->wait_for_output("the world has " + world, kStart, told),
                    run.first->output());
    told = run.first->output().size();
  };
  becomes("2 ranks on 2 machines from here on, it had 1 on 1: machine 1 came");
  run.kill_second();
  becomes("1 rank on 1 machine from here on, it had 2 on 2: machine 1 is lost");
  REQUIRE_MESSAGE(run.first->wait_for_output(" 0 lost", kStart, told), run.first->output());
  run.start_second();
  becomes("2 ranks on 2 machines from here on, it had 1 on 1: machine 1 came");
  run.second->kill(SIGTERM);
  CHECK_MESSAGE(run.second->wait(kStart) == 143, run.second->output());
  CHECK(run.second->output().find("a run that has begun goes on without it") != std::string::npos);
  becomes("1 rank on 1 machine from here on, it had 2 on 2: machine 1 leaves");
  run.start_second();
  becomes("2 ranks on 2 machines from here on, it had 1 on 1: machine 1 came");
  const CommandResult drained = run.drain(1);
  CHECK_MESSAGE(drained.exit_code == 0, drained.err);
  CHECK(drained.out.find("has left the training, which goes on without it") != std::string::npos);
  CHECK_MESSAGE(run.second->wait(kStart) == 0, run.second->output());
  CHECK(run.second->output().find("this machine was drained by 'troupe drain' on ") !=
        std::string::npos);
  becomes("1 rank on 1 machine from here on, it had 2 on 2: machine 1 leaves");
  run.first->kill(SIGTERM);
  REQUIRE_MESSAGE(run.first->wait(kRun) == 143, run.first->output());
  tiny.check_nothing_left();
  run.elsewhere.check_nothing_left();
  settings["troupe.workers"] = "2";
  tiny.must_train("elastic", settings);  // goes on from there, at its own pace
  tiny.must_train("one", settings);
  check_same_result(tiny.file("elastic"), tiny.file("one"));
}

TEST_CASE(
    "no machine of a fixed world is drained; SIGTERM to one, or to both, saves and ends the run") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  for (const bool both : {false, true}) {
    CAPTURE(both);
    const TinyRun tiny;
    // It does not end by itself, however long the commands below take.
    OnBoth run(*machines, tiny, "two", {{"max_steps", "1000000"}, {"save_steps", "1000000"}});
    REQUIRE_MESSAGE(run.first->wait_for_output("step 3/1000000 ", kStart), run.first->output());
    if (!both) {
      const std::string refused = run.start_stranger();
      CHECK_MESSAGE(refused.find("was begun with NNODES=2, and this machine has NNODES=2 "
                                 "RDZV_ID=another") != std::string::npos,
                    refused);
    }
    for (const int machine : {0, 1}) {
      if (both) break;
      const CommandResult drained = run.drain(machine);
      CHECK(drained.exit_code != 0);
      CHECK_MESSAGE(drained.err.find("cannot do without it: its machines are as many as NNODES "
                                     "says") != std::string::npos,
                    drained.err);
    }
    run.second->kill(SIGTERM);
    if (both) run.first->kill(SIGTERM);
    CHECK(run.first->wait(seconds(20)) == 143);
    INFO(run.first->output());
    CHECK(run.first->output().find("stopped at step ") != std::string::npos);
    CHECK(run.first->output().find("saved checkpoint-") != std::string::npos);
    CHECK_MESSAGE(run.second->wait(seconds(20)) == 143, run.second->output());
    CHECK(run.second->output().find("it stays until then") != std::string::npos);
    tiny.check_nothing_left();
    run.elsewhere.check_nothing_left();
  }
}

TEST_CASE("SIGTERM while a machine is awaited: rank 0 saves what it holds and ends in seconds") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  const TinyRun& tiny = alone().tiny;
  Settings settings = kLongRun;
  settings["troupe.stop_timeout_s"] = "4";
  OnBoth run(*machines, tiny, "stopped", settings);
  REQUIRE_MESSAGE(run.first->wait_for_output("step 3/300 ", kStart), run.first->output());
  run.kill_second();
  REQUIRE_MESSAGE(run.first->wait_for_output("waiting for rank 1, for ", kStart),
                  run.first->output());
  run.first->kill(SIGTERM);
  CHECK(run.first->wait(seconds(10)) == 143);
  const std::string& said = run.first->output();
  INFO(said);
  const std::string before = "stopped at step ";
  const auto at = said.find(before);
  REQUIRE(at != std::string::npos);
  const std::string step = std::to_string(std::atoll(said.c_str() + at + before.size()));
  CHECK(said.find("saved checkpoint-" + step) != std::string::npos);
  // One machine goes on from there, to the undisturbed end.
  const Settings more = {{"max_steps", "300"},
                         {"save_steps", "150"},
                         {"resume_from_checkpoint", tiny.file("stopped/checkpoint-" + step)}};
  tiny.must_train("resumed", more);
  CHECK((contents(tiny.file("resumed/model.safetensors")) ==
         contents(tiny.file("one/model.safetensors"))));
}

}  // namespace
}  // namespace troupe::tests
