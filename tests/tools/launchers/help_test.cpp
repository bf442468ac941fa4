// The help of every launcher: what it lists is taken, what it says is refused is refused, and its
// examples can be read.

#include <unistd.h>
#include <wordexp.h>

#include <filesystem>
#include <set>

#include "tests/tools/launchers/launcher_world.h"

namespace troupe::tools::help_tests {
namespace {

using namespace tools::tests;

const std::vector<Words> kHelps{{"torchrun"},
                                {"deepspeed"},
                                {"ds"},
                                {"accelerate"},
                                {"accelerate", "launch"},
                                {"accelerate-launch"},
                                {"accelerate", "config"},
                                {"accelerate-config"},
                                {"accelerate", "config", "default"},
                                {"accelerate", "merge-weights"},
                                {"llamafactory-cli"},
                                {"lmf"},
                                {"llamafactory-cli", "train"},
                                {"axolotl"},
                                {"axolotl", "train"},
                                {"axolotl", "preprocess"},
                                {"axolotl", "merge-lora"},
                                {"axolotl", "merge-sharded-fsdp-weights"},
                                {"aitraining"},
                                {"autotrain"},
                                {"aitraining", "llm"},
                                {"python3", "-m", "torch.distributed.run"}};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string help_of(LauncherWorld& world, const Words& words, const char* flag = "--help") {
  const auto result = world.interpret(with(words, {flag}));
  INFO(result.status().to_string());
  REQUIRE(result.ok());
  REQUIRE(std::holds_alternative<Answer>(result->what));
  const auto& answer = std::get<Answer>(result->what);
  CHECK(answer.exit_code == 0);
  return answer.text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return lines;
}

// "  -m, --module   text", "  --nnodes N|MIN:MAX   text": the flag, and whether a value is shown.
std::vector<std::pair<std::string, bool>> listed_flags(const std::string& help) {
  std::vector<std::pair<std::string, bool>> flags;
  const auto names = std::min(help.find("\nTaken, "), help.find("\nRefused here"));
  for (const std::string& line : lines_of(help.substr(0, names))) {
    std::string row = line;
    if (row.starts_with("  -") && row.size() > 6 && row.substr(4, 2) == ", ") {
      row = "  " + row.substr(6);
    }
    if (!row.starts_with("  --")) continue;
    const std::string left = row.substr(2, row.find("  ", 2) - 2);
    const auto space = left.find(' ');
    flags.emplace_back(left.substr(0, space), space != std::string::npos);
  }
  return flags;
}

Words names_behind(const std::string& help, const std::string& intro) {
  const auto at = help.find(intro + ": ");
  if (at == std::string::npos) return {};
  std::string list = help.substr(at + intro.size() + 2);
  list = list.substr(0, list.find("\n\n"));
  Words names;
  std::string name;
  for (const char c : list + ",") {
    if (c == ',') {
      names.push_back(std::exchange(name, {}));
    } else if (c != ' ' && c != '\n') {
      name += c;
    }
  }
  return names;
}

// A folder to be in, with the files that the examples name.
class ExampleFolder {
 public:
  explicit ExampleFolder(LauncherWorld& world) : before_(std::filesystem::current_path()) {
    for (const char* name : {"train.py", "src/train.py"}) world.put(name, "import torch\n");
    world.put("package/train.py", "import torch\n");
    world.put("x.yaml", "stage: sft\n");
    world.put("config.yml", "base_model: tiny\noutput_dir: out\n");
    world.put("hosts", "worker-1 slots=4\nworker-2 slots=4\n");
    world.put("ds_config.json", "{}");
    world.put("fsdp.yaml",
              "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 2\n");
    std::filesystem::current_path(world.path("."));
  }
  ~ExampleFolder() { std::filesystem::current_path(before_); }

