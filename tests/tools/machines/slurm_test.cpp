// Runs under srun: a script starts tasks of two "nodes" of this machine with SLURM's variables.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/base/file_system.h"
#include "runtime/net/interfaces.h"
#include "tests/support/free_port.h"
#include "tests/support/runs/tiny_run.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

// Its own flags, then the program. As srun it passes signals on to every process, and ends with the
// highest exit code.
constexpr const char* kSrun = R"SRUN(#!/bin/sh
while case $1 in --*) :;; *) false;; esac; do shift; done
nodes=$SLURM_JOB_NUM_NODES; tasks=$SLURM_NTASKS_PER_NODE
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$((nodes * tasks))
export SLURM_STEP_TASKS_PER_NODE="$tasks(x$nodes)" SLURM_STEP_NODELIST="$FAKE_ADDRESS"
[ $nodes = 1 ] || SLURM_STEP_NODELIST="$FAKE_ADDRESS,other"
pids=
n=0
while [ $n -lt $nodes ]; do
  l=0
  while [ $l -lt $tasks ]; do
    (
      [ $l = 0 ] || sleep ${FAKE_LATE_S:-0}
      SLURM_NODEID=$n SLURM_LOCALID=$l SLURM_PROCID=$((n * tasks + l)) exec "$@"
    ) &
    pids="$pids $!"
    l=$((l + 1))
  done
  n=$((n + 1))
