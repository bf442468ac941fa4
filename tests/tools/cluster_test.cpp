// Head, workers and tools as their users run them, on the loopback interface.

#include <signal.h>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

TEST_CASE("placement groups are listed, and why tells what waits for what") {
  TroupeHome home;
  // A folder that is not a run's is not meant where the cluster has something of its name.
  REQUIRE(PosixFileSystem().create_directories(home.file("train")).ok());
  REQUIRE(PosixFileSystem().create_directories(home.file("nobody's")).ok());
  home.more().directory = home.path();
  auto head = start_head(home);
  auto worker = start_worker(home, head, {"--num-cpus", "2", "--labels", "zone=a"});
  BackgroundCommand driver(
      {bin_dir() + "/test_tools_driver", head.address(), home.token_file(), "talker", "groups"},
      home.options());
  REQUIRE_MESSAGE(driver.wait_for_output("ready", kPatience), driver.output());

  const auto groups = home.run_json({"groups"});
  const auto& list = json::find(groups, "groups")->as_array();
  REQUIRE(list.size() == 2);
  const auto& train = json::find_string(list[0], "name") == "train" ? list[0] : list[1];
  CHECK(json::find_string(train, "state") == "created");
  CHECK(json::find_string(train, "strategy") == "PACK");
  const auto table = home.run({"groups"});
  CHECK(contains(table.out, "0: CPU 0.5 on"));
  CHECK(contains(table.out, "pending"));
  CHECK(contains(home.run({"actors"}).out, "train[1]"));
  CHECK(contains(home.run({"nodes"}).out, "train[0], train[1]"));
  CHECK(contains(home.run({"nodes"}).out, "1.5/2"));

  const auto huge = home.run({"why", "huge"});
  CHECK_MESSAGE(huge.exit_code == 0, huge.err);
  CHECK(contains(huge.out, "Placement group huge"));
  CHECK(contains(huge.out, "is pending:\n  needs CPU 10000\n"));
  CHECK(contains(huge.out, "has CPU 0.5 of 2 free"));
  CHECK(contains(huge.out, "could not hold it even if they were idle"));
  const auto why = home.run({"why", "train"});
  CHECK_MESSAGE(contains(why.out, "of which CPU 0 is free"), why.out, why.err);
  CHECK(contains(home.run({"why", "talker"}).out, "it waits for nothing"));
  // Names, owners, supervisors.
  const auto actors = home.run({"actors"});
  CHECK(contains(actors.out, "job-"));
  CHECK(contains(actors.out, "test driver"));
  CHECK(contains(actors.out, "crew"));
  const auto talker = home.run({"why", "talker"});
  CHECK(contains(talker.out, "it ends with its owner, test driver"));
  CHECK(contains(talker.out, "supervisor crew (one-for-one, 0 restarts so far) starts it again"));
  const auto crew = home.run({"why", "crew"});
  CHECK(contains(crew.out, "Supervisor crew"));
  CHECK(contains(crew.out, "actor talker"));
  const auto told = home.run_json({"why", "huge"});
  CHECK(json::find(told, "groups")->as_array().size() == 1);
  const auto absent = home.run({"why", "nobody"});
  CHECK(absent.exit_code == 3);
  CHECK(contains(absent.err, "no run, actor, placement group or supervisor 'nobody'"));
  CHECK(contains(home.run({"why", "nobody's"}).err,
                 "it is not the output directory of a run, and the cluster has no run, actor, "));
  CHECK(home.run({"stop"}).exit_code == 0);
}

