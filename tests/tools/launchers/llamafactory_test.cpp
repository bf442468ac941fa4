// llamafactory-cli's command line.

#include "tests/tools/launchers/launcher_world.h"

namespace troupe::tools::llamafactory_tests {
namespace {

using namespace tools::tests;

TEST_CASE("its commands are commands of ours") {
  LauncherWorld world;
  for (const char* name : {"llamafactory-cli", "lmf", "/opt/bin/llamafactory-cli"}) {
    CAPTURE(name);
    CHECK(world.troupe({name, "train", "x.yaml", "learning_rate=1e-4", "--do_train"}).words ==
          Words{"train", "x.yaml", "learning_rate=1e-4", "--do_train"});
    CHECK(world.troupe({name, "export", "x.yaml"}).words == Words{"export", "x.yaml"});
    CHECK(world.troupe({name, "chat", "x.yaml"}).words == Words{"chat", "x.yaml"});
    CHECK(world.troupe({name, "env"}).words == Words{"env"});
    CHECK(world.troupe({name, "version"}).words == Words{"version"});
  }
  CHECK(world.troupe({"python", "-m", "llamafactory.cli", "train", "x.yaml"}).words ==
        Words{"train", "x.yaml"});
  for (const Words& words : {Words{"llamafactory-cli"}, Words{"llamafactory-cli", "help"},
                             Words{"llamafactory-cli", "--help"}}) {
    const auto help = world.interpret(words);
    REQUIRE(help.ok());
    CHECK(std::get<Answer>(help->what).exit_code == 0);
    CHECK(contains(std::get<Answer>(help->what).text, "llamafactory-cli train FILE"));
  }
}

TEST_CASE("what is not here is refused by name, with the way out") {
  LauncherWorld world;
  for (const char* command : {"api", "webchat", "webui", "eval"}) {
    const auto result = world.interpret({"llamafactory-cli", command, "x.yaml"});
    CHECK(result.status().code() == Code::kUnsupported);
    CHECK(contains(result.status().message(), std::string("llamafactory-cli ") + command + ": "));
  }
  CHECK(contains(world.refusal({"llamafactory-cli", "tarin", "x.yaml"}),
                 "Unknown command: tarin; did you mean 'train'?"));
  CHECK(contains(world.refusal({"llamafactory-cli", "tarin", "x.yaml"}), "did you mean 'train'?"));
  CHECK(contains(world.refusal({"llamafactory-cli", "train"}), "give a .yaml or .json file"));
  CHECK(contains(world.refusal({"llamafactory-cli", "train", "..."}), "the argument '...'"));
  world.set("USE_V1", "1");
  CHECK(contains(world.refusal({"llamafactory-cli", "train", "x.yaml"}), "USE_V1"));
}

}  // namespace
}  // namespace troupe::tools::llamafactory_tests
