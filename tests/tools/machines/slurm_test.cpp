// Runs under srun: a script starts tasks of two "nodes" of this machine with SLURM's variables.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "runtime/base/file_system.h"
#include "runtime/net/interfaces.h"
#include "tests/support/runs/tiny_run.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

// $1 nodes, $2 tasks of each; then the program. As srun it passes signals on to every task, and
// ends with the highest exit code.
constexpr const char* kSrun = R"SRUN(
nodes=$1; tasks=$2; shift 2
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$((nodes * tasks))
export SLURM_STEP_TASKS_PER_NODE="$tasks(x$nodes)"
pids=
n=0
while [ $n -lt $nodes ]; do
  l=0
  while [ $l -lt $tasks ]; do
    SLURM_NODEID=$n SLURM_LOCALID=$l SLURM_PROCID=$((n * tasks + l)) "$@" &
    pids="$pids $!"
    l=$((l + 1))
  done
  n=$((n + 1))
done
for s in TERM USR1 USR2; do trap "kill -$s $pids" $s; done
highest=0
for p in $pids; do
  while :; do
    wait $p; code=$?
    kill -0 $p 2>/dev/null || break
  done
  [ $code -le $highest ] || highest=$code
done
exit $highest
)SRUN";

struct Cluster {
  Cluster() {
    PosixFileSystem files;
    net::SystemNetwork network(files);
    address = net::choose_address(network.read().value()).value().address;
    auto& variables = home.more().environment;
    variables["SLURM_JOB_ID"] = std::to_string(::getpid()) + "-" + std::to_string(++jobs);
    variables["SLURM_SUBMIT_DIR"] = home.path();
    std::ofstream(home.file("srun")) << kSrun;
  }
  std::vector<string> srun(int nodes, int tasks, const std::vector<string>& arguments) {
    home.more().environment["SLURM_STEP_NODELIST"] = nodes == 1 ? address : address + ",other";
    std::vector<string> words{"sh", home.file("srun"), std::to_string(nodes), std::to_string(tasks),
                              bin_dir() + "/troupe"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  CommandResult run(int nodes, int tasks, const std::vector<string>& arguments) {
    const auto words = srun(nodes, tasks, arguments);
    return run_command(words, home.options());
  }
  // Whether the run has removed its token from the folder of its job.
  bool token_is_gone() const {
    for (const auto& entry : std::filesystem::directory_iterator(home.path())) {
      if (entry.path().filename().string().starts_with(".troupe-")) return false;
    }
    return true;
  }
  TroupeHome home;
  string address;
  static inline int jobs = 0;
};

bool has_text(const string& text, const string& part) { return text.find(part) != string::npos; }

TEST_CASE("troupe run under srun: tasks are the ranks' places, and all end as the run does") {
  Cluster cluster;
  const auto run = cluster.run(2, 2,
                               {"run", "--no-python", "sh", "-c",
                                "echo rank $RANK of $WORLD_SIZE on $GROUP_RANK; "
                                "[ $RANK != 3 ] || exit 9"});
  INFO(run.err);
  INFO(run.out);
  CHECK(run.exit_code == 9);
  for (const char* line : {"rank 0 of 4 on 0", "rank 1 of 4 on 0", "rank 2 of 4 on 1"}) {
    CHECK_MESSAGE(has_text(run.out, line), line);
  }
  CHECK(cluster.token_is_gone());
}

TEST_CASE("a node rank that the batch script's shell expanded is taken from SLURM, and said") {
  Cluster cluster;
  const auto run = cluster.run(
      2, 1,
      {"run", "--", "torchrun", "--nnodes=2", "--node_rank=0", "--master_addr=" + cluster.address,
       "--master_port=29517", "--no-python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(has_text(run.err, "node rank 0 was given on node 1 of the SLURM step"));
  CHECK(has_text(run.out, "rank 1 of 2"));
}

TEST_CASE("a training under srun deals its ranks out, and a signal saves it and ends it with 0") {
  Cluster cluster;
  const TinyRun tiny;
  auto words = tiny.train_arguments("out", {{"max_steps", "100000"}, {"save_steps", "100000"}});
  words.erase(words.begin());
  words = cluster.srun(2, 1, words);  // which sets what the step's environment has
  BackgroundCommand run(words, cluster.home.options());
  REQUIRE_MESSAGE(run.wait_for_output("2 of 2 nodes are there", kPatience), run.output());
  REQUIRE(run.wait_for_output("step 2", kPatience));
  ::kill(run.pid(), SIGUSR1);
  const int code = run.wait(kPatience);
  INFO(run.output());
  CHECK(code == 0);
  CHECK(has_text(run.output(), "stopped at step "));
  CHECK(has_text(run.output(), ", saved checkpoint-"));
  CHECK(cluster.token_is_gone());
}

}  // namespace
}  // namespace troupe::tests
