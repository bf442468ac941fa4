// `troupe train` on "machines" of this one that are told where the first is, by the launchers'
// variables.

#include <csignal>

#include "tests/support/free_port.h"
#include "tests/support/runs/tiny_run.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

struct Nodes {
  std::unique_ptr<BackgroundCommand> start(int rank, const Settings& changes) const {
    return std::make_unique<BackgroundCommand>(tiny.train_arguments("out", changes),
                                               tiny.options({{"NNODES", "2"},
                                                             {"NODE_RANK", std::to_string(rank)},
                                                             {"MASTER_ADDR", address},
                                                             {"MASTER_PORT", port}}));
  }
  TinyRun tiny;
  string address = "127.0.0.1";
  string port = free_port_text();
};

TEST_CASE("a first node that was told loopback listens there, and the others end with its code") {
  for (const string address : {"127.0.0.1", "localhost"}) {
    Nodes nodes;
    nodes.address = address;
    const auto train = [&](const Settings& changes) {
      const auto first = nodes.start(0, changes);
      REQUIRE_MESSAGE(first->wait_for_output("1 of 2 nodes are there", kPatience), first->output());
      CHECK(contains(first->output(), "with MASTER_ADDR=127.0.0.1 MASTER_PORT=" + nodes.port));
      const auto second = nodes.start(1, changes);
      const int code = first->wait(kPatience);
      INFO(first->output());
      CHECK(second->wait(kPatience) == code);
      INFO(second->output());
      return code;
    };
    CHECK(train({{"max_steps", "2"}}) == 0);
    if (address == "localhost") continue;
    CHECK(train({{"troupe.chaos", "kill@step=2,rank=1"}, {"troupe.max_restarts", "0"}}) > 0);
    nodes.tiny.check_nothing_left();
  }
}

TEST_CASE("numbered on arrival, a machine beyond NNODES takes the place of one that leaves") {
  Nodes nodes;
  const auto options = nodes.tiny.options({{"NNODES", "2"},
                                           {"RDZV_ID", "job"},
                                           {"MASTER_ADDR", nodes.address},
                                           {"MASTER_PORT", nodes.port}});
  const auto words = nodes.tiny.train_arguments("out", {{"max_steps", "5000"}});
  BackgroundCommand lead(words, options);
  REQUIRE_MESSAGE(lead.wait_for_output("waiting for 1 more", kPatience), lead.output());
  CHECK(contains(lead.output(),
                 "the others run the same command with MASTER_ADDR=127.0.0.1 "
                 "MASTER_PORT=" +
                     nodes.port + ", and the same"));
  // What the command does on other machines: this one would lead, too.
  const std::vector<string> joins = {words.front(), "worker",
                                     "--address",   nodes.address + ":" + nodes.port,
                                     "--labels",    "troupe-node-rank=first_free(2)"};
  BackgroundCommand second(joins, options);
  REQUIRE_MESSAGE(lead.wait_for_output("2 of 2 nodes are there", kPatience), lead.output());
  BackgroundCommand spare(joins, options);
  REQUIRE_MESSAGE(spare.wait_for_output("joined", kPatience), spare.output());
  REQUIRE_MESSAGE(lead.wait_for_output("step 2", kPatience), lead.output());
  second.kill(SIGTERM);
  REQUIRE_MESSAGE(lead.wait_for_output("recovered in", kPatience), lead.output());
  CHECK_FALSE(contains(lead.output(), "loaded step"));  // from rank 0's memory
  lead.kill(SIGTERM);
  CHECK(lead.wait(kPatience) == 143);
  INFO(lead.output());
  CHECK(contains(lead.output(), "stopped at step"));
  CHECK(spare.wait(kPatience) >= 0);
  CHECK(second.wait(kPatience) >= 0);
  nodes.tiny.check_nothing_left();
}

TEST_CASE("nodes that wait for each other say for whom, and for how long at most") {
  Nodes nodes;
  const Settings soon = {{"troupe.join_timeout_s", "1"}};
  const auto first = nodes.start(0, soon);
  CHECK(first->wait(kPatience) > 0);
  CHECK(
      contains(first->output(), "1 of 2 nodes are there; waiting for NODE_RANK=1, for 0 s of 1 "));
  CHECK(contains(first->output(),
                 "1 of 2 nodes are missing after 1 s (troupe.join_timeout_s): start the same "
                 "command with NODE_RANK=1 on the machines that lack it"));
  const auto second = nodes.start(1, soon);
  CHECK(second->wait(kPatience) > 0);
  INFO(second->output());
  CHECK(contains(second->output(), "127.0.0.1:" + nodes.port));
  CHECK(contains(second->output(), "no head answered within 1000 ms"));

  nodes.address = "192.0.2.1";
  const auto elsewhere = nodes.start(0, soon);
  CHECK(elsewhere->wait(kPatience) > 0);
  CHECK(contains(elsewhere->output(),
                 "NODE_RANK=0, and MASTER_ADDR=192.0.2.1 is no address of this machine"));
}

}  // namespace
}  // namespace troupe::tests
