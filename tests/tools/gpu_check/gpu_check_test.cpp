// gpu_check as it is run on a machine with a GPU, over the tests' GPU: every check once, so that a
// typing error does not waste a GPU's minutes.

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "runtime/base/json.h"
#include "tests/support/command.h"

namespace troupe::tests {
namespace {

struct GpuCheck {
  GpuCheck() {
    char name[] = "/tmp/troupe-gpu-check-XXXXXX";
    REQUIRE(::mkdtemp(name));
    folder = name;
  }
  ~GpuCheck() { std::filesystem::remove_all(folder); }

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
  std::string folder;
};

TEST_CASE("every check runs once over the tests' GPU and passes") {
  const GpuCheck check;
  const CommandResult listed = check.run({"--list"});
  CHECK(listed.exit_code == 0);
  const auto lines = std::count(listed.out.begin(), listed.out.end(), '\n');
  REQUIRE(lines > 50);
  // What matters most comes first.
  CHECK(listed.out.find("memory/outlives its process") < listed.out.find("copy/device"));
  CHECK(listed.out.find("copy/device") < listed.out.find("training/steps"));

  // `troupe` finds a GPU, too.
  const CommandResult result = check.run({"--json", "--seconds", "600"}, true,
                                         {{"TROUPE_FAKE_CUDA_CUDNN", "91900"},
                                          {"TROUPE_FAKE_GPUS", "1"},
                                          {"LD_LIBRARY_PATH", GpuCheck::bin("../fake_gpus")}});
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  const Result<json::Value> parsed = json::parse(result.out, "results");
  REQUIRE(parsed.ok());
  CHECK(json::find_integer(*parsed, "passed").value_or(0) == lines - 1);  // the last is the sum
  CHECK(json::find_integer(*parsed, "failed").value_or(1) == 0);
  CHECK(json::find_integer(*parsed, "skipped").value_or(1) == 0);
  CHECK(std::filesystem::exists(check.folder + "/results.json"));
  CHECK(std::filesystem::exists(check.folder + "/worker.log"));
}

TEST_CASE("without cuDNN its checks are skipped, with the reason") {
  const GpuCheck check;
  const CommandResult result = check.run({"--only", "attention/cudnn values,operators/add f32"});
  CHECK(result.exit_code == 7);
  CHECK(result.out.find("skipped attention/cudnn values") != std::string::npos);
  CHECK(result.out.find("libcudnn.so.9 is not there") != std::string::npos);
  CHECK(result.out.find("passed  operators/add f32") != std::string::npos);
}

TEST_CASE("what does not fit the time is skipped aloud, and that is no success") {
  const GpuCheck check;
  const CommandResult result = check.run({"--only", "operators/add f32", "--seconds", "0.5"});
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