done
# As slurmstepd does: the tasks, and all that they have started.
below() { for c in $(cat /proc/$1/task/*/children 2>/dev/null); do echo $c; below $c; done; }
for s in TERM USR1 USR2; do
  trap "for p in \$pids; do kill -$s \$(below \$p) \$p 2>/dev/null; done" $s
done
highest=0
for p in $pids; do
  while :; do
    wait $p; code=$?
    kill -0 $p 2>/dev/null || break
  done
  echo "a task ended with $code"
  [ $code -le $highest ] || highest=$code
done
exit $highest
)SRUN";

// Runs the job that stands on its standard input at once, and tells its number when it has ended.
constexpr const char* kSbatch = R"SBATCH(#!/bin/sh
[ "$*" = --parsable ] || exit 3
job=$HOME/job.sh
cat > "$job"
option() { sed -n "s/^#SBATCH --$1=//p" "$job"; }
[ "$(option partition)" != closed ] || { echo "sbatch: error: the partition is closed" >&2; exit 1; }
export SLURM_JOB_ID=$$ SLURM_JOB_NUM_NODES=$(option nodes)
export SLURM_NTASKS_PER_NODE=$(option ntasks-per-node) SLURM_SUBMIT_DIR=$PWD
sh "$job" > "$(option output | sed "s/%j/$$/")" 2>&1
echo "$$;fake"
)SBATCH";

struct Cluster {
  Cluster() {
    PosixFileSystem files;
    net::SystemNetwork network(files);
    address = net::choose_address(network.read().value()).value().address;
    auto& variables = home.more().environment;
    variables["SLURM_JOB_ID"] = std::to_string(::getpid()) + "-" + std::to_string(++jobs);
    variables["SLURM_SUBMIT_DIR"] = home.path();
    variables["FAKE_ADDRESS"] = address;
    add_program("srun", kSrun);
    variables["PATH"] = home.file("bin") + ":" + std::getenv("PATH");
    home.more().directory = home.path();
  }
  void add_program(const string& name, const char* text) {
    std::filesystem::create_directories(home.file("bin"));
    write(home.file("bin/" + name), text);
    std::filesystem::permissions(home.file("bin/" + name), std::filesystem::perms::owner_all);
  }
  std::vector<string> srun(int nodes, int tasks, const std::vector<string>& arguments) {
    home.more().environment["SLURM_JOB_NUM_NODES"] = std::to_string(nodes);
    home.more().environment["SLURM_NTASKS_PER_NODE"] = std::to_string(tasks);
    std::vector<string> words{home.file("bin/srun"), bin_dir() + "/troupe"};
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

TEST_CASE("a task that starts when the run has ended ends as it did, and at once") {
  Cluster cluster;
  cluster.home.more().environment["FAKE_LATE_S"] = "0.7";
  const auto run = cluster.run(1, 2, {"run", "--no-python", "sh", "-c", "exit 9"});
  INFO(run.err);
  INFO(run.out);
  CHECK(run.exit_code == 9);
  CHECK(has_text(run.out, "a task ended with 9\na task ended with 9\n"));
}

TEST_CASE("troupe run under srun: tasks are the ranks' places, and all end as the run does") {
  Cluster cluster;
  // The rank that fails waits for a line of each of the others: its end ends them.
  const string said = cluster.home.file("said");
  REQUIRE(::mkfifo(said.c_str(), 0600) == 0);
  const auto run =
      cluster.run(2, 2,
                  {"run", "--no-python", "sh", "-c",
                   "echo rank $RANK of $WORLD_SIZE on $GROUP_RANK; if [ $RANK = 3 ]; then exec "
                   "3<>\"$0\"; read a <&3; read b <&3; read c <&3; exit 9; fi; echo x >\"$0\"",
                   said});
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
  const auto run =
      cluster.run(2, 1,
                  {"run", "--", "torchrun", "--nnodes=2", "--node_rank=0",
                   "--master_addr=" + cluster.address, "--master_port=" + free_port_text(),
                   "--no-python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"});
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

TEST_CASE("the only task of a step saves at SLURM's signals too, and ends with 0") {
  Cluster cluster;
  const TinyRun tiny;
  auto words = tiny.train_arguments("out", {{"max_steps", "100000"}, {"save_steps", "100000"}});
  words.erase(words.begin());
  words = cluster.srun(1, 1, words);  // which sets what the step's environment has
  BackgroundCommand run(words, cluster.home.options());
  REQUIRE_MESSAGE(run.wait_for_output("step 2", kPatience), run.output());
  ::kill(run.pid(), SIGUSR1);
  const int code = run.wait(kPatience);
  INFO(run.output());
  CHECK(code == 0);
  CHECK(has_text(run.output(), ", saved checkpoint-"));
}

TEST_CASE("a training that fails on the first node ends on the others with its exit code") {
  Cluster cluster;
  const TinyRun tiny;
  auto words = tiny.train_arguments(
      "out", {{"troupe.chaos", "kill@step=2,rank=1"}, {"troupe.max_restarts", "0"}});
  words.erase(words.begin());
  const auto run = cluster.run(2, 2, words);
  INFO(run.err);
  INFO(run.out);
  CHECK(run.exit_code > 0);
  std::size_t same = 0;
  const string ended = fmt::format("a task ended with {}\n", run.exit_code);
  for (std::size_t at = 0; (at = run.out.find(ended, at)) != string::npos; ++at) ++same;
  CHECK(same == 4);
  CHECK(cluster.token_is_gone());
}

// A configuration's file with a tiny run.
string config_of(const TinyRun& tiny, const Settings& changes) {
  auto words = tiny.train_arguments("out", changes);
  string text;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const auto equals = words[i].find('=');
    text += words[i].substr(0, equals) + ": " + words[i].substr(equals + 1) + "\n";
  }
  write(tiny.file("it's a run.yaml"), text);
  return tiny.file("it's a run.yaml");
}

TEST_CASE("troupe slurm submits a training, which goes on when it is submitted or queued again") {
  Cluster cluster;
  cluster.add_program("sbatch", kSbatch);
  const TinyRun tiny;
  const string config = config_of(
      tiny, {{"overwrite_output_dir", "false"}, {"max_steps", "3"}, {"troupe.device", "cpu"}});
  const auto submit = [&](const std::vector<string>& more) {
    std::vector<string> words{"slurm",
                              config,
                              "--nodes",
                              "2",
                              "--submit",
                              "--sbatch",
                              "output=" + cluster.home.file("%j.out")};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = cluster.home.run(words);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    const string path = result.out.substr(result.out.find("tail -F ") + 8);
    const string number = result.out.substr(4, result.out.find(' ', 4) - 4);
    CHECK(has_text(result.out, ": 2 nodes, 2 trainers\n"));
    CHECK(path.substr(0, path.find('\n')) == cluster.home.file(number + ".out"));
    CHECK(has_text(result.out, "scancel --signal=TERM " + number + " "));
    return contents(path.substr(0, path.find('\n')));
  };
  const string first = submit({});
  INFO(first);
  CHECK(has_text(first, "2 of 2 nodes are there"));
  CHECK(has_text(first, "trained 3 steps"));
  CHECK(cluster.token_is_gone());
  const string second = submit({"max_steps=6", "overwrite_output_dir=false"});
  CHECK(has_text(second, "going on from " + tiny.file("out/checkpoint-3")));
  CHECK(has_text(second, "trained 6 steps"));
  // Queued again, it does not begin anew, as it was told to at its start.
  cluster.home.more().environment["SLURM_RESTART_COUNT"] = "1";
  const string again = submit({"max_steps=9", "overwrite_output_dir=true"});
  CHECK(has_text(again, "going on from " + tiny.file("out/checkpoint-6")));
  CHECK(has_text(again, "trained 9 steps"));
}

TEST_CASE("a job that is queued again before its first checkpoint begins anew") {
  Cluster cluster;
  const TinyRun tiny;
  const string config = config_of(tiny, {{"overwrite_output_dir", ""}, {"max_steps", "2"}});
  std::filesystem::create_directories(tiny.file("out"));
  write(tiny.file("out/all_results.json"), "{}\n");
  CHECK(has_text(cluster.home.run({"train", config}).err, "is not empty"));
  const auto again = cluster.home.run({"train", config, "--requeued"});
  INFO(again.err);
  CHECK(again.exit_code == 0);
}

TEST_CASE("troupe slurm runs a program's ranks, and another launcher's training") {
  Cluster cluster;
  cluster.add_program("sbatch", kSbatch);
  const string out = "--sbatch=output=" + cluster.home.file("out");
  const auto run = cluster.home.run({"slurm", "-N", "2", out, "--submit", "run", "--nproc-per-node",
                                     "2", "sh", "-c", "echo \"rank $RANK of $WORLD_SIZE\""});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(has_text(contents(cluster.home.file("out")), "rank 3 of 4"));

  const TinyRun tiny;
  const string config = config_of(tiny, {{"max_steps", "2"}});
  const auto training =
      cluster.home.run({"slurm", out, "--submit", "--", "llamafactory-cli", "train", config});
  INFO(training.err);
  CHECK(training.exit_code == 0);
  CHECK(has_text(contents(cluster.home.file("out")), "trained 2 steps"));
}

TEST_CASE("a job that cannot be submitted is refused with the reason, before and by sbatch") {
  Cluster cluster;
  const TinyRun tiny;
  const string config = config_of(tiny, {{"dataset", "nosuch"}});
  const auto refused = [&](const std::vector<string>& more) {
    std::vector<string> words{"slurm", config};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = cluster.home.run(words);
    CHECK(result.exit_code > 0);
    CHECK(result.out.empty());
    return result.err;
  };
  CHECK(has_text(refused({}), "nosuch"));
  cluster.home.more().environment["PATH"] = "/usr/bin:/bin";
  CHECK(has_text(refused({"dataset=tiny", "--submit"}),
                 "there is no sbatch in PATH, so this is no machine of a SLURM cluster"));
  cluster.add_program("sbatch", kSbatch);
  cluster.home.more().environment["PATH"] = cluster.home.file("bin") + ":/usr/bin:/bin";
  const auto closed = refused({"dataset=tiny", "--submit", "-p", "closed"});
  CHECK(has_text(closed, "sbatch: error: the partition is closed"));
  CHECK(has_text(closed, "sbatch did not take the job (exit code 1)"));
  CHECK(has_text(
      refused({"dataset=tiny", "--gpus-per-node", "1", "--nodes", "1"}),
      "2 trainers (troupe.workers) on 1 node need 2 GPUs on each, and --gpus-per-node is 1"));
  CHECK(has_text(refused({"dataset=tiny", "--address", "x:1"}), "--address names machines"));
}

}  // namespace
}  // namespace troupe::tests
