#include "tools/launchers/slurm.h"

#include <doctest/doctest.h>

#include "runtime/base/suggest.h"

namespace troupe::tools {
namespace {

std::string nodes(std::string_view list) {
  const auto parsed = parse_node_list(list);
  return parsed.ok() ? join_words(*parsed, " ") : parsed.status().message();
}

std::string tasks(std::string_view text) {
  const auto parsed = parse_tasks_per_node(text);
  return parsed.ok() ? join_numbers(*parsed, " ") : parsed.status().message();
}

using Variables = std::map<std::string, std::string, std::less<>>;

Variables step_of_two() {
  return {{"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "3"},
          {"SLURM_NODEID", "1"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_SUBMIT_DIR", "/home/u"}};
}

TEST_CASE("node lists name the nodes that scontrol show hostnames would") {
  CHECK(nodes("node1") == "node1");
  CHECK(nodes("node[01-04,7]") == "node01 node02 node03 node04 node7");
  CHECK(nodes("node[01-02,7],gpu-x") == "node01 node02 node7 gpu-x");
  CHECK(nodes("r[1-2]n[0-1]") == "r1n0 r1n1 r2n0 r2n1");
  CHECK(nodes("n[1-2]-ib,m3") == "n1-ib n2-ib m3");
  CHECK(nodes("n[8-12]") == "n8 n9 n10 n11 n12");
  CHECK(nodes("n[08-10]") == "n08 n09 n10");
  CHECK(nodes("n[098-101]") == "n098 n099 n100 n101");
}

TEST_CASE("a bad node list is refused with the position") {
  CHECK(nodes("") == "the node list '' at position 1: a node's name expected");
  CHECK(nodes("a,") == "the node list 'a,' at position 3: a node's name expected");
  CHECK(nodes("a[1-") == "the node list 'a[1-' at position 5: a number from 1 on expected");
  CHECK(nodes("a[]") == "the node list 'a[]' at position 3: a number expected");
  CHECK(nodes("a[4-2]") == "the node list 'a[4-2]' at position 6: a number from 4 on expected");
  CHECK(nodes("a[1x]") == "the node list 'a[1x]' at position 4: ',' or ']' expected");
  CHECK(nodes("a]b") == "the node list 'a]b' at position 2: ',' or the end expected");
  CHECK(nodes("a[0-99999999]").ends_with("at most 65536 nodes expected"));
  CHECK(nodes("a[0-9999]b[0-9999]").ends_with("at most 65536 nodes expected"));
}

TEST_CASE("tasks per node") {
  CHECK(tasks("2(x3),1") == "2 2 2 1");
  CHECK(tasks("8") == "8");
  CHECK(tasks("2(3)") == "the tasks per node '2(3)' at position 2: ',', '(x' or the end expected");
  CHECK(tasks("2(x3") == "the tasks per node '2(x3' at position 5: ')' expected");
  CHECK(tasks("0") == "the tasks per node '0' at position 2: a number of tasks expected");
  CHECK(tasks("") == "the tasks per node '' at position 1: a number of tasks expected");
}

TEST_CASE("a task of a step knows its place, and variables that contradict each other are named") {
  auto variables = step_of_two();
  const auto read = [&] { return read_slurm_task(MapEnvironment(variables)); };
  auto task = read().value();
  REQUIRE(task);
  CHECK(task->nodes == std::vector<std::string>{"n1", "n2"});
  CHECK(task->node == 1);
  CHECK(task->local_id == 1);
  CHECK(task->tasks_here() == 2);
  CHECK(slurm_token_file(*task) == "/home/u/.troupe-77.0");
  CHECK(task->port() >= 20000);
  CHECK(task->port() < 30000);
  const int port = task->port();
  variables["SLURM_RESTART_COUNT"] = "1";
  CHECK(slurm_token_file(*read().value()) == "/home/u/.troupe-77.0.1");
  CHECK(read().value()->port() != port);

  variables["SLURM_STEP_NUM_TASKS"] = "5";
  CHECK(read().status().message() ==
        "SLURM_STEP_NUM_TASKS is 5, and SLURM_STEP_TASKS_PER_NODE adds up to 4");
  variables["SLURM_STEP_TASKS_PER_NODE"] = "5";
  CHECK(read().status().message() ==
        "SLURM_STEP_NODELIST=n[1-2] names 2 nodes, and SLURM_STEP_TASKS_PER_NODE counts 1");
  // The batch script itself is no task of a step, nor does one task need others.
  variables.erase("SLURM_STEP_NODELIST");
  CHECK_FALSE(read().value());
  variables["SLURM_STEP_NODELIST"] = "n1";
  variables["SLURM_STEP_TASKS_PER_NODE"] = variables["SLURM_STEP_NUM_TASKS"] = "1";
  CHECK_FALSE(read().value());
}

TEST_CASE("a node rank that the batch script's shell expanded is seen") {
  const auto task = read_slurm_task(MapEnvironment(step_of_two())).value();
  CHECK(expanded_node_rank(*task, 0, 2).find("it is taken as 1") != std::string::npos);
  CHECK(expanded_node_rank(*task, 1, 2).empty());
  CHECK(expanded_node_rank(*task, 0, 4).empty());  // other nodes than the step's
}

}  // namespace
}  // namespace troupe::tools
