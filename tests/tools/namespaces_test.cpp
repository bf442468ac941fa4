// Two machines, as network namespaces with a cable between them.

#include <signal.h>

#include "tests/support/two_machines.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

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

TEST_CASE("who encrypts and who does not refuse each other, and say how to go on") {
  const auto machines = TwoMachines::make();
  if (!machines) return;
  const TroupeHome home, elsewhere;
  const auto contains = [](const string& text, const string& part) {
    return text.find(part) != string::npos;
  };
  const auto worker_refused = [&](const RunningHead& head, std::vector<string> more) {
    std::vector<string> command = machines->inside(1);
    command.insert(command.end(), {bin_dir() + "/troupe", "worker", "--address", head.address(),
                                   "--token-file", home.token_file(), "--timeout", "2"});
    command.insert(command.end(), more.begin(), more.end());
    const auto refused = run_command(command, elsewhere.options());
    CHECK(refused.exit_code != 0);
    return refused.err;
  };
  {
    auto head = start_head(home, {"--insecure"}, machines->inside(0));
    CHECK(contains(head.process->output(), "connections between machines are not encrypted"));
    CHECK(contains(worker_refused(head, {}), "was started with --insecure"));
    auto worker = start_worker(elsewhere, head, {"--token-file", home.token_file(), "--insecure"},
                               machines->inside(1));
    // What the head wrote down is enough for the tools beside it.
    std::vector<string> nodes = machines->inside(0);
    nodes.insert(nodes.end(), {bin_dir() + "/troupe", "nodes", "--json"});
    CHECK(run_command(nodes, home.options()).exit_code == 0);
    head.process->kill(SIGINT);
    CHECK(head.process->wait(kPatience) == 0);
    CHECK(worker->wait(kPatience) == 0);
  }
  auto head = start_head(home, {}, machines->inside(0));
  CHECK(contains(worker_refused(head, {"--insecure"}), "takes encrypted connections alone"));
  head.process->kill(SIGINT);
  CHECK(head.process->wait(kPatience) == 0);
}

}  // namespace
}  // namespace troupe::tests
