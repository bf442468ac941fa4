// Nodes with GPUs, as `troupe nodes`, `submit` and `why` show them. The driver's library is
// a fake one (tests/scheduler/node/fake_nvml_library.cpp).

#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

void give_gpus(TroupeHome& home, const std::string& count) {
  home.more().environment["LD_LIBRARY_PATH"] = bin_dir() + "/../fake_gpus";
  home.more().environment["TROUPE_FAKE_GPUS"] = count;
}

TEST_CASE("a node's GPUs are listed with who holds them, and jobs see their own alone") {
  TroupeHome home;
  give_gpus(home, "2");
  auto head = start_head(home);
  auto worker = start_worker(home, head, {"--num-cpus", "2"});
  const std::string first = "GPU-00000000-0000-0000-0000-000000000000";
  const std::string second = "GPU-00000001-0000-0000-0000-000000000000";

  const auto idle = home.run({"nodes"});
  CHECK_MESSAGE(contains(idle.out, "0/2"), idle.out, idle.err);
  CHECK(contains(idle.out, "NVIDIA H200"));
  CHECK(contains(idle.out, first));
  CHECK(contains(idle.out, second));
  CHECK(contains(idle.out, "free"));

  BackgroundCommand job(
      {bin_dir() + "/troupe", "submit", "--name", "holder", "--num-gpus", "1", "--", "sh", "-c",
       "echo sees $CUDA_VISIBLE_DEVICES.; exec tail -f /dev/null"},
      home.options());
  REQUIRE_MESSAGE(job.wait_for_output("-0000-000000000000.", kPatience), job.output());
  CHECK((contains(job.output(), "sees " + first + ".") ||
         contains(job.output(), "sees " + second + ".")));
  const auto held = home.run({"nodes"});
  CHECK_MESSAGE(contains(held.out, "1/2"), held.out);
  CHECK(contains(held.out, "holder"));
  const auto told = home.run_json({"nodes"});
  const auto& gpus = json::find(json::find(told, "nodes")->as_array().front(), "gpus")->as_array();
  REQUIRE(gpus.size() == 2);
  CHECK(json::find_string(gpus[0], "uuid") == first);
  CHECK(json::find_string(gpus[0], "compute_capability") == "9.0");
  CHECK(json::find(gpus[0], "held_by")->as_array().size() +
            json::find(gpus[1], "held_by")->as_array().size() ==
        1);
  REQUIRE(json::find(gpus[0], "links")->as_array().size() == 1);
  CHECK(json::find_string(json::find(gpus[0], "links")->as_array()[0], "uuid") == second);

  // More than there ever are is refused; what is held is waited for.
  const auto refused = home.run({"submit", "--num-gpus", "3", "--", "true"});
  CHECK(refused.exit_code != 0);
  CHECK(contains(refused.err, "the cluster can never hold it: needs GPU 3; "));
  CHECK(contains(refused.err, "has GPU 1 of 2 free"));
  REQUIRE(home.run({"submit", "--name", "both", "--num-gpus", "2", "--no-wait", "--", "true"})
              .exit_code == 0);
  CHECK(contains(home.run({"why", "both"}).out, "needs GPU 2"));
  CHECK(home.run({"stop"}).exit_code == 0);
}

}  // namespace
}  // namespace troupe::tests
