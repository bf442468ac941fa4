// `troupe train` on a running cluster that has no room for it.

#include <signal.h>

#include "tests/support/runs/tiny_run.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

TEST_CASE("a second run on a full cluster waits for its room; --no-wait refuses it") {
  const TroupeHome home;
  const RunningHead head = start_head(home);
  const auto worker = start_worker(home, head, {"--num-cpus", "2"});
  const TinyRun tiny;
  const auto command = [&](const std::string& output, const Settings& changes,
                           const std::vector<std::string>& more = {}) {
    auto arguments = tiny.train_arguments(output, changes);
    arguments.insert(arguments.end(), {"--address", head.address()});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const auto options = home.options();
  BackgroundCommand first(command("first", {{"max_steps", "100000"}, {"save_steps", "50000"}}),
                          options);
  REQUIRE_MESSAGE(first.wait_for_output("step 3/", kPatience), first.output());

  const auto refused = run_command(command("refused", {}, {"--no-wait"}), options);
  CHECK(refused.exit_code != 0);
  CHECK(refused.err.find("no room now") != std::string::npos);

  BackgroundCommand second(command("second", {}), options);
  REQUIRE_MESSAGE(second.wait_for_output(" wait: needs 2 × (CPU 1) at once", kPatience),
                  second.output());
  const auto why = home.run({"why", tiny.file("second")});
  CHECK_MESSAGE(why.out.find("It waits: Needs 2 × (CPU 1) at once") != std::string::npos, why.out);

  // A run that waits can be stopped: there is nothing to save.
  BackgroundCommand third(command("third", {}), options);
  REQUIRE_MESSAGE(third.wait_for_output(" wait: needs 2 × (CPU 1) at once", kPatience),
                  third.output());
  third.kill(SIGTERM);
  CHECK(third.wait(kPatience) == 143);
  CHECK(third.output().find("told to stop before its first step") != std::string::npos);

  // Room comes when the first one ends: by its folder, as it is named for `troupe why`.
  const auto stopped = home.run({"stop", tiny.file("first")});
  CHECK_MESSAGE(stopped.exit_code == 0, stopped.err);
  CHECK(first.wait(kPatience) == 143);
  CHECK_MESSAGE(second.wait(kPatience) == 0, second.output());
  CHECK(steps_of(tiny.file("second")).size() == 8);
  CHECK(home.run({"stop"}).exit_code == 0);
}

}  // namespace
}  // namespace troupe::tests