TEST_CASE("tasks, pools, groups and pipelines are listed, and who holds others up is told") {
  const TroupeHome home;
  auto head = start_head(home);
  auto worker = start_worker(home, head, {"--num-cpus", "1"});
  BackgroundCommand driver(
      {bin_dir() + "/test_tools_driver", head.address(), home.token_file(), "talker", "work"},
      home.options());
  REQUIRE_MESSAGE(driver.wait_for_output("ready", kPatience), driver.output());
  // What the driver says of itself comes within a second.
  const auto until = Deadline::after(kPatience);
  std::string owner, why;
  do {
    const auto told = home.run_json({"tasks"});
    const auto& all = json::find(told, "tasks")->as_array();
    if (all.empty()) continue;
    owner = json::find_string(all[0], "owner").value_or("");
    why = home.run({"why", owner}).out;
  } while ((!contains(why, "2 of its tasks wait") || !contains(why, "is full")) && !until.passed());
  CHECK_MESSAGE(contains(why, "2 of its tasks wait for one of 1 workers with CPU 1 each"), why);
  CHECK_MESSAGE(contains(why, "more workers were asked for: "), why);
  CHECK_MESSAGE(contains(why,
                         "its pipeline 1 (read → slow) is full: 4 items under way, 4 of them "
                         "at 'slow', which holds the others up"),
                why);

  const auto tasks = home.run_json({"tasks"});
  const auto& of_driver = json::find(tasks, "tasks")->as_array();
  REQUIRE(of_driver.size() == 1);
  CHECK(owner.starts_with("test driver "));
  CHECK(json::find_integer(of_driver[0], "waiting") == 2);
  CHECK(json::find_integer(of_driver[0], "running") == 1);
  CHECK(json::find_integer(of_driver[0], "workers") == 1);
  CHECK(json::find_integer(of_driver[0], "workers_awaited") >= 1);
  const auto table = home.run({"tasks"}).out;
  CHECK_MESSAGE(contains(table, owner + "  CPU 1"), table);

  const auto groups = home.run_json({"groups"});
  const auto& of_actors = json::find(groups, "actor_groups")->as_array();
  REQUIRE(of_actors.size() == 2);
  const auto& pool =
      json::find_string(of_actors[0], "kind") == "pool" ? of_actors[0] : of_actors[1];
  const auto& group =
      json::find_string(of_actors[0], "kind") == "pool" ? of_actors[1] : of_actors[0];
  CHECK(json::find_integer(pool, "members") == 1);
  CHECK(json::find_string(group, "axes") == "dp 2, tp 1");
  CHECK(json::find_integer(*json::find(group, "processes"), "alive") == 2);
  CHECK(contains(home.run({"groups"}).out, "Groups and pools of actors:\n"));

  const auto pipelines = home.run_json({"pipelines"});
  const auto& list = json::find(pipelines, "pipelines")->as_array();
  REQUIRE(list.size() == 1);
  CHECK(json::find_string(list[0], "held_up_by") == "slow");
  CHECK(json::find(list[0], "stages")->as_array().size() == 2);
  CHECK(contains(home.run({"pipelines"}).out, "holds the others up"));
  const auto status = home.run({"status"}).out;
  CHECK_MESSAGE(contains(status, "Tasks      1 running, 2 waiting; 1 workers"), status);
  CHECK_MESSAGE(contains(status, owner + ": pipeline 1 (read → slow) is full"), status);
  CHECK(home.run({"stop"}).exit_code == 0);
}

TEST_CASE(
    "a driver that is told nothing finds the head that was started here, and says when it is "
    "gone") {
  const TroupeHome home;
  auto head = start_head(home);
  auto worker = start_worker(home, head, {"--num-cpus", "1"});
  const auto driver = [&] {
    return run_command({bin_dir() + "/test_tools_driver", "talker", "9"}, home.options());
  };
  const auto found = driver();
  CHECK(found.exit_code == 9);
  CHECK(contains(found.out, "ready"));
  CHECK(contains(found.err, "[talker] the actor says hello from talker"));
  head.process->kill(SIGKILL);
  REQUIRE(head.process->wait(kPatience) != 0);
  const auto gone = driver();
  CHECK(gone.exit_code == 3);
  CHECK(contains(gone.err, "the head at " + head.address() + " is gone"));
  CHECK(contains(gone.err, "or remove that file"));
  // As `troupe` says it.
  CHECK(contains(home.run({"status"}).err, "the head at " + head.address() + " is gone"));
}

