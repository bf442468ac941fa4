// gpu_check as it is run on a machine with a GPU, over the tests' GPU: a check of each kind, and
// in the long suites every one, so that a typing error does not waste a GPU's minutes.

#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "tests/support/command.h"
#include "tests/support/test_data.h"

namespace troupe::tests {
namespace {

struct GpuCheck {
  static std::string bin(const std::string& file) {
    const char* where = std::getenv("TROUPE_BIN_DIR");
    return std::string(where ? where : "bin") + "/" + file;
  }
  CommandResult run(std::vector<std::string> arguments, bool with_library = true,
                    std::map<std::string, std::string> environment = {}) const {
    std::vector<std::string> argv = {bin("gpu_check"), "--rehearsal", "--logs", folder};
    if (with_library) {
      argv.push_back("--library");
      argv.push_back(bin("libtroupe_cuda_fake.so"));
    }
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return run_command(
        argv, {.timeout = std::chrono::seconds(150), .environment = std::move(environment)});
  }
  const TemporaryDirectory directory;
  const std::string& folder = directory.path();
};

// The first check of each kind, as --only takes them: "memory/outlives its process,copy/device,…".
std::string one_of_each_kind(const std::string& list) {
  std::string names;
  std::set<std::string> kinds;
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find("  "));
    const auto slash = name.find('/');
    if (slash == std::string::npos || !kinds.insert(name.substr(0, slash)).second) continue;
    names += (names.empty() ? "" : ",") + name;
  }
  return names;
}

void checks_pass(bool all) {
  const GpuCheck check;
  const CommandResult listed = check.run({"--list"});
  CHECK(listed.exit_code == 0);
  const auto lines = std::count(listed.out.begin(), listed.out.end(), '\n');
  REQUIRE(lines > 50);
  // What matters most comes first.
  CHECK(listed.out.find("memory/outlives its process") < listed.out.find("copy/device"));
  CHECK(listed.out.find("copy/device") < listed.out.find("training/steps"));
  // With room for processes that are started again, all of it fits the time.
  const auto sum = listed.out.rfind("about ");
  REQUIRE(sum != std::string::npos);
  CHECK(std::stoi(listed.out.substr(sum + 6)) < 480);

  std::vector<std::string> arguments = {"--json", "--seconds", "600"};
  if (!all) arguments.insert(arguments.end(), {"--only", one_of_each_kind(listed.out)});
  // `troupe` finds a GPU, too.
  const CommandResult result = check.run(arguments, true,
                                         {{"TROUPE_FAKE_CUDA_CUDNN", "91900"},
                                          {"TROUPE_FAKE_GPUS", "1"},
                                          {"LD_LIBRARY_PATH", GpuCheck::bin("../fake_gpus")}});
  CAPTURE(result.err);
  const Result<json::Value> parsed = json::parse(result.out, "results");
  REQUIRE(parsed.ok());
  // PyTorch may not be there to be compared with.
  int checks = 0, without_peer = 0;
  for (const json::Value& one : json::find(*parsed, "checks")->get_array()) {
    ++checks;
    const std::string name = json::find_string(one, "name").value_or("");
    const std::string verdict = json::find_string(one, "verdict").value_or("");
    CAPTURE(name);
    if (verdict == "skipped" && name.starts_with("peer/")) {
      ++without_peer;
      CHECK(json::find_string(one, "reason").value_or("").find("no PyTorch to compare with: ") !=
            std::string::npos);
    } else {
      CHECK(verdict == "passed");
    }
  }
  if (all) CHECK(checks == lines - 1);  // the last is the sum
  CHECK(checks > 10);
  CHECK(result.exit_code == (without_peer == 0 ? 0 : 7));
  CHECK(std::filesystem::exists(check.folder + "/results.json"));
  CHECK(std::filesystem::exists(check.folder + "/worker.log"));
}

TEST_CASE("a check of each kind runs over the tests' GPU and passes") { checks_pass(false); }

TEST_CASE("long: every check runs once over the tests' GPU and passes" * doctest::skip()) {
  checks_pass(true);
}

TEST_CASE("over a GPU's own kernels values are near the CPU's, and strategies have one result") {
  const GpuCheck check;
  const std::map<std::string, std::string> environment = {
      {"TROUPE_FAKE_CUDA_KERNELS", "phases"},
      {"TROUPE_FAKE_GPUS", "1"},
      {"LD_LIBRARY_PATH", GpuCheck::bin("../fake_gpus")}};
  const CommandResult result =
      check.run({"--kernels", "--only", "operators/rms_norm f32,sharding/strategies bf16"}, true,
                environment);
  CAPTURE(result.out);
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("2 passed") != std::string::npos);
  // Their sums have another order than the CPU's.
  CHECK(check.run({"--only", "operators/rms_norm f32"}, true, environment).exit_code == 7);
}

TEST_CASE("without cuDNN its checks are skipped, with the reason") {
  const GpuCheck check;
  const CommandResult result = check.run({"--only", "attention/cudnn values,operators/add f32"});
  CHECK(result.exit_code == 7);
  CHECK(result.out.find("skipped attention/cudnn values") != std::string::npos);
  CHECK(result.out.find("libcudnn.so.9 is not there") != std::string::npos);
  CHECK(result.out.find("passed  operators/add f32") != std::string::npos);
}

