// `troupe run`: programs in ranks, failures and restarts, on this machine, on several and on a
// running cluster; and the program under other launchers' names.

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/process/child.h"
#include "tests/support/free_port.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

// `troupe run FLAGS sh -c SCRIPT`.
std::vector<string> shell(std::vector<string> flags, const string& script) {
  flags.insert(flags.begin(), "run");
  for (const char* word : {"sh", "-c"}) flags.emplace_back(word);
  flags.push_back(script);
  return flags;
}

string text_of(const string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<string> lines_of(const string& text) {
  std::set<string> lines;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    lines.insert(text.substr(from, end - from));
    from = end + 1;
  }
  return lines;
}

TEST_CASE("ranks know their places, and write where they would") {
  const TroupeHome home;
  const auto result =
      home.run(shell({"--nproc-per-node", "2"},
                     "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
                     "$TORCHELASTIC_RESTART_COUNT $OMP_NUM_THREADS $MASTER_ADDR; "
                     "test $MASTER_PORT -gt 0 || exit 5; echo to err $RANK >&2"));
  CHECK(result.exit_code == 0);
  CHECK(lines_of(result.out) ==
        std::set<string>{"0 0 2 2 0 0 1 127.0.0.1", "1 1 2 2 0 0 1 127.0.0.1"});
  CHECK(contains(result.err, "to err 0\n"));
  CHECK(contains(result.err, "to err 1\n"));
}

TEST_CASE("one that fails ends the others, and is told first") {
  const TroupeHome home;
  const string script =
      "if [ $RANK = 1 ]; then echo the cause >&2; "
      R"(printf '{"message": {"message": "E: boom", "extraInfo": {"py_callstack": "Traceback: boom", "timestamp": "1795365965"}}}' > $TORCHELASTIC_ERROR_FILE; )"
      "exit 7; fi; exec sleep 60";
  const auto result = home.run(shell({"--nproc-per-node", "3"}, script));
  CHECK(result.exit_code == 7);
  // It stands right above the report.
  CHECK(contains(result.err, "the cause\n"));
  CHECK_FALSE(contains(result.err, "The last lines"));
  CHECK(contains(result.err, "<NO_OTHER_FAILURES>"));
  CHECK(contains(result.err, "Root Cause (first observed failure):\n[0]:\n"));
  CHECK(contains(result.err, "  rank      : 1 (local_rank: 1)\n  exitcode  : 7 (pid: "));
  CHECK(contains(result.err, "  traceback : Traceback: boom\n"));
  // A signal is the shell's code here, and 1 under torchrun's name.
  const string kill = "test $RANK = 0 && kill -9 $$; exec sleep 60";
  const auto killed = home.run(shell({"--nproc-per-node=2"}, kill));
  CHECK(killed.exit_code == 128 + SIGKILL);
  CHECK(contains(killed.err, "  exitcode  : -9 (pid: "));
  CHECK(contains(killed.err, "Signal 9 (SIGKILL) received by PID "));
  CHECK(home.run({"run", "--", "torchrun", "--nproc_per_node=2", "--no-python", "sh", "-c", kill})
            .exit_code == 1);
  CHECK(home.run({"run", "--bogus", "x"})
            .err.starts_with("troupe run: error: unrecognized arguments: --bogus"));
}

TEST_CASE("lines of the rank that failed are repeated where another's stand behind them") {
  const TroupeHome home;
  const string pipe = home.file("ready");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  // No child of rank 0 waits: one that the signal reached between fork and exec would stay, with
  // the shell's handler of it, and have the whole grace.
  const string script = "if [ $RANK = 0 ]; then trap 'echo noise >&2; exit 0' TERM; echo > " +
                        pipe + "; while :; do :; done; fi; read x < " + pipe +
                        "; echo the cause >&2; exit 7";
  const auto result = home.run(shell({"--nproc-per-node", "2"}, script));
  CHECK(result.exit_code == 7);
  CHECK_MESSAGE(contains(result.err, "The last lines of rank 1's standard error:\nthe cause\n===="),
                result.err);
}

