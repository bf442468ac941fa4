// Two machines, as network namespaces with a cable between them.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

// Two namespaces; 10.213.N.1 in the first and 10.213.N.2 in the second, on the ends of a veth pair.
class TwoMachines {
 public:
  // Nothing, said aloud, where this user may not make them.
  static std::unique_ptr<TwoMachines> make() {
    auto machines = std::unique_ptr<TwoMachines>(new TwoMachines);
    const string cable = "v" + machines->id_;
    for (const auto& step : std::vector<std::vector<string>>{
             {"ip", "netns", "add", machines->name(0)},
             {"ip", "netns", "add", machines->name(1)},
             {"ip", "link", "add", cable + "a", "netns", machines->name(0), "type", "veth", "peer",
              "name", cable + "b", "netns", machines->name(1)},
             {"ip", "-n", machines->name(0), "addr", "add", machines->address(0) + "/24", "dev",
              cable + "a"},
             {"ip", "-n", machines->name(1), "addr", "add", machines->address(1) + "/24", "dev",
              cable + "b"},
             {"ip", "-n", machines->name(0), "link", "set", cable + "a", "up"},
             {"ip", "-n", machines->name(1), "link", "set", cable + "b", "up"},
             {"ip", "-n", machines->name(0), "link", "set", "lo", "up"},
             {"ip", "-n", machines->name(1), "link", "set", "lo", "up"}}) {
      const auto result = run_command(step);
      if (result.exit_code != 0) {
        std::printf("SKIPPED: network namespaces cannot be made here: %s\n", result.err.c_str());
        return nullptr;
      }
    }
    return machines;
  }
  ~TwoMachines() {
    for (int side : {0, 1}) run_command({"ip", "netns", "del", name(side)});
  }

  string address(int side) const {
    return "10.213." + std::to_string(::getpid() % 250) + "." + std::to_string(side + 1);
  }
  std::vector<string> inside(int side) const { return {"ip", "netns", "exec", name(side)}; }

 private:
  string name(int side) const { return "troupe-test-" + id_ + (side == 0 ? "a" : "b"); }
  const string id_ = std::to_string(::getpid());
};

TEST_CASE("head and worker on two machines find their own addresses") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  const TroupeHome home;
  auto head = start_head(home, {}, machines->inside(0));
  CHECK(head.host == machines->address(0));
  const TroupeHome elsewhere;
  auto worker =
      start_worker(elsewhere, head, {"--token-file", home.token_file()}, machines->inside(1));

  std::vector<string> tool = machines->inside(1);
  tool.insert(tool.end(), {bin_dir() + "/troupe", "nodes", "--json", "--address", head.address(),
                           "--token-file", home.token_file()});
  const auto nodes = run_command(tool, elsewhere.options());
  REQUIRE_MESSAGE(nodes.exit_code == 0, nodes.err);
  CHECK(nodes.out.find("\"address\":\"" + machines->address(1) + "\"") != string::npos);

  head.process->kill(SIGINT);
  CHECK(head.process->wait(kPatience) == 0);
  CHECK(worker->wait(kPatience) == 0);
}

}  // namespace
}  // namespace troupe::tests