TEST_CASE("a cluster of a head, two workers and a driver, seen by every tool") {
  const TroupeHome home;
  auto head = start_head(home);
  auto first = start_worker(home, head,
                            {"--num-cpus", "2", "--resources", "ssd=1,licence=2", "--labels",
                             "rack=7", "--memory", "1Gi"});
  auto second = start_worker(home, head, {"--num-cpus", "1"});
  BackgroundCommand driver(
      {bin_dir() + "/test_tools_driver", head.address(), home.token_file(), "talker"},
      home.options());
  // Its standard input is empty, so it ends by itself once it has spoken.
  REQUIRE_MESSAGE(driver.wait_for_output("ready", kPatience), driver.output());
  CHECK(driver.wait(kPatience) == 0);
  // What its actor said far away stands among what it said itself.
  CHECK(contains(driver.output(), "[talker] the actor says hello from talker\n"));

  const auto status = home.run_json({"status"});
  CHECK(json::find_integer(*json::find(status, "nodes"), "alive") == 2);
  CHECK(json::find_integer(*json::find(*json::find(status, "resources"), "total"), "CPU") == 3);
  CHECK(json::find_integer(*json::find(*json::find(status, "resources"), "total"), "licence") == 2);
  const auto text = home.run({"status"});
  CHECK(text.exit_code == 0);
  CHECK(contains(text.out, "Nodes      2 alive"));
  CHECK(contains(text.out, head.address()));

  const auto nodes = home.run_json({"nodes"});
  const auto& list = json::find(nodes, "nodes")->as_array();
  REQUIRE(list.size() == 2);
  CHECK(json::find_string(list[0], "name") != json::find_string(list[1], "name"));
  const auto table = home.run({"nodes"});
  CHECK(contains(table.out, "rack=7"));
  CHECK(contains(table.out, "licence 0/2, ssd 0/1"));
  CHECK(contains(table.out, "0 bytes/1 GiB"));

  CHECK(contains(home.run({"nodes"}).out, "alive"));
  const auto drained = home.run({"drain", json::find_string(list[1], "node_id").value()});
  CHECK_MESSAGE(drained.exit_code == 0, drained.err);
  CHECK(contains(drained.out, "takes no new actors"));
  CHECK(contains(home.run({"nodes"}).out, "draining"));
  CHECK(home.run({"drain", "nobody"}).exit_code == 3);

  CHECK(contains(home.run({"actors"}).out, "No living actors"));
  const auto actors = home.run_json({"actors", "--all"});
  const auto& talker = json::find(actors, "actors")->as_array().at(0);
  CHECK(json::find_string(talker, "name") == "talker");
  CHECK(json::find_string(talker, "state") == "dead");
  CHECK(contains(home.run({"actors", "--all"}).out, "talker"));

  const auto events = home.run_json({"events"});
  CHECK(json::find(events, "events")->as_array().size() >= 4);
  CHECK(contains(home.run({"events"}).out, "node_joined"));
  CHECK(json::find(home.run_json({"events", "--last", "1"}), "events")->as_array().size() == 1);

  const auto stopped = home.run({"stop"});
  CHECK_MESSAGE(stopped.exit_code == 0, stopped.err);
  CHECK(contains(stopped.out, "has ended"));
  CHECK(head.process->wait(kPatience) == 0);
  CHECK(first->wait(kPatience) == 0);
  CHECK(second->wait(kPatience) == 0);
  CHECK(home.things() == std::vector<string>{"token"});
}

TEST_CASE("logs come from the node itself, by name, by the id's first digits, and for a node") {
  const TroupeHome home;
  auto head = start_head(home, {"--address", "127.0.0.1", "--with-worker", "--num-cpus", "2"});
  REQUIRE(home.eventually({"status"}, R"("alive":1)"));
  // A pipe without an end keeps the driver's standard input open.
  BackgroundCommand driver(
      {"sh", "-c", "sleep 600 | exec \"$@\"", "sh", bin_dir() + "/test_tools_driver",
       head.address(), home.token_file(), "talker"},
      home.options());
  REQUIRE_MESSAGE(driver.wait_for_output("ready", kPatience), driver.output());
  const string expected = "the actor says hello from talker\n";
  CHECK(home.run({"logs", "talker"}).out == expected);
  const auto actors = home.run_json({"actors"});
  const auto& talker = json::find(actors, "actors")->as_array().at(0);
  CHECK(json::find_string(talker, "state") == "alive");
  const auto id = json::find_string(talker, "actor_id").value();
  const auto pid = static_cast<pid_t>(json::find_integer(talker, "pid").value());
  CHECK(is_running(pid));
  CHECK(home.run({"logs", id.substr(0, 8)}).out == expected);
  CHECK(home.run({"logs", id, "--bytes", "7"}).out.size() <= 8);
  CHECK(json::find_string(home.run_json({"logs", "talker"}), "text") == expected);
  const auto nodes = home.run_json({"nodes"});
  const auto node = json::find(nodes, "nodes")->as_array().at(0);
  CHECK(home.run({"logs", json::find_string(node, "name").value()}).exit_code == 0);
  const auto follower = start_troupe(home, {"logs", "talker", "--follow"});
  CHECK(follower->wait_for_output(expected, kPatience));
  const auto no_actor = home.run({"logs", json::find_string(node, "name").value(), "--follow"});
  CHECK(no_actor.exit_code == 2);
  CHECK(contains(no_actor.err, "is a node"));
  const auto unknown = home.run({"logs", "nobody"});
  CHECK(unknown.exit_code == 3);
  CHECK(contains(unknown.err, "no job, actor or node 'nobody'"));

  // The driver is killed: its actor ends, without anybody telling it to.
  driver.kill(SIGKILL);
  for (const pid_t other : processes_with("test_tools_driver " + head.address())) {
    ::kill(other, SIGKILL);
  }
  CHECK(home.eventually({"status"}, R"("dead":1},"tasks")"));
  CHECK_FALSE(is_running(pid));
  CHECK(follower->wait(kPatience) == 0);  // its actor has ended
  // The last lines are still there, of the dead as of the living.
  CHECK(home.run({"logs", "talker"}).out == expected);
  CHECK(home.run({"stop"}).exit_code == 0);
  CHECK(head.process->wait(kPatience) == 0);
  CHECK(processes_with("host --actor Talker").empty());
}