std::size_t count_of(const string& text, const string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("a program that cannot be started is told once for all ranks, with the way out") {
  const TroupeHome home;
  const auto absent = home.run({"run", "--nproc-per-node", "2", "./absent"});
  CHECK(absent.exit_code == 1);
  CHECK(contains(absent.err, "absent"));
  CHECK_FALSE(contains(absent.err, "FAILED"));
  const string here = home.file("here");
  std::filesystem::create_directory(here);
  std::ofstream(here + "/sh.sh") << "#!/bin/sh\n";
  const auto in_folder = [&](const string& name) {
    return run_command(
        {"/bin/sh", "-c",
         "cd " + here + " && exec '" + bin_dir() + "/troupe' run --nproc-per-node 3 " + name},
        home.options());
  };
  const auto unknown = in_folder("no-such-program");
  CHECK(unknown.exit_code == 1);
  CHECK_MESSAGE(contains(unknown.err, " could not be started: "), unknown.err);
  CHECK(count_of(unknown.err, "no program 'no-such-program' in its PATH (") == 1);
  CHECK_FALSE(contains(unknown.err, "--env"));
  CHECK_FALSE(contains(unknown.err, "./no-such-program"));
  CHECK_FALSE(contains(unknown.err, "actor"));
  CHECK(contains(in_folder("sh.sh").err, "is run as ./sh.sh"));
  CHECK(contains(in_folder("-- acelerate launch x.py").err, "did you mean 'accelerate'?"));
}

TEST_CASE("a traceback is shown once: from the error file, or from standard error") {
  const TroupeHome home;
  const string frames = R"(  File "x.py", line 3, in main\n    raise E\nE: boom\n)";
  const string script =
      "printf 'before\\n' >&2; "
      "printf 'Traceback (most recent call last):\\n  File \"x.py\", line 9, in <module>\\n" +
      frames + "' >&2; " +
      R"(printf '{"message": {"message": "E", "extraInfo": {"py_callstack": "Traceback (most recent call last):\\n  File \\"x.py\\", line 3, in main\\n    raise E\\nE: boom\\n", "timestamp": "1"}}}' > $TORCHELASTIC_ERROR_FILE; exit 7)";
  const auto result = home.run(shell({"--redirects", "3"}, script));
  CHECK(result.exit_code == 7);
  CHECK_MESSAGE(count_of(result.err, "E: boom") == 1, result.err);
  CHECK(contains(result.err, "standard error:\nbefore\n===="));
}

TEST_CASE("Ctrl-C says what happens") {
  const TroupeHome home;
  const auto run = start_troupe(home, shell({"--nproc-per-node", "2"}, "echo up; exec sleep 60"));
  REQUIRE_MESSAGE(run->wait_for_output("up\n", kPatience), run->output());
  run->kill(SIGINT);
  CHECK(run->wait(kPatience) == 130);
  CHECK_MESSAGE(
      contains(run->output(), "troupe run: interrupted: the ranks are being ended, within 30 s"),
      run->output());
}

TEST_CASE("all begin again while restarts last") {
  const TroupeHome home;
  const string script =
      "echo $RANK in attempt $TORCHELASTIC_RESTART_COUNT; "
      "if [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ]; then exit 3; fi; "
      "test $TORCHELASTIC_RESTART_COUNT = 1 || exec sleep 60";
  const auto result = home.run(shell({"--nproc-per-node", "2", "--max-restarts", "1"}, script));
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "0 in attempt 1\n"));
  CHECK(contains(result.out, "1 in attempt 1\n"));
  CHECK(contains(result.err, "failed (exitcode: 3) local_rank: 1"));
  CHECK(contains(result.err, "restart 1 of 1"));
}

TEST_CASE("streams go to files, onto the console, or both") {
  const TroupeHome home;
  const string logs = home.file("logs");
  const auto result = home.run(shell({"--nproc-per-node", "2", "--log-dir", logs, "--redirects",
                                      "0:3,1:1", "--tee", "1:2", "--role", "worker"},
                                     "echo out $RANK; echo err $RANK >&2"));
  CHECK(result.exit_code == 0);
  CHECK(result.out.empty());
  CHECK(contains(result.err, "[worker1]:err 1\n"));
  CHECK_FALSE(contains(result.err, "err 0"));
  std::vector<string> runs;
  for (const auto& entry : std::filesystem::directory_iterator(logs)) runs.push_back(entry.path());
  REQUIRE(runs.size() == 1);
  const string attempt = runs.front() + "/attempt_0/";
  CHECK(text_of(attempt + "0/stdout.log") == "out 0\n");
  CHECK(text_of(attempt + "0/stderr.log") == "err 0\n");
  CHECK(text_of(attempt + "1/stdout.log") == "out 1\n");
  CHECK(text_of(attempt + "1/stderr.log") == "err 1\n");
  const auto filtered =
      home.run(shell({"--nproc-per-node", "3", "--local-ranks-filter", "0,2"}, "echo only $RANK"));
  CHECK(lines_of(filtered.out) == std::set<string>{"only 0", "only 2"});
}

