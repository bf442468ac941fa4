// Tells the scripts whose training Troupe carries out from those that it starts as they are.

#include "tools/launchers/script.h"

#include "tests/tools/launchers/launcher_world.h"

namespace troupe::tools::script_tests {
namespace {

using namespace tools::tests;

struct Judged {
  Status status;
  std::optional<OwnTraining> training;
};

Judged judge(LauncherWorld& world, const Script& script) {
  const MapEnvironment environment;
  auto result = own_training(script, {.environment = environment, .files = world.files()});
  if (!result.ok()) return {result.status(), {}};
  return {{}, *result};
}

TEST_CASE("a script that imports a training package is ours, another is the user's") {
  LauncherWorld world;
  for (const char* line :
       {"import llamafactory.launcher", "from llamafactory.train.tuner import run_exp",
        "import axolotl.cli.train as t\r", "from llmtuner import run_exp"}) {
    CAPTURE(line);
    const auto path = world.put("train.py", std::string("# a comment\n") + line + "\nmain()\n");
    const auto judged = judge(world, {.name = path, .arguments = {"x.yaml"}});
    REQUIRE(judged.training);
    CHECK(judged.training->arguments == Words{"x.yaml"});
    CHECK(contains(judged.training->notices.at(0), "Troupe trains in its place"));
  }
  for (const char* line : {"import torch", "import llamafactory_extras", "# import llamafactory",
                           "print('import axolotl')", "from mine import llamafactory"}) {
    CAPTURE(line);
    const auto path = world.put("train.py", std::string(line) + "\n");
    const auto judged = judge(world, {.name = path, .arguments = {"--stage", "sft"}});
    CHECK(judged.status.ok());
    CHECK_FALSE(judged.training);
  }
}

TEST_CASE("one that is not there is a training by its arguments") {
  LauncherWorld world;
  const std::string absent = world.path("src/train.py");
  for (const Words& arguments : {Words{"x.yaml"}, Words{"x.json", "lr=1"}, Words{"--stage", "sft"},
                                 Words{"--do-train"}, Words{"--model_name_or_path=m"}}) {
    CHECK(judge(world, {.name = absent, .arguments = arguments}).training);
  }
  for (const Words& arguments : {Words{}, Words{"--lr", "1"}, Words{"data.txt"}}) {
    const auto judged = judge(world, {.name = absent, .arguments = arguments});
    CHECK(judged.status.code() == Code::kNotFound);
    CHECK(contains(judged.status.message(), absent + " is not there"));
  }
}

TEST_CASE("a script that only names the packages is a program of the user's") {
  LauncherWorld world;
  for (const char* text :
       {"\"\"\"\nfrom axolotl.train import x\n\"\"\"\nimport sys\n",
        "from llamafactory.data import y\n",
        "try:\n    import axolotl.cli.train\nexcept ImportError:\n    pass\n", "import axolotl\n",
        "from llamafactory import data\n", "from axolotl_tools.train import z\n"}) {
    CAPTURE(text);
    const auto judged =
        judge(world, {.name = world.put("evaluate.py", text), .arguments = {"cfg.yaml"}});
    CHECK(judged.status.ok());
    CHECK_FALSE(judged.training);
  }
  const auto ours = world.put("mine.py", "\"\"\"Trains.\"\"\"\nfrom llmtuner import run_exp\n");
  CHECK(judge(world, {.name = ours, .arguments = {"cfg.yaml"}}).training);
  // A mistyped name is no training.
  const auto absent = judge(world, {.name = "evalaute.py", .arguments = {"cfg.yaml"}});
  CHECK(absent.status.code() == Code::kNotFound);
  CHECK(judge(world, {.name = "src/train.py", .arguments = {"cfg.yaml"}}).training);
}

TEST_CASE("modules, programs, and what launchers add") {
  LauncherWorld world;
  for (const char* module : {"axolotl.cli.train", "llamafactory.launcher"}) {
    CHECK(judge(world, {.name = module, .module = true, .arguments = {"c.yaml"}}).training);
  }
  CHECK_FALSE(
      judge(world, {.name = "mine.train", .module = true, .arguments = {"c.yaml"}}).training);
  CHECK_FALSE(
      judge(world, {.name = "./absent", .no_python = true, .arguments = {"c.yaml"}}).training);
  for (const Words& arguments : {Words{"--local_rank=1", "x.yaml", "--local-rank", "2"},
                                 Words{"x.yaml", "--local-rank=2"}}) {
    const auto judged = judge(world, {.name = world.path("train.py"), .arguments = arguments});
    REQUIRE(judged.training);
    CHECK(judged.training->arguments == Words{"x.yaml"});
  }
}

TEST_CASE("a training's literal '...' is refused, a user's program gets every argument") {
  LauncherWorld world;
  const auto ours = world.put("train.py", "import llamafactory.launcher\n");
  const Script trainings[]{{.name = ours, .arguments = {"x.yaml", "..."}},
                           {.name = world.path("src/train.py"), .arguments = {"x.yaml", "..."}},
                           {.name = "axolotl.cli.train", .module = true, .arguments = {"..."}}};
  for (const Script& script : trainings) {
    const auto judged = judge(world, script);
    CHECK(judged.status.code() == Code::kInvalidArgument);
    CHECK(contains(judged.status.message(), "the argument '...'"));
  }
  const Words arguments{"--pad_token", "<pad>", "</s>", "..."};
  const Script programs[]{{.name = world.script(), .arguments = arguments},
                          {.name = "mine.train", .module = true, .arguments = arguments},
                          {.name = "./simulate", .no_python = true, .arguments = arguments}};
  for (const Script& script : programs) {
    const auto judged = judge(world, script);
    CHECK(judged.status.ok());
    CHECK_FALSE(judged.training);
  }
  const auto special =
      judge(world, {.name = ours, .arguments = {"x.yaml", "pad_token=<pad>", "<s>"}});
  REQUIRE(special.training);
  CHECK(special.training->arguments == Words{"x.yaml", "pad_token=<pad>", "<s>"});
}

TEST_CASE("python with a training's script or module trains, and else runs as it is") {
  LauncherWorld world;
  const auto ours = world.put("train.py", "from llamafactory.train import x\n");
  CHECK(world.troupe({"python", "-u", ours, "x.yaml"}).words == Words{"train", "x.yaml"});
  CHECK(world.troupe({"/usr/bin/python3.11", "-m", "axolotl.cli.train", "c.yaml"}).words ==
        Words{"train", "c.yaml"});
  const auto plain = world.ranks({"python3", "-c", "print(1)"});
  CHECK(plain.program == Words{"python3", "-c", "print(1)"});
  CHECK_FALSE(plain.substitutes_local_rank);
  CHECK(world.ranks({"/bin/echo", "$local_rank"}).program == Words{"/bin/echo", "$local_rank"});
}

}  // namespace
}  // namespace troupe::tools::script_tests
