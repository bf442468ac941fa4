// `troupe train` on the nodes of a running cluster: where its trainers go, and nodes that do not
// have its folders.

#include <signal.h>

#include <algorithm>
#include <set>

#include "tests/support/runs/tiny_run.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

// A head and nodes of two CPUs, and a run's files.
struct Nodes {
  explicit Nodes(const std::vector<std::vector<std::string>>& prefixes = {{}, {}}) {
    for (const auto& prefix : prefixes)
      workers.push_back(start_worker(home, head, {"--num-cpus", "2"}, prefix));
  }
  std::vector<std::string> train(const Settings& changes) const {
    auto arguments = tiny.train_arguments("out", changes);
    arguments.erase(arguments.begin());
    arguments.push_back("--address");
    arguments.push_back(head.address());
    return arguments;
  }

  TinyRun tiny;
  TroupeHome home;
  RunningHead head = start_head(home);
  std::vector<std::unique_ptr<BackgroundCommand>> workers;
};

// Of the run's trainers that live, by rank.
std::vector<std::string> nodes_of_trainers(const Nodes& nodes, std::size_t world) {
  std::vector<std::string> found;
  const auto all_live = [&] {
    found.clear();
    const auto actors = nodes.home.run_json({"actors"});
    for (std::size_t rank = 0; rank < world; ++rank) {
      for (const auto& actor : actors.as_object().at("actors").as_array()) {
        if (json::find_string(actor, "name")
                .value_or("")
                .ends_with("/trainer-" + std::to_string(rank)) &&
            json::find_string(actor, "state") == "alive")
          found.push_back(json::find_string(actor, "node_id").value_or(""));
      }
    }
    return found.size() == world;
  };
  CHECK(in_time(all_live, kPatience));
  return found;
}

TEST_CASE("placement_strategy says where trainers go") {
  Nodes nodes;
  const auto placed = [&](const Settings& changes, std::size_t world) {
    Settings settings = {{"max_steps", "100000"}, {"save_steps", "100000"}};
    settings.insert(changes.begin(), changes.end());
    const auto run = start_troupe(nodes.home, nodes.train(settings));
    const auto where = nodes_of_trainers(nodes, world);
    run->kill(SIGINT);
    CHECK(run->wait(kPatience) == 128 + SIGINT);
    CAPTURE(run->output());
    return where;
  };
  const auto spread = placed({{"placement_strategy", "STRICT_SPREAD"}}, 2);
  CHECK(std::set<std::string>(spread.begin(), spread.end()).size() == 2);
  const auto packed = placed({{"placement_strategy", "STRICT_PACK"}}, 2);
  CHECK(std::set<std::string>(packed.begin(), packed.end()).size() == 1);
  // Ranks of a node follow each other.
  const auto four = placed({{"placement_strategy", "SPREAD"}, {"troupe.workers", "4"}}, 4);
  REQUIRE(four.size() == 4);
  CHECK(four[0] == four[1]);
  CHECK(four[2] == four[3]);
  CHECK(four[0] != four[2]);
}

TEST_CASE("places that the nodes do not have are refused with what is missing") {
  const Nodes nodes;
  const auto refused = [&](const Settings& changes) {
    const auto result = nodes.home.run(nodes.train(changes));
    CHECK(result.exit_code > 0);
    return result.err;
  };
  CHECK(contains(refused({{"placement_strategy", "STRICT_SPREAD"}, {"troupe.workers", "3"}}),
                 "wants a node for each of the 3 trainers, and there are 2; use SPREAD"));
  CHECK(contains(refused({{"placement_strategy", "STRICT_PACK"}, {"troupe.workers", "3"}}),
                 "placement_strategy=STRICT_PACK: no places for 3 trainers"));
  CHECK(contains(refused({{"resources_per_worker", "{disk: 1}"}}), "disk"));
}

