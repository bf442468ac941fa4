// The actor examples, run as the programs that they are: what they print is in their READMEs.

#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/test_data.h"

namespace troupe::tests {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string output;
};

Outcome run(const std::string& program) {
  Outcome outcome;
  std::FILE* pipe = ::popen(("timeout 60 " + bin_dir() + "/" + program).c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  while (const auto n = std::fread(buffer, 1, sizeof buffer, pipe))
    outcome.output.append(buffer, n);
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

// The lines that the example's README shows after "$ COMMAND".
std::string output_in_readme(const std::string& name, const std::string& command) {
  std::ifstream file(source_dir() + "/examples/" + name + "/README.md");
  std::string line, output;
  bool in_output = false;
  while (std::getline(file, line)) {
    if (in_output && line.rfind("    ", 0) != 0) break;
    if (in_output) output += line.substr(4) + "\n";
    if (line == "    $ " + command) in_output = true;
  }
  REQUIRE_FALSE(output.empty());
  return output;
}

// Processes of the program that still run.
int processes_of(const std::string& program) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code ec;
    const auto target = std::filesystem::read_symlink(entry.path() / "exe", ec);
    if (!ec && target == bin_dir() + "/" + program) ++count;
  }
  return count;
}

void check_example(const std::string& name, const std::string& arguments = "") {
  const std::string command = name + arguments;
  const Outcome outcome = run(command);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.output == output_in_readme(name, command));
  CHECK(processes_of(name) == 0);
}

TEST_CASE("01_hello_actor prints what its README says and leaves nothing") {
  check_example("01_hello_actor");
}
TEST_CASE("02_pipeline counts every word once") { check_example("02_pipeline"); }
TEST_CASE("02_pipeline counts every word once, over the loss of the merger's node") {
  check_example("02_pipeline", " --kill-node");
}
TEST_CASE("03_survive_kill keeps its count over kill -9") { check_example("03_survive_kill"); }
TEST_CASE("04_chaos_test loses nothing") { check_example("04_chaos_test"); }
TEST_CASE("05_own_training trains with parts of its own, the same bits over a kill") {
  check_example("05_own_training");
}
TEST_CASE("06_objects counts words by tasks that read one object") { check_example("06_objects"); }
TEST_CASE("07_pipeline loses no text, and adds each once, over kills") {
  check_example("07_pipeline");
}
TEST_CASE("08_map_reduce sorts more than the memory for objects holds") {
  check_example("08_map_reduce");
}
TEST_CASE("08_map_reduce sorts the same when a worker is killed") {
  check_example("08_map_reduce", " --kill");
}
TEST_CASE("09_machine_loss loses a machine, and no step") { check_example("09_machine_loss"); }

}  // namespace
}  // namespace troupe::tests
