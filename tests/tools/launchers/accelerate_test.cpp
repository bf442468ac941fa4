// accelerate's sub-commands.

#include "tests/tools/launchers/launcher_world.h"

namespace troupe::tools::accelerate_tests {
namespace {

using namespace tools::tests;

TEST_CASE("env, merge-weights, help") {
  LauncherWorld world;
  CHECK(world.troupe({"accelerate", "env"}).words == Words{"env"});
  CHECK(world.troupe({"accelerate", "env", "--config_file", "x"}).words ==
        Words{"env", "--config_file", "x"});
  CHECK(world.troupe({"accelerate", "merge-weights", "in", "out"}).words ==
        Words{"merge", "in", "out"});
  CHECK(world.troupe({"python", "-m", "accelerate.commands.accelerate_cli", "env"}).words ==
        Words{"env"});
  const auto none = world.interpret({"accelerate"});
  REQUIRE(none.ok());
  CHECK(std::get<Answer>(none->what).exit_code == 1);
  const auto help = world.interpret({"accelerate", "--help"});
  CHECK(std::get<Answer>(help->what).exit_code == 0);
  CHECK(contains(std::get<Answer>(help->what).text, "accelerate launch [flags] SCRIPT"));
}

TEST_CASE("a pickled checkpoint is refused by name") {
  LauncherWorld world;
  (void)world.put("a/.metadata", "x");
  (void)world.put("b/pytorch_model_fsdp_0/.metadata", "x");
  for (const char* folder : {"a", "b"}) {
    CHECK(contains(world.refusal({"accelerate", "merge-weights", world.path(folder), "out"}),
                   ".metadata is pickled"));
  }
  CHECK(contains(world.refusal({"accelerate", "merge-weights", "a", "b", "--unsafe_serialization"}),
                 "never pickled"));
  CHECK(contains(world.refusal({"accelerate", "merge-weights", "a"}), "give CHECKPOINT_DIR"));
}

TEST_CASE("what is not here is refused by name, with the way out") {
  LauncherWorld world;
  for (const char* command : {"estimate-memory", "to-fsdp2", "test", "tpu-config"}) {
    const auto result = world.interpret({"accelerate", command, "x"});
    CHECK(result.status().code() == Code::kUnsupported);
    CHECK(contains(result.status().message(), std::string("accelerate ") + command + ": "));
  }
  CHECK(contains(world.refusal({"accelerate", "lauch"}), "did you mean 'launch'?"));
}

}  // namespace
}  // namespace troupe::tools::accelerate_tests