TEST_CASE("where there is no PyTorch, what compares with it is skipped, with the way out") {
  const GpuCheck check;
  const CommandResult none = check.run({"--only", "peer/losses", "--python", "/nowhere/python3"});
  CHECK(none.exit_code == 7);
  CHECK(none.out.find("no PyTorch to compare with: there is no /nowhere/python3; --python PATH") !=
        std::string::npos);
}

TEST_CASE("a peer's program that says something else fails the check") {
  const GpuCheck check;
  const std::string program = check.folder + "/python";
  const auto peer = [&](const std::string& script) {
    std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return check.run({"--only", "peer/losses", "--python", program});
  };
  const CommandResult wrong = peer(
      "echo 'a warning'; echo '{\"by\": \"a script\", \"models\": [' "
      "'{\"loss\": 4.0, \"norm\": 1.0}, {\"loss\": 4.0, \"norm\": 1.0},' "
      "'{\"loss\": 4.0, \"norm\": 1.0}, {\"loss\": 4.0, \"norm\": 1.0}]}'");
  CHECK(wrong.exit_code == 7);
  CHECK(wrong.out.find("failed  peer/losses") != std::string::npos);
  CHECK(wrong.out.find("(4.000000), gradients' norm") != std::string::npos);
  const CommandResult broken = peer("echo 'no such attribute' >&2; exit 1");
  CHECK(broken.exit_code == 7);
  CHECK(broken.out.find("failed  peer/losses") != std::string::npos);
  CHECK(broken.out.find("ended with code 1; it said: no such attribute") != std::string::npos);
}

TEST_CASE("what does not fit the time is skipped aloud, and that is no success") {
  const GpuCheck check;
  const CommandResult result = check.run({"--only", "operators/add f32", "--seconds", "0.1"});
  CHECK(result.exit_code == 7);
  CHECK(result.out.find("skipped operators/add f32") != std::string::npos);
  CHECK(result.out.find("are left") != std::string::npos);
}

TEST_CASE("a check that takes its process along fails alone") {
  const GpuCheck check;
  const CommandResult result = check.run({"--only", "operators/gelu f32,operators/add f32"}, true,
                                         {{"TROUPE_FAKE_CUDA_ABORT", "gelu_forward"}});
  CHECK(result.exit_code == 7);
  CHECK(result.out.find("failed  operators/gelu f32") != std::string::npos);
  CHECK(result.out.find("its process died of signal 6") != std::string::npos);
  CHECK(result.out.find("passed  operators/add f32") != std::string::npos);
}

TEST_CASE("a run that is ended from outside leaves the results that it had") {
  const GpuCheck check;
  BackgroundCommand run({GpuCheck::bin("gpu_check"), "--rehearsal", "--logs", check.folder,
                         "--only", "operators/add f32,attention/values", "--library",
                         GpuCheck::bin("libtroupe_cuda_fake.so")});
  REQUIRE_MESSAGE(run.wait_for_output("passed  operators/add f32", std::chrono::seconds(60)),
                  run.output());
  run.kill(SIGKILL);
  std::ifstream file(check.folder + "/results.json");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  CHECK(text.find("operators/add f32") != std::string::npos);
  CHECK(json::parse(text, "results").ok());
}

TEST_CASE("what is packed runs where nothing of ours is, and fits what travels") {
  const GpuCheck check;
  const char* source = std::getenv("TROUPE_SOURCE_DIR");
  const std::string root = source ? source : "../..";
  const std::string file = check.folder + "/packed.tar.gz";
  const CommandResult packed = run_command(
      {root + "/tools/gpu-check", "--pack", file},
      {.timeout = std::chrono::seconds(100),
       .environment = {{"TROUPE_BIN", GpuCheck::bin("")},
                       {"TROUPE_CUDA_LIBRARY", GpuCheck::bin("libtroupe_cuda_fake.so")}}});
  CAPTURE(packed.err);
  REQUIRE(packed.exit_code == 0);
  REQUIRE(run_command({"tar", "-C", check.folder, "-xf", file}).exit_code == 0);
  const CommandResult run = run_command(
      {"env", "-i", "PATH=/usr/bin:/bin", check.folder + "/gpu-check/run", "--rehearsal", "--only",
       "device/versions,memory/outlives", "--logs", check.folder + "/logs"});
  CAPTURE(run.out);
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("2 passed") != std::string::npos);
}

TEST_CASE("no library, no such check, no such option: a sentence and the code") {
  const GpuCheck check;
  const CommandResult none = check.run({"--library", "/nowhere/libtroupe_cuda.so"}, false);
  CHECK(none.exit_code == 3);
  CHECK(none.err.find("no GPU can be used") != std::string::npos);
  CHECK(check.run({"--only", "nothing like it"}).exit_code == 2);
  CHECK(check.run({"--wrong"}).exit_code == 2);
}

}  // namespace
}  // namespace troupe::tests