TEST_CASE("a taken port is an error that names it") {
  const TroupeHome home;
  auto head = start_head(home);
  const string port = std::to_string(head.port);
  const auto again = home.run({"head", "--address", "127.0.0.1", "--port", port});
  CHECK(again.exit_code == 2);
  CHECK(contains(again.err, "port " + port));
  CHECK(contains(again.err, "taken"));

  TroupeHome other;
  other.more().environment["MASTER_PORT"] = port;
  const auto master = other.run({"head", "--address", "127.0.0.1"});
  CHECK(master.exit_code == 2);
  CHECK(contains(master.err, "port " + port));
  other.more().environment["MASTER_PORT"] = "99999";
  CHECK(other.run({"head", "--address", "127.0.0.1"}).exit_code == 2);

  const auto worker =
      home.run({"worker", "--address", head.address(), "--port", port, "--timeout", "5"});
  CHECK(worker.exit_code == 2);
  CHECK(contains(worker.err, port));
  // The first head has not noticed a thing.
  CHECK(home.run({"status"}).exit_code == 0);
  CHECK(home.run({"stop"}).exit_code == 0);
}

TEST_CASE("a state directory belongs to one head") {
  const TroupeHome home;
  const string state = home.file("state");
  auto head = start_head(home, {"--address", "127.0.0.1", "--state-dir", state});
  const auto second = home.run({"head", "--address", "127.0.0.1", "--state-dir", state});
  CHECK(second.exit_code == 2);
  CHECK(contains(second.err, state));
  CHECK(home.run({"stop"}).exit_code == 0);
}

TEST_CASE("a wrong token is refused, and a token that others can read") {
  const TroupeHome home;
  const TroupeHome stranger;
  auto head = start_head(home);
  auto own = start_head(stranger);  // makes the stranger's token
  for (const auto& command :
       std::vector<std::vector<string>>{{"worker", "--address", head.address(), "--timeout", "10"},
                                        {"status", "--address", head.address()},
                                        {"stop", "--address", head.address()}}) {
    const auto refused = stranger.run(command);
    CHECK(refused.exit_code == 4);
    CHECK(contains(refused.err, "token"));
  }
  CHECK(stranger.run({"stop"}).exit_code == 0);

  run_command({"chmod", "644", stranger.token_file()});
  const auto readable = stranger.run({"status", "--address", head.address()});
  CHECK(readable.exit_code == 4);
  CHECK(contains(readable.err, "chmod"));
  const TroupeHome nobody;
  const auto missing = nobody.run({"worker", "--address", head.address()});
  CHECK(missing.exit_code == 3);
  CHECK(contains(missing.err, "copy"));
  // With the right one, from where it is: the file of the head's owner.
  CHECK(nobody.run({"status", "--address", head.address(), "--token-file", home.token_file()})
            .exit_code == 0);
  CHECK(home.run({"stop"}).exit_code == 0);
}

TEST_CASE("a token by standard input is nowhere to be seen") {
  const TroupeHome home;
  const string token = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
  run_command({"sh", "-c", "echo " + token + " > \"$0\"; chmod 600 \"$0\"", home.file("secret")});
  const auto troupe = bin_dir() + "/troupe";
  BackgroundCommand head({"sh", "-c", "exec \"$0\" head --address 127.0.0.1 --token-stdin < \"$1\"",
                          troupe, home.file("secret")},
                         home.options());
  REQUIRE_MESSAGE(head.wait_for_output("Ctrl-C", kPatience), head.output());
  CHECK(contains(head.output(), "--token-stdin"));
  CHECK_FALSE(contains(head.output(), token));
  const string proc = "/proc/" + std::to_string(head.pid());
  CHECK_FALSE(contains(run_command({"cat", proc + "/cmdline", proc + "/environ"}).out, token));
  CHECK_FALSE(contains(run_command({"grep", "-r", token, home.file(".troupe")}).out, token));
  CHECK(home.run({"status"}).exit_code == 3);  // which token? there is none here
  auto with_input = home.options();
  with_input.input = token + "\n";
  CHECK(run_command({troupe, "status", "--token-stdin"}, with_input).exit_code == 0);
  CHECK(run_command({troupe, "stop", "--token-stdin"}, with_input).exit_code == 0);
  CHECK(head.wait(kPatience) == 0);
}

