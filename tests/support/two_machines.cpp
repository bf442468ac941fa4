#include "tests/support/two_machines.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/command.h"

namespace troupe::tests {

using std::string;

TwoMachines::TwoMachines() : id_(std::to_string(::getpid())) {}

std::unique_ptr<TwoMachines> TwoMachines::make() {
  auto machines = std::unique_ptr<TwoMachines>(new TwoMachines);
  const string a = machines->name(0), b = machines->name(1);
  const string a_end = machines->interface(0), b_end = machines->interface(1);
  for (const auto& step : std::vector<std::vector<string>>{
           {"ip", "netns", "add", a},
           {"ip", "netns", "add", b},
           {"ip", "link", "add", a_end, "netns", a, "type", "veth", "peer", "name", b_end, "netns",
            b},
           {"ip", "-n", a, "addr", "add", machines->address(0) + "/24", "dev", a_end},
           {"ip", "-n", b, "addr", "add", machines->address(1) + "/24", "dev", b_end},
           {"ip", "-n", a, "link", "set", a_end, "up"},
           {"ip", "-n", b, "link", "set", b_end, "up"},
           {"ip", "-n", a, "link", "set", "lo", "up"},
           {"ip", "-n", b, "link", "set", "lo", "up"}}) {
    const auto result = run_command(step);
    if (result.exit_code != 0) {
      std::printf("SKIPPED: network namespaces cannot be made here: %s\n", result.err.c_str());
      return nullptr;
    }
  }
  return machines;
}

TwoMachines::~TwoMachines() {
  for (const int side : {0, 1}) run_command({"ip", "netns", "del", name(side)});
}

string TwoMachines::address(int side) const {
  return "10.213." + std::to_string(::getpid() % 250) + "." + std::to_string(side + 1);
}

std::vector<string> TwoMachines::inside(int side) const {
  return {"ip", "netns", "exec", name(side)};
}

std::vector<string> TwoMachines::inside(int side, const std::vector<string>& command) const {
  auto argv = inside(side);
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

void TwoMachines::cut() const {
  run_command({"ip", "-n", name(1), "link", "set", interface(1), "down"});
}

void TwoMachines::join() const {
  run_command({"ip", "-n", name(1), "link", "set", interface(1), "up"});
}

std::uint64_t TwoMachines::bytes_sent(int side) const {
  const auto shown = run_command(
      inside(side, {"cat", "/sys/class/net/" + interface(side) + "/statistics/tx_bytes"}));
  return std::strtoull(shown.out.c_str(), nullptr, 10);
}

string TwoMachines::name(int side) const { return "troupe-test-" + id_ + (side == 0 ? "a" : "b"); }

string TwoMachines::interface(int side) const { return "v" + id_ + (side == 0 ? "a" : "b"); }

}  // namespace troupe::tests
