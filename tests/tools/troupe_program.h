#pragma once
// The real program in a home directory of its own.

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "tests/support/command.h"
#include "tests/support/test_data.h"

namespace troupe::tests {

inline constexpr std::chrono::seconds kPatience{30};

class TroupeHome {
 public:
  TroupeHome();
  const std::string& path() const { return directory_.path(); }
  std::string file(const std::string& name) const { return directory_.file(name); }
  std::string token_file() const { return file(".troupe/token"); }
  // HOME is this directory; the caller's cluster variables are not there.
  CommandOptions options() const;
  CommandOptions& more() { return options_; }
  // What `troupe ARGUMENTS` did, to its end.
  CommandResult run(const std::vector<std::string>& arguments) const;
  // `troupe ARGUMENTS --json` that must succeed: its one line.
  json::Value run_json(std::vector<std::string> arguments) const;
  // Names under ~/.troupe, sorted.
  std::vector<std::string> things() const;
  // Runs `troupe ARGUMENTS --json` until its line contains `text`; false after kPatience.
  bool eventually(const std::vector<std::string>& arguments, const std::string& text) const;

 private:
  TemporaryDirectory directory_;
  CommandOptions options_;
};

// A command of `troupe` that runs beside the test. `prefix` goes before it: "ip netns exec …".
std::unique_ptr<BackgroundCommand> start_troupe(const TroupeHome& home,
                                                const std::vector<std::string>& arguments,
                                                const std::vector<std::string>& prefix = {});

struct RunningHead {
  std::unique_ptr<BackgroundCommand> process;
  std::string host;
  std::uint16_t port = 0;
  std::string address() const { return host + ":" + std::to_string(port); }
};
// `troupe head --json ARGUMENTS`, ready.
RunningHead start_head(const TroupeHome& home,
                       const std::vector<std::string>& arguments = {"--address", "127.0.0.1"},
                       const std::vector<std::string>& prefix = {});
// `troupe worker --address HEAD ARGUMENTS`, joined.
std::unique_ptr<BackgroundCommand> start_worker(const TroupeHome& home, const RunningHead& head,
                                                const std::vector<std::string>& arguments = {},
                                                const std::vector<std::string>& prefix = {});

bool is_running(pid_t pid);

// Waits, without a fixed sleep, until a condition of the operating system holds; false after
// `limit`.
bool in_time(const std::function<bool()>& condition, std::chrono::seconds limit = kPatience);

}  // namespace troupe::tests