TEST_CASE("a worker waits for its head, says so, and gives up at its deadline") {
  const TroupeHome home;
  auto head = start_head(home);
  REQUIRE(home.run({"stop"}).exit_code == 0);
  REQUIRE(head.process->wait(kPatience) == 0);
  const auto alone = home.run({"worker", "--address", head.address(), "--timeout", "1"});
  CHECK(alone.exit_code == 6);
  CHECK(contains(alone.err, head.address()));

  auto worker = start_troupe(home, {"worker", "--address", head.address(), "--timeout", "60"});
  REQUIRE_MESSAGE(worker->wait_for_output("waiting", kPatience), worker->output());
  auto late = start_head(home, {"--address", "127.0.0.1", "--port", std::to_string(head.port)});
  CHECK(worker->wait_for_output("joined the cluster", kPatience));
  CHECK(home.run({"stop"}).exit_code == 0);
  CHECK(worker->wait(kPatience) == 0);
}

TEST_CASE("Ctrl-C at the head ends the whole cluster and leaves nothing") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TroupeHome home;
    auto head = start_head(home);
    auto worker = start_worker(home, head, {"--num-cpus", "1"});
    head.process->kill(signal);
    CHECK(head.process->wait(kPatience) == 0);
    CHECK(worker->wait(kPatience) == 0);
    CHECK(home.things() == std::vector<string>{"token"});
    const auto after = home.run({"status"});
    CHECK(after.exit_code == 3);
    CHECK(contains(after.err, "troupe head"));
  }
}

TEST_CASE("Ctrl-C at a worker ends that node alone") {
  const TroupeHome home;
  auto head = start_head(home);
  auto worker = start_worker(home, head);
  worker->kill(SIGINT);
  CHECK(worker->wait(kPatience) == 0);
  CHECK(home.eventually({"status"}, R"("alive":0,"dead":1)"));
  auto next = start_worker(home, head);
  CHECK(home.run({"stop"}).exit_code == 0);
  CHECK(next->wait(kPatience) == 0);
}

TEST_CASE("a head killed by -9 comes back with its journal, and its worker finds it") {
  const TroupeHome home;
  auto head = start_head(home);
  auto worker = start_worker(home, head, {"--num-cpus", "1", "--labels", "zone=b"});
  const auto before = home.run_json({"nodes"});
  head.process->kill(SIGKILL);
  CHECK(head.process->wait(kPatience) == 128 + SIGKILL);

  const auto stale = home.run({"status"});
  CHECK(stale.exit_code == 3);
  CHECK(contains(stale.err, "is gone"));
  CHECK(contains(stale.err, "--port " + std::to_string(head.port)));

  // Without its port another cluster begins, which is said.
  auto other = start_head(home);
  CHECK(contains(other.process->output(), "'troupe head --port " + std::to_string(head.port)));
  CHECK(home.run({"stop"}).exit_code == 0);
  CHECK(other.process->wait(kPatience) == 0);

  auto again = start_head(home, {"--address", "127.0.0.1", "--port", std::to_string(head.port)});
  CHECK_FALSE(contains(again.process->output(), "was killed"));
  REQUIRE(home.eventually({"events"}, "node_returned"));
  const auto after = home.run_json({"nodes"});
  const auto& node = json::find(after, "nodes")->as_array().at(0);
  CHECK(json::find_string(node, "node_id") ==
        json::find_string(json::find(before, "nodes")->as_array().at(0), "node_id"));
  CHECK(json::find_string(node, "state") == "alive");
  CHECK(contains(home.run({"events"}).out, "node_joined"));  // from before the kill
  CHECK(home.run({"stop"}).exit_code == 0);
  CHECK(worker->wait(kPatience) == 0);
  CHECK(home.things() == std::vector<string>{"token"});
}

TEST_CASE("the record of the head started last stays when an earlier one ends") {
  TroupeHome home;
  auto first = start_head(home);
  auto second = start_head(home);
  CHECK(first.port != second.port);
  CHECK(home.run({"stop", "--address", first.address()}).exit_code == 0);
  CHECK(first.process->wait(kPatience) == 0);
  CHECK(json::find_integer(home.run_json({"status"}), "port") == second.port);
  home.more().environment["TROUPE_ADDRESS"] = second.address();
  CHECK(contains(home.run({"status"}).out, "from TROUPE_ADDRESS"));
  CHECK(home.run({"stop"}).exit_code == 0);
}

}  // namespace
}  // namespace troupe::tests