 private:
  const std::filesystem::path before_;
};

Words shell_words(const std::string& line) {
  wordexp_t found{};
  REQUIRE(::wordexp(line.c_str(), &found, WRDE_NOCMD) == 0);
  Words words(found.we_wordv, found.we_wordv + found.we_wordc);
  ::wordfree(&found);
  return words;
}

Words examples_of(const std::string& help) {
  const std::string heading = "\nExamples:\n";
  const auto at = help.find(heading);
  if (at == std::string::npos) return {};
  Words examples;
  for (const std::string& line : lines_of(help.substr(at + heading.size()))) {
    if (!line.starts_with("  ")) break;
    examples.push_back(line.substr(2));
  }
  return examples;
}

TEST_CASE("every launcher and its commands have help, on --help and -h, and a version") {
  LauncherWorld world;
  for (const Words& words : kHelps) {
    CAPTURE(words.front());
    CAPTURE(words.back());
    const std::string help = help_of(world, words);
    CHECK(contains(help, "Usage: "));
    CHECK(contains(help, "Carried out by Troupe"));
    CHECK(help_of(world, words, "-h") == help);
    for (const std::string& line : lines_of(help)) CHECK_MESSAGE(line.size() <= 130, line);
  }
  for (const char* name : {"torchrun", "deepspeed", "accelerate", "llamafactory-cli", "axolotl",
                           "aitraining", "accelerate-launch"}) {
    CHECK(world.troupe({name, "--version"}).words == Words{"version"});
  }
}

TEST_CASE("help lists no flag that is refused, and names those that are") {
  LauncherWorld world;
  int listed = 0, refused = 0;
  for (const Words& words :
       {Words{"torchrun"}, Words{"deepspeed"}, Words{"accelerate", "launch"},
        Words{"accelerate", "config"}, Words{"accelerate", "config", "default"}}) {
    CAPTURE(words.front());
    const std::string help = help_of(world, words);
    for (const auto& [flag, has_value] : listed_flags(help)) {
      CAPTURE(flag);
      if (flag == "--help" || flag == "--version") continue;
      ++listed;
      // The words end with --help, so that nothing but the flag itself can be wrong.
      Words line = with(words, {flag});
      if (has_value) line.push_back("1");
      CHECK(world.interpret(with(line, {"--help"})).ok());
      if (!has_value) CHECK_FALSE(world.interpret(with(words, {flag + "=1", "--help"})).ok());
    }
    for (const std::string& flag : names_behind(help, "Taken, and without effect here")) {
      CAPTURE(flag);
      CHECK((world.interpret(with(words, {flag, "--help"})).ok() ||
             world.interpret(with(words, {flag, "1", "--help"})).ok()));
    }
    for (const std::string& flag :
         names_behind(help, "Refused here, each with what to do instead")) {
      CAPTURE(flag);
      ++refused;
      const auto bare = world.interpret(with(words, {flag, "--help"}));
      const auto valued = world.interpret(with(words, {flag, "1", "--help"}));
      CHECK((bare.status().code() == Code::kUnsupported ||
             valued.status().code() == Code::kUnsupported));
    }
  }
  CHECK(listed > 80);
  CHECK(refused > 25);
}

TEST_CASE("commands that help lists are carried out, and those that it calls refused are not") {
  LauncherWorld world;
  for (const char* name : {"accelerate", "llamafactory-cli", "axolotl"}) {
    CAPTURE(name);
    const auto refused =
        names_behind(help_of(world, {name}), "Refused here, each with what to do instead");
    CHECK(refused.size() >= 4);
    for (const std::string& command : refused) {
      CAPTURE(command);
      CHECK(world.interpret({name, command}).status().code() == Code::kUnsupported);
    }
  }
}

TEST_CASE("the examples of every help can be read") {
  LauncherWorld world;
  const ExampleFolder folder(world);
  std::size_t examples = 0;
  for (const Words& words : kHelps) {
    for (const std::string& example : examples_of(help_of(world, words))) {
      CAPTURE(example);
      ++examples;
      const auto result = world.interpret(shell_words(example));
      CHECK_MESSAGE(result.ok(), result.status().to_string());
    }
  }
  CHECK(examples > 25);
}

TEST_CASE("--help behind a command that is none does not hide that") {
  LauncherWorld world;
  CHECK(world.troupe({"aitraining", "foo", "--help"}).words ==
        Words{"train", "--format=aitraining", "foo"});
}

}  // namespace
}  // namespace troupe::tools::help_tests