TEST_CASE("the node of rank 0 is named where it lacks output_dir, with the folder") {
  // The node sees an empty folder where the command sees the run's. It is the only one: ranks other
  // than 0 do not need the folder, and of two nodes either may be rank 0's.
  TemporaryDirectory shared;
  const std::vector<std::string> blind = {
      "unshare", "--mount", "sh", "-c", "mount -t tmpfs none " + shared.path() + " && exec \"$@\"",
      "sh"};
  auto probe = blind;
  probe.push_back("true");
  if (run_command(probe).exit_code != 0) {
    MESSAGE("skipped: mounts of a process's own are not allowed here");
    return;
  }
  const Nodes nodes({blind});
  const auto result =
      nodes.home.run(nodes.train({{"output_dir", shared.file("out")}, {"troupe.workers", "1"}}));
  CAPTURE(result.err);
  CHECK(result.exit_code > 0);
  CHECK(
      contains(result.err, " lacks " + shared.file("out") + " (output_dir) of the machine where"));
  CHECK(contains(result.err, "mount it there"));
}

// A machine: all its processes end at once with the first of them.
const std::vector<std::string> kMachine = {"unshare", "--pid", "--fork", "--kill-child",
                                           "--mount-proc"};

// The worker of three that has the node `id`, by the label that each was started with.
std::size_t worker_of(const Nodes& nodes, const std::string& id) {
  const auto all = nodes.home.run_json({"nodes"});
  for (const auto& node : all.as_object().at("nodes").as_array()) {
    if (json::find_string(node, "node_id") != id) continue;
    const auto* labels = json::find(node, "labels");
    REQUIRE(labels != nullptr);
    return static_cast<std::size_t>(std::stoi(json::find_string(*labels, "machine").value_or("9")));
  }
  FAIL("no node ", id);
  return 0;
}

TEST_CASE(
    "a lost machine: its rank goes on elsewhere with what another holds or kept, no step is lost") {
  auto probe = kMachine;
  probe.push_back("true");
  if (run_command(probe).exit_code != 0) {
    MESSAGE("skipped: process namespaces are not allowed here");
    return;
  }
  Settings settings = {{"max_steps", "300"}, {"save_steps", "100000"}, {"logging_steps", "50"}};
  for (const std::size_t rank : {0, 1}) {
    CAPTURE(rank);
    settings["troupe.strategy"] = rank == 0 ? "ddp" : "zero3";
    Nodes nodes(std::vector<std::vector<std::string>>{});
    for (const char* machine : {"machine=0", "machine=1", "machine=2"})
      nodes.workers.push_back(
          start_worker(nodes.home, nodes.head, {"--num-cpus", "2", "--labels", machine}, kMachine));
    nodes.tiny.must_train("expected", settings);
    auto spread = settings;
    spread["placement_strategy"] = "STRICT_SPREAD";
    const auto run = start_troupe(nodes.home, nodes.train(spread));
    const auto where = nodes_of_trainers(nodes, 2);
    const std::string output = nodes.tiny.file("out");
    REQUIRE(
        in_time([&] { return exists(output + "/steps.jsonl") && steps_of(output).size() > 20; }));
    nodes.workers[worker_of(nodes, where.at(rank))]->kill(SIGKILL);
    const int code = run->wait(kPatience);
    CAPTURE(run->output());
    REQUIRE(code == 0);
    check_same_result(output, nodes.tiny.file("expected"));
    const auto names = event_names(output);
    CHECK(std::count(names.begin(), names.end(), "reload") == 0);
    const std::string took =
        rank == 0 ? "took it over: rank 1 holds the same" : "took it over: rank 0 kept a copy";
    CHECK(contains(contents(output + "/events.jsonl"), took));
    for (const auto& event : events(output)) {
      if (json::find_string(event, "event") == "recovered")
        CHECK(json::find_number(event, "lost_steps") == 0);
    }
  }
}

}  // namespace
}  // namespace troupe::tests
