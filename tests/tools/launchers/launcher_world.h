#pragma once
// A folder, variables and GPUs that command lines are read in.

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "tools/launchers/invocation.h"

namespace troupe::tools::tests {

using troupe::tests::contains;
using Words = std::vector<std::string>;

class LauncherWorld {
 public:
  int gpus = 0;

  std::string path(const std::string& name) const { return directory_.file(name); }
  // Writes a file and returns its path.
  std::string put(const std::string& name, const std::string& text) {
    const auto slash = name.rfind('/');
    if (slash != std::string::npos) {
      REQUIRE(files_.create_directories(path(name.substr(0, slash))).ok());
    }
    std::ofstream(path(name)) << text;
    return path(name);
  }
  // A script of the user's.
  std::string script() { return put("mine.py", "import torch\nprint('hello')\n"); }
  void set(const std::string& name, const std::string& value) { variables_[name] = value; }
  FileSystem& files() { return files_; }

  Result<Invocation> interpret(const Words& words) {
    auto variables = variables_;
    variables.try_emplace("HOME", path("home"));
    const MapEnvironment environment(variables);
    return tools::interpret(
        words, {.environment = environment, .files = files_, .gpus_here = [this] { return gpus; }});
  }
  std::string refusal(const Words& words) {
    const auto result = interpret(words);
    REQUIRE_FALSE(result.ok());
    return std::string(result.status().message());
  }
  RunOptions ranks(const Words& words) {
    const auto result = interpret(words);
    INFO(result.status().to_string());
    REQUIRE(result.ok());
    notices = result->notices;
    REQUIRE(std::holds_alternative<RankCommand>(result->what));
    return std::get<RankCommand>(result->what).options;
  }
  TroupeCommand troupe(const Words& words) {
    const auto result = interpret(words);
    INFO(result.status().to_string());
    REQUIRE(result.ok());
    notices = result->notices;
    REQUIRE(std::holds_alternative<TroupeCommand>(result->what));
    return std::get<TroupeCommand>(result->what);
  }
  bool noticed(std::string_view text) const {
    for (const std::string& notice : notices) {
      if (contains(notice, text)) return true;
    }
    return false;
  }

  std::vector<std::string> notices;  // of the last ranks() or troupe()

 private:
  troupe::tests::TemporaryDirectory directory_;
  PosixFileSystem files_;
  std::map<std::string, std::string, std::less<>> variables_;
};

}  // namespace troupe::tools::tests
