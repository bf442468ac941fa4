// Runs that start their other machines over ssh.

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/suggest.h"
#include "tests/support/runs/tiny_run.h"
#include "tests/tools/machines/local_sshd.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

// A desk from which hosts are reached.
struct Desk {
  explicit Desk(const LocalSshd& sshd) {
    home.more().environment["TROUPE_SSH"] = sshd.ssh();
    id = "hosts-" + std::to_string(::getpid()) + "-" + std::to_string(++runs);
  }
  std::vector<string> words(const std::vector<string>& arguments) const {
    std::vector<string> all{"run", "--rdzv-id", id};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  CommandResult run(const std::vector<string>& arguments) const {
    return home.run(words(arguments));
  }
  // Whether no worker of the run is left on any "host".
  bool nothing_left() const {
    return in_time([&] { return processes_with("troupe-run=" + id).empty(); },
                   std::chrono::seconds(10));
  }
  TroupeHome home;
  string id;
  static inline int runs = 0;
};

bool contains(const string& text, const string& part) { return text.find(part) != string::npos; }

TEST_CASE("a hostfile's hosts are started over ssh, and ranks follow its order and slots") {
  const auto sshd = LocalSshd::start(4);
  if (!sshd) return;
  const Desk desk(*sshd);
  const string hosts =
      sshd->hostfile({"127.0.0.1 slots=1", "127.0.0.2 slots=2", "127.0.0.3 slots=1"});
  // The one that fails waits until all have said their place.
  const TemporaryDirectory marks;
  const auto run = desk.run({"--hostfile", hosts, "--no-python", "sh", "-c",
                             "echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK on $GROUP_RANK\n"
                             "env | grep -i token; touch " +
                                 marks.file("$RANK") + "; until [ $(ls " + marks.path() +
                                 " | wc -l) = 4 ]; do sleep 0.02; done; [ $RANK != 2 ]"});
  INFO(run.err);
  CHECK(run.exit_code == 1);
  for (const char* line : {"rank 0 of 4, 0 on 0", "rank 1 of 4, 0 on 1", "rank 2 of 4, 1 on 1",
                           "rank 3 of 4, 0 on 2"}) {
    CHECK_MESSAGE(contains(run.out, line), line);
  }
  CHECK_FALSE(contains(run.out, "TOKEN"));
  CHECK(contains(run.err, "rank      : 2 (local_rank: 1)"));
  CHECK(desk.nothing_left());

  // deepspeed's command line, with its own variables.
  const auto deepspeed = desk.home.run(
      {"run", "--", "deepspeed", "--hostfile", hosts, "--include", "127.0.0.1@127.0.0.2:1",
       "--no_python", "--no_local_rank", "sh", "-c",
       "echo rank $RANK of $WORLD_SIZE, $LOCAL_SIZE on $CROSS_RANK, $CUDA_VISIBLE_DEVICES"});
  INFO(deepspeed.err);
  CHECK(deepspeed.exit_code == 0);
  CHECK(contains(deepspeed.out, "rank 0 of 2, 1 on 0, 0\n"));
  CHECK(contains(deepspeed.out, "rank 1 of 2, 1 on 1, 1\n"));
}

TEST_CASE("a hostfile of one host: another one is started, this machine needs no ssh") {
  const auto sshd = LocalSshd::start(3);
  if (!sshd) return;
  const Desk desk(*sshd);
  const auto run = desk.run({"--hostfile", sshd->hostfile({"127.0.0.2 slots=2"}), "--no-python",
                             "sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(contains(run.out, "rank 1 of 2 at 127.0.0."));
  CHECK(desk.nothing_left());
  const auto here =
      desk.home.run({"run", "--hostfile", sshd->hostfile({"localhost slots=2"}), "--ssh-port", "1",
                     "--no-python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"});
  INFO(here.err);
  CHECK(here.exit_code == 0);
  CHECK(contains(here.out, "rank 1 of 2 at 127.0.0.1"));
}

TEST_CASE("eight hosts of which some cannot take part: all are named, and the rest is ended") {
  const auto sshd = LocalSshd::start(8);
  if (!sshd) return;
  const Desk desk(*sshd);
  std::vector<string> lines;
  for (int i = 1; i <= 7; ++i) lines.push_back(sshd->host(i) + " slots=2");
  {
    const auto run = desk.run(
        {"--hostfile", sshd->hostfile(lines), "--no-python", "sh", "-c", "echo rank $RANK."});
    INFO(run.err);
    CHECK(run.exit_code == 0);
    CHECK(std::count(run.out.begin(), run.out.end(), '\n') == 14);
  }
  lines.push_back(sshd->outdated() + " slots=2");
  lines.push_back("127.0.0.99 slots=2");
  lines.push_back(sshd->stranger() + " slots=2");
  const auto run = desk.run({"--hostfile", sshd->hostfile(lines), "--no-python", "echo", "begun"});
  INFO(run.err);
  CHECK(run.exit_code != 0);
  CHECK_FALSE(contains(run.out, "begun"));
  CHECK(contains(run.err, "3 of 9 other hosts failed"));
  CHECK(contains(run.err, sshd->outdated() + ": "));
  CHECK(contains(run.err, "is troupe 0.0.9 protocol 1, and the run is started by troupe "));
  CHECK(contains(run.err, "127.0.0.99: ssh: connect to host 127.0.0.99 port "));
  CHECK(contains(run.err, "Connection refused (exit code 255)"));
  CHECK(contains(run.err, sshd->stranger() + ": No ED25519 host key is known for "));
  CHECK(desk.nothing_left());
}

TEST_CASE("signals reach the ranks of other hosts, and a launcher that is killed leaves nothing") {
  const auto sshd = LocalSshd::start(3);
  if (!sshd) return;
  const Desk desk(*sshd);
  const string hosts = sshd->hostfile({"127.0.0.1 slots=1", "127.0.0.2 slots=1"});
  const string script =
      "trap 'echo rank $RANK was asked' USR1; echo rank $RANK waits; "
      "for i in 1 2 3 4 5 6 7 8 9; do sleep 30 & wait; done";
  const auto run =
      start_troupe(desk.home, desk.words({"--hostfile", hosts, "--no-python", "sh", "-c", script}));
  REQUIRE(run->wait_for_output("rank 0 waits", kPatience));
  REQUIRE(run->wait_for_output("rank 1 waits", kPatience));
  ::kill(run->pid(), SIGUSR1);
  CHECK(run->wait_for_output("rank 0 was asked", kPatience));
  CHECK(run->wait_for_output("rank 1 was asked", kPatience));
  CHECK_FALSE(processes_with("troupe-run=" + desk.id).empty());
  ::kill(run->pid(), SIGKILL);
  CHECK(desk.nothing_left());
  CHECK(in_time([&] { return processes_with("rank $RANK was asked").empty(); }));
}

TEST_CASE("a training starts its hosts, and deals its ranks out to them") {
  const auto sshd = LocalSshd::start(3);
  if (!sshd) return;
  const Desk desk(*sshd);
  const TinyRun tiny;
  auto words = tiny.train_arguments("out", {{"max_steps", "2"}});
  words.erase(words.begin());
  words.insert(words.end(),
               {"--hostfile", sshd->hostfile({"127.0.0.1 slots=1", "127.0.0.2 slots=1"})});
  const auto run = desk.home.run(words);
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(contains(run.err, "2 of 2 nodes are there"));
  words.back() = sshd->hostfile({"127.0.0.1 slots=1", "127.0.0.99 slots=1"});
  const auto missing = desk.home.run(words);
  CHECK(missing.exit_code != 0);
  CHECK(contains(missing.err, "127.0.0.99: ssh: connect to host"));
}

TEST_CASE("a training on hosts that this machine is none of: it leads, and has no trainers") {
  const auto sshd = LocalSshd::start(4);
  if (!sshd) return;
  const Desk desk(*sshd);
  const TinyRun tiny;
  for (const std::vector<string>& hosts :
       {std::vector<string>{"127.0.0.2 slots=1", "127.0.0.3 slots=1"}, {"127.0.0.2 slots=2"}}) {
    auto words = tiny.train_arguments(
        "out", {{"max_steps", "2"}, {"overwrite_output_dir", "true"}, {"troupe.workers", ""}});
    words.erase(words.begin());
    words.insert(words.end(), {"--hostfile", sshd->hostfile(hosts)});
    const auto run = desk.home.run(words);
    INFO(run.err);
    CHECK(run.exit_code == 0);
    CHECK(contains(run.err, fmt::format("{0} of {0} nodes are there", hosts.size())));
    CHECK(contains(run.err, ": 2 trainers (NNODES × NPROC_PER_NODE)"));
  }
}

}  // namespace
}  // namespace troupe::tests
