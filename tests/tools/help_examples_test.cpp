// Every example in the help of a command is read as that command reads it, as far as nothing is
// started.

#include <unistd.h>
#include <wordexp.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/base/random.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"
#include "tools/commands/registry.h"
#include "tools/commands/run.h"
#include "tools/commands/train_flags.h"
#include "train/config/load.h"

namespace troupe::tests {
namespace {

using std::string;
using Words = std::vector<string>;

// A folder to be in, with the files that the examples name.
class ExampleFolder {
 public:
  ExampleFolder() : before_(std::filesystem::current_path()) {
    namespace fs = std::filesystem;
    fs::create_directories(directory_.file("examples/train"));
    fs::create_directories(directory_.file("src"));
    fs::copy(source_dir() + "/examples/train/pretrain_tiny.yaml",
             directory_.file("examples/train/pretrain_tiny.yaml"));
    put("x.yaml",
        "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: full\ndataset: d\n"
        "template: alpaca\noutput_dir: out\n");
    put("merge.yaml", "model_name_or_path: m\nadapter_name_or_path: a\nexport_dir: out\n");
    put("hosts", "worker-1 slots=4\nworker-2 slots=4\n");
    for (const char* script : {"train.py", "driver.py"}) put(script, "import torch\n");
    put("src/train.py", "from llamafactory.train.tuner import run_exp\n");
    fs::current_path(directory_.path());
  }
  ~ExampleFolder() { std::filesystem::current_path(before_); }

 private:
  void put(const string& name, const string& text) { std::ofstream(directory_.file(name)) << text; }
  const std::filesystem::path before_;
  TemporaryDirectory directory_;
};

// The command lines of a help's examples, without what is said of them: that stands behind two
// spaces, or in a line of its own.
Words examples_of(const string& help) {
  const string heading = "\nExamples:\n";
  const auto at = help.find(heading);
  if (at == string::npos) return {};
  Words examples;
  bool goes_on = false;
  std::istringstream lines(help.substr(at + heading.size()));
  for (string line; std::getline(lines, line) && line.starts_with("  ");) {
    line = line.substr(std::min(line.find_first_not_of(' '), line.size()));
    line = line.substr(0, line.find("  "));
    const bool continued = line.ends_with("\\");
    if (continued) line.pop_back();
    if (goes_on) {
      examples.back() += line;
    } else if (continued || line.starts_with("troupe ") || line.starts_with("srun ")) {
      examples.push_back(line);
    }
    goes_on = continued;
  }
  return examples;
}

// As a shell would have them, without variables and launchers before the command.
Words words_of(const string& line) {
  wordexp_t found{};
  REQUIRE(::wordexp(line.c_str(), &found, WRDE_NOCMD) == 0);
  Words words(found.we_wordv, found.we_wordv + found.we_wordc);
  ::wordfree(&found);
  const auto troupe = std::find(words.begin(), words.end(), "troupe");
  REQUIRE(troupe != words.end());
  return {troupe + 1, words.end()};
}

Status read_example(const string& command, Words words, const Environment& environment,
                    FileSystem& files) {
  if (!words.empty() && words.front() == "--") words.erase(words.begin());
  if (command == "run") {
    if (words == Words{"--launchers"}) return {};
    return tools::read_run_words(words, {.environment = environment, .files = files}).status();
  }
  train::LoadOptions options{.check_paths = false};
  if (command == "export") options.purpose = train::LoadPurpose::kExport;
  if (command != "export" && command != "train" && command != "plan" && command != "data")
    return {};
  const auto take = [&](const tools::TrainFlag& flag) {
    const auto at = std::find(words.begin(), words.end(), flag.name);
    if (at != words.end()) words.erase(at, at + (*flag.type == '\0' ? 1 : 2));
  };
  for (const tools::TrainFlag& flag : tools::train_flags::kAll) take(flag);
  for (const tools::TrainFlag& flag : tools::train_flags::kData) take(flag);
  return train::load_train_config(words, environment, files, options).status();
}

TEST_CASE("the examples in every help are command lines that can be read") {
  const TroupeHome home;
  const ExampleFolder folder;
  PosixFileSystem files;
  SystemRandom random;
  const MapEnvironment environment({{"HOME", home.path()}});
  std::istringstream in;
  std::ostringstream out, err;
  const auto context = [&] {
    return tools::CommandContext{.files = files,
                                 .environment = environment,
                                 .random = random,
                                 .in = in,
                                 .out = out,
                                 .err = err};
  };
  tools::CommandContext of_list = context();
  REQUIRE(tools::troupe_main(of_list, {"help"}) == 0);
  std::istringstream list(out.str());
  std::size_t commands = 0, examples = 0;
  bool among = false;
  for (string line; std::getline(list, line);) {
    if (line == "Subcommands:") among = true;
    if (!among || !line.starts_with("  ") || line.starts_with("   ")) continue;
    const string command = line.substr(2, line.find(' ', 2) - 2);
    CAPTURE(command);
    ++commands;
    out.str("");
    tools::CommandContext of_help = context();
    REQUIRE(tools::troupe_main(of_help, {"help", command}) == 0);
    const Words lines = examples_of(out.str());
    CHECK_FALSE(lines.empty());
    for (const string& example : lines) {
      CAPTURE(example);
      ++examples;
      const Words words = words_of(example);
      CHECK(words.front() == command);
      err.str("");
      tools::CommandContext of_example = context();
      CHECK_MESSAGE(!tools::check_arguments(of_example, words).has_value(), err.str());
      const Status read =
          read_example(command, {words.begin() + 1, words.end()}, environment, files);
      CHECK_MESSAGE(read.ok(), read.to_string());
    }
  }
  CHECK(commands >= 28);
  CHECK(examples >= 70);
}

}  // namespace
}  // namespace troupe::tests