TEST_CASE("signals reach the ranks, and the last one leaves nothing behind") {
  const TroupeHome home;
  const string mark = home.file("mark");
  const auto run = start_troupe(
      home, shell({"--nproc-per-node", "2"},
                  ": " + mark +
                      "; trap 'echo usr $RANK' USR1; trap 'echo int $RANK; exit 3' INT; echo up "
                      "$RANK; while :; do sleep 0.05; done"));
  const auto all_said = [&](const string& what) {
    for (const char* rank : {"0", "1"}) {
      const string line = what + " " + rank + "\n";
      CHECK_MESSAGE(run->wait_for_output(line, kPatience), line << run->output());
    }
  };
  all_said("up");
  run->kill(SIGUSR1);
  all_said("usr");
  run->kill(SIGINT);
  CHECK(run->wait(kPatience) == 128 + SIGINT);
  all_said("int");
  CHECK(processes_with(mark).empty());
}

TEST_CASE("ranks read the launcher's input, and what has no end of a line is shown, too") {
  const TroupeHome home;
  const string fifo = home.file("input");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const auto run = start_troupe(
      home, shell({"--nproc-per-node", "1"}, "printf '10%%\\r'; printf 'name? '; read x; echo $x."),
      {"sh", "-c", "exec \"$@\" < " + fifo, "sh"});
  std::ofstream input(fifo);
  REQUIRE_MESSAGE(run->wait_for_output("10%\rname? ", kPatience), run->output());
  input << "Ada" << std::endl;
  CHECK(run->wait(kPatience) == 0);
  CHECK(run->output() == "10%\rname? Ada.\n");
}

