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

}  // namespace
}  // namespace troupe::tests
