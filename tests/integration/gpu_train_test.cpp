// `troupe train` on GPUs, over a library that computes as one would: what is placed, formed, killed
// and found again are the program's own processes.

#include <doctest/doctest.h>

#include <signal.h>

#include <fmt/format.h>

#include <algorithm>

#include "tests/support/runs/tiny_run.h"

namespace troupe::tests {
namespace {

using std::chrono::seconds;

// The tests' GPU as a library. Its groups are threads of one process, so ranks do without NCCL.
std::map<std::string, std::string> gpu_environment() {
  const std::string program = troupe_program();
  return {
      {"TROUPE_CUDA_LIBRARY", program.substr(0, program.rfind('/')) + "/libtroupe_cuda_fake.so"},
      {"TROUPE_FAKE_CUDA_NCCL", "0"}};
}

// A head that is a node with GPUs, too.
class GpuCluster {
 public:
  GpuCluster(const TinyRun& tiny, int gpus,
             const std::map<std::string, std::string>& environment = gpu_environment())
      : head_({troupe_program(), "head", "--with-worker", "--num-gpus", std::to_string(gpus),
               "--num-cpus", "4", "--address", "127.0.0.1", "--json", "--no-metrics"},
              tiny.options(environment)) {
    REQUIRE(head_.wait_for_output("\"port\":", seconds(20)));
    const std::string& text = head_.output();
    port_ = std::atoi(text.c_str() + text.find("\"port\":") + 7);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  BackgroundCommand head_;
  int port_ = 0;
};

TEST_CASE("two trainers on GPUs: the CPU's bits, a kill -9 costs no step") {
  const TinyRun tiny;
  tiny.must_train("cpu", {{"troupe.device", "cpu"}});
  const GpuCluster cluster(tiny, 2);
  const std::vector<std::string> there = {"--address", cluster.address()};
  const Settings on_gpus = {{"troupe.device", "cuda"}};
  // What the shell says to NCCL reaches trainers on nodes that were started without it.
  auto shell = gpu_environment();
  shell["NCCL_ASYNC_ERROR_HANDLING"] = "1";
  const auto whole = tiny.train("gpu", on_gpus, there, shell);
  REQUIRE_MESSAGE(whole.exit_code == 0, whole.err);
  CHECK(whole.err.find("NCCL_ASYNC_ERROR_HANDLING has no effect") != std::string::npos);
  CHECK(whole.err.find("a GPU and 1 thread each") != std::string::npos);
  CHECK(whole.err.find("Fake GPU of tests") != std::string::npos);
  check_same_result(tiny.file("gpu"), tiny.file("cpu"));

  for (const char* fault : {"kill@step=5,rank=1", "kill@step=5,rank=0,phase=optimizer"}) {
    CAPTURE(fault);
    auto more = there;
    more.insert(more.end(), {"--chaos", fault});
    const auto killed = tiny.train("killed", on_gpus, more, gpu_environment());
    REQUIRE_MESSAGE(killed.exit_code == 0, killed.err);
    check_same_result(tiny.file("killed"), tiny.file("cpu"));
    const auto names = event_names(tiny.file("killed"));
    CHECK(std::count(names.begin(), names.end(), "death") == 1);
    CHECK(std::count(names.begin(), names.end(), "reload") == 0);
    const auto lines = events(tiny.file("killed"));
    REQUIRE_FALSE(lines.empty());
    CHECK(json::find_number(lines.back(), "lost_steps") == 0);
  }
}

TEST_CASE("auto takes GPUs that are there; a trainer killed from outside goes on from its memory") {
  const TinyRun tiny;
  const GpuCluster cluster(tiny, 2);
  auto arguments = tiny.train_arguments("gpu", {{"max_steps", "40"}});
  arguments.insert(arguments.end(), {"--address", cluster.address()});
  BackgroundCommand run(arguments, tiny.options(gpu_environment()));
  REQUIRE_MESSAGE(run.wait_for_output("step 3/40 ", seconds(30)), run.output());
  const auto victims = trainers(run_id(run.output()), 1);
  REQUIRE(victims.size() == 1);
  ::kill(victims[0], SIGKILL);
  CHECK_MESSAGE(run.wait(seconds(60)) == 0, run.output());
  CHECK(run.output().find("a GPU and 1 thread each") != std::string::npos);
  CHECK(event_names(tiny.file("gpu")).back() == "recovered");
}

// The tests' NVML beside it: so many GPUs, each with a name of its own.
std::map<std::string, std::string> environment_with_devices(int gpus) {
  auto environment = gpu_environment();
  const std::string program = troupe_program();
  environment["LD_LIBRARY_PATH"] = program.substr(0, program.rfind("/bin/")) + "/fake_gpus";
  environment["TROUPE_FAKE_GPUS"] = std::to_string(gpus);
  return environment;
}

// Until `text` stands so often in what the run writes.
bool wait_for_count(BackgroundCommand& run, const std::string& text, std::size_t count) {
  const auto found = [&] {
    std::size_t times = 0;
    for (std::size_t at = run.output().find(text); at != std::string::npos;
         at = run.output().find(text, at + 1))
      ++times;
    return times;
  };
  for (int step = 1; found() < count; ++step) {
    // Every step is a line.
    if (!run.wait_for_output(fmt::format("step {}/", step), seconds(30))) return false;
  }
  return found() >= count;
}

void kill_rank(const BackgroundCommand& run, int rank) {
  const auto victims = trainers(run_id(run.output()), rank);
  REQUIRE(victims.size() == 1);
  ::kill(victims[0], SIGKILL);
}

TEST_CASE("a spare of its own GPU takes a killed trainer's rank: no step is lost") {
  const TinyRun tiny;
  const Settings steps = {{"max_steps", "80"}, {"save_steps", "100"}};
  Settings settings = steps, on_cpu = steps;
  on_cpu["troupe.device"] = "cpu";
  tiny.must_train("cpu", on_cpu);
  settings["troupe.device"] = "cuda";
  settings["troupe.spares"] = "1";
  for (const int gpus : {2, 1}) {
    CAPTURE(gpus);
    if (gpus == 1) settings["troupe.gpus_per_worker"] = "0.5";
    const auto environment = environment_with_devices(gpus);
    const GpuCluster cluster(tiny, gpus, environment);
    auto arguments = tiny.train_arguments("gpu", settings);
    arguments.insert(arguments.end(), {"--address", cluster.address()});
    BackgroundCommand run(arguments, tiny.options(environment));
    // On each GPU one, and after a death what was a trainer.
    REQUIRE_MESSAGE(wait_for_count(run, "ready for a rank", static_cast<std::size_t>(gpus)),
                    run.output());
    kill_rank(run, 1);
    REQUIRE_MESSAGE(wait_for_count(run, "ready for a rank", static_cast<std::size_t>(gpus) + 1),
                    run.output());
    kill_rank(run, 0);
    CHECK_MESSAGE(run.wait(seconds(60)) == 0, run.output());
    check_same_result(tiny.file("gpu"), tiny.file("cpu"));
    const auto names = event_names(tiny.file("gpu"));
    CHECK(std::count(names.begin(), names.end(), "spare") == 2);
    CHECK(std::count(names.begin(), names.end(), "respawn") == 0);
    CHECK(std::count(names.begin(), names.end(), "recovered") == 2);
    for (const auto& event : events(tiny.file("gpu"))) {
      if (json::find_string(event, "event") == "recovered")
        CHECK(json::find_number(event, "lost_steps") == 0);
    }
  }
}

TEST_CASE("on a GPU that takes one process a spare says so, and the trainer is started again") {
  const TinyRun tiny;
  auto environment = environment_with_devices(2);
  environment["TROUPE_FAKE_CUDA_EXCLUSIVE"] = tiny.path();
  const GpuCluster cluster(tiny, 2, environment);
  auto arguments = tiny.train_arguments("gpu", {{"max_steps", "200"},
                                                {"save_steps", "200"},
                                                {"troupe.device", "cuda"},
                                                {"troupe.spares", "1"}});
  arguments.insert(arguments.end(), {"--address", cluster.address()});
  BackgroundCommand run(arguments, tiny.options(environment));
  REQUIRE_MESSAGE(wait_for_count(run, "a trainer that dies there is started again", 2),
                  run.output());
  CHECK(run.output().find("exclusive compute mode") != std::string::npos);
  kill_rank(run, 1);
  CHECK_MESSAGE(run.wait(seconds(60)) == 0, run.output());
  const auto names = event_names(tiny.file("gpu"));
  CHECK(std::count(names.begin(), names.end(), "spare") == 0);
  CHECK(std::count(names.begin(), names.end(), "respawn") == 1);
  CHECK(names.back() == "recovered");
}

TEST_CASE("a trainer that loses its GPU says so and ends; the next one loses no step") {
  const TinyRun tiny;
  const std::string losing = tiny.file("lose-a-gpu");
  auto environment = gpu_environment();
  environment["TROUPE_FAKE_CUDA_LOSE"] = losing;
  const GpuCluster cluster(tiny, 2, environment);
  auto arguments = tiny.train_arguments("gpu", {{"max_steps", "60"}, {"troupe.device", "cuda"}});
  arguments.insert(arguments.end(), {"--address", cluster.address()});
  BackgroundCommand run(arguments, tiny.options(gpu_environment()));
  REQUIRE_MESSAGE(run.wait_for_output("step 3/60 ", seconds(30)), run.output());
  write(losing, "");
  CHECK_MESSAGE(run.wait(seconds(60)) == 0, run.output());
  CHECK_FALSE(exists(losing));
  CHECK_MESSAGE(
      run.output().find("its device is lost: GPU 0 (Fake GPU of tests)") != std::string::npos,
      run.output());
  const auto lines = events(tiny.file("gpu"));
  REQUIRE_FALSE(lines.empty());
  CHECK(event_names(tiny.file("gpu")).back() == "recovered");
  CHECK(json::find_number(lines.back(), "lost_steps") == 0);
}

TEST_CASE("GPUs that are not there, or too few: one sentence with the way out, or the CPU") {
  const TinyRun tiny;
  const auto missing = tiny.train("out", {{"troupe.device", "cuda"}}, {},
                                  {{"TROUPE_CUDA_LIBRARY", "/nowhere/libtroupe_cuda.so"}});
  CHECK(missing.exit_code != 0);
  CHECK_MESSAGE(
      missing.err.find("troupe.device=cuda: no GPU can be used: /nowhere/") != std::string::npos,
      missing.err);
  CHECK(missing.err.find("troupe.device=cpu") != std::string::npos);
  // Before anything else was done.
  CHECK(missing.err.find("tokenizer") == std::string::npos);

  const GpuCluster cluster(tiny, 1);
  const std::vector<std::string> there = {"--address", cluster.address()};
  const auto few = tiny.train("out", {{"troupe.device", "cuda"}}, there, gpu_environment());
  CHECK(few.exit_code != 0);
  CHECK_MESSAGE(
      few.err.find("2 trainers need a GPU each, and the nodes offer 1") != std::string::npos,
      few.err);
  const auto cpu = tiny.train("out", {{"max_steps", "1"}}, there, gpu_environment());
  CHECK_MESSAGE(cpu.exit_code == 0, cpu.err);
  CHECK_MESSAGE(cpu.err.find("notice: the run is on CPUs (troupe.device=auto): 2 trainers need") !=
                    std::string::npos,
                cpu.err);
}

}  // namespace
}  // namespace troupe::tests