// Far more than a pipe or a socket holds, at once.
TEST_CASE("a rank's flood is shown whole") {
  const TroupeHome home;
  const string last = std::to_string(300'000);
  const auto result = home.run(
      {"run", "--nproc-per-node", "1", "--no-python", "seq", "-f", "noise of a rank %.0f", last});
  CHECK(result.exit_code == 0);
  CHECK(std::count(result.out.begin(), result.out.end(), '\n') == 300'000);
  CHECK(result.out.ends_with("noise of a rank " + last + "\n"));
}

TEST_CASE("what ranks have started ends with the run, however it ends") {
  const TroupeHome home;
  const string mark = home.file("mark");
  // A child, and one in a session of its own.
  const string script =
      ": " + mark + "; sleep 1000 & setsid sh -c ': " + mark +
      "; sleep 1000; :' & echo up $RANK; test $1$RANK = fail1 || wait; sleep 1; exit 3";
  const auto started = [&](const char* how) {
    auto arguments = shell({"--nproc-per-node", "2"}, script);
    arguments.insert(arguments.end(), {"sh", how});
    return start_troupe(home, arguments);
  };
  const auto killed = started("wait");
  REQUIRE(killed->wait_for_output("up 0\n", kPatience));
  REQUIRE(killed->wait_for_output("up 1\n", kPatience));
  REQUIRE(processes_with(mark).size() >= 4);
  killed->kill(SIGKILL);
  CHECK(killed->wait(kPatience) == 128 + SIGKILL);
  CHECK(in_time([&] { return processes_with(mark).empty(); }));
  const auto failed = started("fail");
  CHECK(failed->wait(kPatience) == 3);
  CHECK(processes_with(mark).empty());
}

TEST_CASE("a Python script goes on in an interpreter that stood by") {
  const TroupeHome home;
  const string script = home.file("train.py");
  std::ofstream(script) << R"(import json, os, sys, time
import calendar as helper
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
if attempt == "0":
    while rank == "0" and not os.path.exists("go"):
        time.sleep(0.01)
    if rank == "0":
        os.kill(os.getpid(), 9)
    time.sleep(60)
class Kept: pass
import pickle
pickle.loads(pickle.dumps(Kept()))
print(rank, attempt, sys.argv, helper.HERE, __name__, os.path.isabs(__file__), len(os.listdir("/proc/self/fd")) < 9, flush=True)
)";
  // Python's own module of that name is not the one that the script imports.
  std::ofstream(home.file("calendar.py")) << "import os\nHERE = os.environ['RANK']\n";
  const auto run = start_troupe(home,
                                {"run", "--nproc-per-node", "2", "--max-restarts", "1",
                                 "--standby-after", "0", script, "--lr", "0.1"},
                                {"env", "--chdir", home.path()});
  const auto standing = [&] {
    const auto all = processes_with("_stand_by");
    return std::count_if(all.begin(), all.end(),
                         [&](pid_t pid) { return contains(command_line_of(pid), script); }) == 2;
  };
  REQUIRE(in_time(standing));
  std::ofstream(home.file("go")) << "go";
  CHECK(run->wait(kPatience) == 0);
  for (const string rank : {"0", "1"}) {
    CHECK_MESSAGE(contains(run->output(), rank + " 1 ['" + script + "', '--lr', '0.1'] " + rank +
                                              " __main__ True True\n"),
                  run->output());
  }
}

TEST_CASE("two machines that were told where the first one is") {
  TroupeHome home;
  const string port = free_port_text();
  // The rank that fails waits for a line of the first machine's first one: its end ends that.
  const string said = home.file("said");
  REQUIRE(::mkfifo(said.c_str(), 0600) == 0);
  const auto words = [&](const char* rank) {
    return shell({"--nnodes", "2", "--node-rank", rank, "--nproc-per-node", "2", "--master-addr",
                  "127.0.0.1", "--master-port", port},
                 "echo $RANK $GROUP_RANK $LOCAL_RANK of $WORLD_SIZE; case $RANK in 0) echo x > " +
                     said + ";; 3) read x < " + said + "; exit 4;; esac");
  };
  const auto second = start_troupe(home, words("1"));
  const auto first = start_troupe(home, words("0"));
  // The code of the rank that failed is the exit code on both machines.
  CHECK(first->wait(kPatience) == 4);
  CHECK(second->wait(kPatience) == 4);
  CHECK(contains(first->output(), "0 0 0 of 4\n"));
  CHECK(contains(first->output(), "rank      : 3 (local_rank: 1)\n"));
  CHECK(contains(second->output(), "3 1 1 of 4\n"));
  // Ranks and machines are what a run is told of, on each of its machines.
  CHECK(contains(second->output(), "This machine is part of the run of 127.0.0.1:"));
  for (const char* internal : {"actor", "generation", "cluster"})
    CHECK_MESSAGE(!contains(second->output(), internal), second->output());
}

TEST_CASE("two agents of one machine that were told of the same endpoint") {
  TroupeHome home;
  const string endpoint = "localhost:" + free_port_text();
  std::vector<std::unique_ptr<BackgroundCommand>> agents;
  for (int i = 0; i < 2; ++i) {
    agents.push_back(
        start_troupe(home, shell({"--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend",
                                  "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "pair"},
                                 "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR")));
  }
  string output;
  for (const auto& agent : agents) {
    CHECK(agent->wait(kPatience) == 0);
    output += agent->output();
  }
  CHECK(contains(output, "rank 0 of 2 at 127.0.0.1\n"));
  CHECK(contains(output, "rank 1 of 2 at 127.0.0.1\n"));
  CHECK(contains(output, "is taken: joining the run there"));
}

TEST_CASE("nodes of a running cluster: a lost one is replaced") {
  const TroupeHome home;
  RunningHead head = start_head(home);
  std::vector<std::unique_ptr<BackgroundCommand>> workers;
  for (int i = 0; i < 3; ++i) workers.push_back(start_worker(home, head, {"--num-cpus", "2"}));
  const auto run = start_troupe(
      home, shell({"--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "1", "--address",
                   head.address()},
                  "echo $TORCHELASTIC_RESTART_COUNT up $RANK; test $TORCHELASTIC_RESTART_COUNT = 1 "
                  "|| exec sleep 60"));
  for (const char* line : {"0 up 0\n", "0 up 1\n", "0 up 2\n", "0 up 3\n"}) {
    CHECK_MESSAGE(run->wait_for_output(line, kPatience), run->output());
  }
  // Kill a node that holds ranks.
  const auto actors = home.run_json({"actors"});
  const auto list = json::find(actors, "actors")->as_array();
  REQUIRE(list.size() == 4);
  const auto node_id = json::find_string(list[0], "node_id").value();
  const auto nodes = home.run_json({"nodes"});
  for (const auto& node : json::find(nodes, "nodes")->as_array()) {
    if (json::find_string(node, "node_id") == node_id) {
      ::kill(static_cast<pid_t>(json::find_integer(node, "pid").value()), SIGKILL);
    }
  }
  CHECK(run->wait(kPatience) == 0);
  for (const char* line : {"1 up 0\n", "1 up 1\n", "1 up 2\n", "1 up 3\n"}) {
    CHECK_MESSAGE(contains(run->output(), line), run->output());
  }
  CHECK_MESSAGE(contains(run->output(), " was lost: its node "), run->output());
  CHECK(home.run({"stop"}).exit_code == 0);
}

TEST_CASE("what a running cluster can never hold is refused at once") {
  const TroupeHome home;
  RunningHead head = start_head(home);
  const auto refused = [&](const std::vector<string>& flags, const string& what) {
    auto words = flags;
    words.insert(words.end(), {"--address", head.address()});
    const auto result = home.run(shell(words, "true"));
    CHECK(result.exit_code == 5);
    CHECK_MESSAGE(contains(result.err, what), result.err);
  };
  refused({}, "the cluster has no worker node: start one");
  const auto worker = start_worker(home, head, {"--num-cpus", "2"});
  refused({"--nproc-per-node", "3"}, "the cluster can never hold it: needs CPU 3");
  refused({"--nnodes", "2"}, "the cluster can never hold it");
  refused({"--nnodes", "2:3"}, "the cluster can never hold it");
  const auto fits = home.run(shell({"--nproc-per-node", "2", "--address", head.address()}, "true"));
  CHECK_MESSAGE(fits.exit_code == 0, fits.err);
  CHECK(home.run({"stop"}).exit_code == 0);
}

TEST_CASE("the program under other launchers' names") {
  const TroupeHome home;
  const string bin = home.file("bin");
  std::filesystem::create_directory(bin);
  const auto link = [&](const string& name) {
    std::filesystem::create_symlink(bin_dir() + "/troupe", bin + "/" + name);
    return bin + "/" + name;
  };
  const auto ran = run_command({link("torchrun"), "--nproc-per-node", "2", "--no-python", "sh",
                                "-c", "echo rank ${local_rank}"},
                               home.options());
  CHECK(ran.exit_code == 0);
  CHECK(lines_of(ran.out) == std::set<string>{"rank 0", "rank 1"});
  const auto wrong = run_command({bin + "/torchrun", "--bogus", "x.py"}, home.options());
  CHECK(wrong.exit_code == 2);
  CHECK(contains(wrong.err, "torchrun: error: unrecognized arguments: --bogus"));
  const auto help = run_command({link("llamafactory-cli"), "help"}, home.options());
  CHECK(help.exit_code == 0);
  CHECK(contains(help.out, "Usage: llamafactory-cli"));
  const auto flags = run_command({bin + "/torchrun", "--help"}, home.options());
  CHECK(flags.exit_code == 0);
  CHECK(flags.err.empty());
  CHECK(contains(flags.out, "--nproc-per-node N"));
  CHECK(home.run({"run", "--", "torchrun", "--help"}).out == flags.out);
  CHECK(run_command({bin + "/llamafactory-cli", "nonsense"}, home.options()).exit_code == 2);
  const auto version = run_command({link("lmf"), "version"}, home.options());
  CHECK(contains(version.out, "troupe "));
  const auto train = run_command({bin + "/lmf", "train", "absent.yaml"}, home.options());
  CHECK(train.exit_code != 0);
  CHECK(contains(train.err, "absent.yaml"));
}

}  // namespace
}  // namespace troupe::tests
