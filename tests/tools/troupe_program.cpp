#include "tests/tools/troupe_program.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

namespace troupe::tests {
namespace {

std::string troupe() { return bin_dir() + "/troupe"; }

}  // namespace

TroupeHome::TroupeHome() {
  options_.timeout = kPatience;
  options_.environment = {{"HOME", directory_.path()}, {"TROUPE_ADDRESS", ""}, {"MASTER_PORT", ""}};
}

CommandOptions TroupeHome::options() const { return options_; }

CommandResult TroupeHome::run(const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv = {troupe()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  auto result = run_command(argv, options_);
  CHECK_FALSE(result.timed_out);
  return result;
}

json::Value TroupeHome::run_json(std::vector<std::string> arguments) const {
  arguments.push_back("--json");
  const auto result = run(arguments);
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  CHECK(result.out.find('\n') == result.out.size() - 1);
  return json::parse(result.out, arguments.front()).value();
}

std::vector<std::string> TroupeHome::things() const {
  std::vector<std::string> names;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(file(".troupe"), ec)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool TroupeHome::eventually(const std::vector<std::string>& arguments,
                            const std::string& text) const {
  std::vector<std::string> argv = arguments;
  argv.push_back("--json");
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < until) {
    if (run(argv).out.find(text) != std::string::npos) return true;
  }
  return false;
}

std::unique_ptr<BackgroundCommand> start_troupe(const TroupeHome& home,
                                                const std::vector<std::string>& arguments,
                                                const std::vector<std::string>& prefix) {
  std::vector<std::string> argv = prefix;
  argv.push_back(troupe());
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return std::make_unique<BackgroundCommand>(argv, home.options());
}

RunningHead start_head(const TroupeHome& home, const std::vector<std::string>& arguments,
                       const std::vector<std::string>& prefix) {
  std::vector<std::string> argv = {"head", "--json", "--log-level", "off"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  RunningHead head{start_troupe(home, argv, prefix), {}, 0};
  REQUIRE_MESSAGE(head.process->wait_for_output("}\n", kPatience), head.process->output());
  const std::string output = head.process->output();  // with what it says aloud before
  const auto line = json::parse(output.substr(output.find('{')), "head").value();
  head.host = json::find_string(line, "address").value();
  head.port = static_cast<std::uint16_t>(json::find_integer(line, "port").value());
  CHECK(json::find_integer(line, "pid").value() == head.process->pid());
  return head;
}

std::unique_ptr<BackgroundCommand> start_worker(const TroupeHome& home, const RunningHead& head,
                                                const std::vector<std::string>& arguments,
                                                const std::vector<std::string>& prefix) {
  std::vector<std::string> argv = {"worker", "--address", head.address()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  auto worker = start_troupe(home, argv, prefix);
  REQUIRE_MESSAGE(worker->wait_for_output("joined the cluster", kPatience), worker->output());
  return worker;
}

bool is_running(pid_t pid) { return ::kill(pid, 0) == 0; }

bool in_time(const std::function<bool()>& condition, std::chrono::seconds limit) {
  const auto by = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > by) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

}  // namespace troupe::tests
