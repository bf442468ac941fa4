// The programs of jobs on a node: found, told of their cluster, run without our protocol, stopped
// with their whole process group.

#include "scheduler/node/program.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "scheduler/node/host_process.h"
#include "tests/scheduler/node/node_driver.h"
#include "tests/scheduler/support.h"
#include "tests/support/test_data.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;
using troupe::tests::Inbox;
using troupe::tests::on_loop;
using troupe::tests::TemporaryDirectory;

// --- the node's decisions ------------------------------------------------------------------------

wire::StartActor program_start(const NodeDriver& d, std::uint64_t n) {
  auto start = d.start_message(n, 1);
  start.spec.restart = {};
  start.spec.job_id = JobId{5, 5};
  start.spec.program = {{"/bin/true"}, "/"};
  return start;
}

HostId run_program(NodeDriver& d, std::uint64_t n) {
  d.apply(node_event::FromHead{program_start(d, n)});
  REQUIRE(d.did<node_command::SpawnHost>());
  return d.spawned();
}

TEST_CASE("a program is ready when it runs, and hears nothing of us") {
  NodeDriver d;
  d.join();
  const HostId host = run_program(d, 1);
  CHECK(d.said<wire::ActorStarted>());
  CHECK(d.said<wire::ActorReady>());
  CHECK_FALSE(d.did<node_command::TellHost>());
  // It has no socket to us.
  d.apply(node_event::ChannelEnded{host, error(Code::kUnavailable, "x")});
  d.advance(1min);
  CHECK_FALSE(d.did<node_command::KillGroup>());
  // Nor to others.
  const Status refused = d.state.check_actor(ActorId{1, 1});
  CHECK(refused.code() == Code::kFailedPrecondition);
  CHECK(refused.message().find("is a job's program") != std::string::npos);
  d.apply(node_event::ConnectionArrived{ActorId{1, 1}, d.fd(), {"actor/x", "peer", true}});
  CHECK(d.open.empty());
  CHECK_FALSE(d.did<node_command::TellHost>());
}

TEST_CASE("a program that ends by itself takes along what it left behind") {
  NodeDriver d;
  d.join();
  const HostId host = run_program(d, 1);
  d.leader_ends(host);
  CHECK(d.did<node_command::KillGroup>());
  d.group_goes(host);
  CHECK(d.did<node_command::ReportExit>());
}

TEST_CASE("a job is stopped by SIGTERM to the group, which has the grace as a whole") {
  NodeDriver d;
  d.join();
  const HostId host = run_program(d, 1);
  d.apply(node_event::FromHead{wire::StopActor{ActorId{1, 1}, 1, 5000, "x"}});
  CHECK(d.told<wire::HostStop>());  // which the daemon makes a signal of
  CHECK_FALSE(d.did<node_command::KillGroup>());
  d.advance(1s);
  // The shell is gone; what it started saves its work.
  d.leader_ends(host);
  CHECK_FALSE(d.did<node_command::KillGroup>());
  CHECK_FALSE(d.did<node_command::ReportExit>());
  SUBCASE("and ends in time") {
    d.group_goes(host);
    CHECK(d.did<node_command::ReportExit>());
    CHECK(d.state.process_count() == 0);
  }
  SUBCASE("and does not") {
    d.advance(3999ms);
    CHECK_FALSE(d.did<node_command::KillGroup>());
    d.advance(1ms);
    CHECK(d.did<node_command::KillGroup>());
  }
  SUBCASE("and the patience is over") {
    d.apply(node_event::FromHead{wire::StopActor{ActorId{1, 1}, 1, 0, "x"}});
    CHECK(d.did<node_command::KillGroup>());
  }
}

TEST_CASE("what is kept for a job lasts as long as its program runs here, and no longer") {
  NodeDriver d;
  d.join();
  const HostId program = run_program(d, 1);
  auto start = d.start_message(2, 1);
  start.spec.job_id = JobId{5, 5};
  start.spec.restart = {};
  d.apply(node_event::FromHead{start});
  const HostId actor = d.spawned();
  d.apply(node_event::FromHost{actor, wire::HostReady{}});
  d.apply(node_event::FromHost{actor, wire::HostKeepSegment{"weights", false}, d.fd()});
  d.end(actor);
  CHECK(d.state.segment(JobId{5, 5}, "weights"));  // for the job's next actor
  d.end(program);
  CHECK_FALSE(d.state.segment(JobId{5, 5}, "weights"));
  CHECK(d.open.empty());
}

TEST_CASE("the next daemon takes a program up as one that runs") {
  NodeDriver d;
  d.join();
  const HostId host = run_program(d, 1);
  d.restart();
  CHECK_FALSE(d.did<node_command::TellHost>());
  d.apply(node_event::HeadUp{});
  REQUIRE(d.said<wire::RegisterNode>());
  const auto& running = d.said<wire::RegisterNode>()->running;
  REQUIRE(running.size() == 1);
  CHECK(running[0].ready);
  CHECK(running[0].spec.actor_id == ActorId{1, 1});
  wire::RegisterNodeReply reply;
  d.apply(node_event::FromHead{reply});
  d.end(host);
  CHECK(d.did<node_command::ReportExit>());
}

TEST_CASE("a host of another version is refused by name") {
  NodeDriver d;
  d.join();
  auto start = d.start_message(1, 1);
  start.spec.image.path = "/opt/app/driver";
  d.apply(node_event::FromHead{start});
  const HostId host = d.spawned();
  REQUIRE(d.told<wire::HostStart>());
  CHECK(d.told<wire::HostStart>()->protocol_version == wire::kProtocolVersion);
  d.apply(node_event::FromHost{host, wire::HostReady{.protocol_version = 0}});
  CHECK_FALSE(d.said<wire::ActorReady>());
  CHECK(d.did<node_command::KillGroup>());
  d.leader_ends(host);
  d.group_goes(host);
  REQUIRE(d.did<node_command::ReportExit>());
  const Status cause = d.did<node_command::ReportExit>()->exited.cause;
  CHECK(cause.code() == Code::kProtocol);
  CHECK(cause.message() ==
        "its program /opt/app/driver speaks protocol 0, node n speaks 4: build the program with "
        "the version of troupe that the nodes run");
}

// --- what is started -----------------------------------------------------------------------------

struct Place {
  TemporaryDirectory directory;
  MapEnvironment environment;
  wire::ActorSpec spec;
  ProgramSurroundings surroundings{
      .node = "n1", .head = {"10.0.0.2", 6379, "local"}, .token_file = "/home/a/.troupe/token"};

  Place() {
    file("bin/tool");
    file("work/run.sh");
    environment = MapEnvironment({{"PATH", "/nowhere:" + directory.file("bin")}});
    spec.job_id = JobId{1, 2};
    spec.program.working_directory = directory.file("work");
    spec.program.argv = {"./run.sh", "--lr", "3"};
    spec.environment = {{"SEED", "7"}};
  }
  void file(const std::string& name, bool executable = true) {
    const std::filesystem::path path = directory.file(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "#!/bin/sh\n";
    if (executable) {
      std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    }
  }
  Result<process::SpawnOptions> options() const {
    return program_options(spec, surroundings, environment);
  }
  void refused(Code code, const std::string& text) const {
    const Status status = options().status();
    CHECK(status.code() == code);
    CHECK_MESSAGE(status.message().find(text) != std::string::npos, status.message());
  }
};

TEST_CASE("a program is found by its path, from its directory, or in the PATH") {
  Place place;
  auto options = place.options().value();
  CHECK(std::filesystem::equivalent(options.path, place.directory.file("work/run.sh")));
  CHECK(options.argv == place.spec.program.argv);
  CHECK(options.working_directory == place.directory.file("work"));
  place.spec.program.argv = {place.directory.file("bin/tool")};
  CHECK(place.options()->path == place.directory.file("bin/tool"));
  place.spec.program.argv = {"tool"};
  CHECK(place.options()->path == place.directory.file("bin/tool"));
  place.spec.environment["PATH"] = "/nowhere";  // the job's own goes before the node's
  place.refused(Code::kNotFound, "node n1 has no program 'tool' in its PATH (/nowhere)");
}

TEST_CASE("a program is told where its cluster is and whose it is, never the token") {
  Place place;
  auto environment = place.options()->environment;
  CHECK(environment.at("SEED") == "7");
  CHECK(environment.at("TROUPE_ADDRESS") == "10.0.0.2:6379");
  CHECK(environment.at("TROUPE_TOKEN_FILE") == "/home/a/.troupe/token");
  CHECK(environment.at("TROUPE_INSECURE") == "0");
  CHECK(environment.at("TROUPE_JOB_ID") == JobId{1, 2}.to_string());
  CHECK(environment.size() == 5);
  place.surroundings.security = net::Security::kInsecure;
  CHECK(place.options()->environment.at("TROUPE_INSECURE") == "1");
}

TEST_CASE("what is not on the node is named, with the node and the way out") {
  Place place;
  place.spec.program.argv = {"./absent.sh"};
  place.refused(Code::kNotFound, "node n1 has no file " + place.directory.file("work/absent.sh"));
  place.file("work/plain.txt", false);
  place.spec.program.argv = {"./plain.txt"};
  place.refused(Code::kPermissionDenied, "on node n1 is not executable: 'chmod +x' it");
  place.spec.program.working_directory = place.directory.file("absent");
  place.refused(Code::kNotFound, "node n1 has no directory " + place.directory.file("absent"));
  place.surroundings.token_file.clear();
  place.refused(Code::kFailedPrecondition,
                "node n1 has no token file that a job's driver could read");
}

// --- processes -----------------------------------------------------------------------------------

struct RunningProgram {
  Inbox<std::string> lines;
  Inbox<wire::ExitStatus> ended;
  Inbox<int> gone;
  std::unique_ptr<HostProcess> host;
  net::LoopThread thread{"program"};  // ends first
  OwnChildren parent{thread.loop()};

  explicit RunningProgram(const std::string& script) {
    wire::ActorSpec spec;
    spec.type = "script";
    spec.job_id = JobId{5, 5};
    spec.program = {{"/bin/sh", "-c", script}, "/"};
    auto log = std::make_shared<ActorLog>(
        thread.loop(), spec, OutputLimits(),
        [this](const wire::OutputLine& line) { lines.put(line.text); }, std::nullopt);
    CHECK(log->job_id().empty());  // its lines are not its actors'
    auto options =
        program_options(spec, {.node = "n", .head = {}, .token_file = "/t"}, MapEnvironment())
            .value();
    on_loop(thread.loop(), [&] {
      host = HostProcess::spawn_program(
                 {thread.loop(), parent, 1, std::move(log), Logger::discard(), true},
                 std::move(options),
                 {.on_message = [](wire::HostMessage, UniqueFd) {},
                  .on_channel_end = [](Status) {},
                  .on_leader_end = [this](wire::ExitStatus exit) { ended.put(exit); },
                  .on_group_gone = [this] { gone.put(1); }})
                 .value();
      return 0;
    });
  }
  ~RunningProgram() {
    on_loop(thread.loop(), [this] {
      host.reset();
      return 0;
    });
  }
  void ask_to_stop() {
    CHECK(on_loop(thread.loop(), [&] { return host->tell(wire::HostStop{}, -1).ok(); }));
  }
};

TEST_CASE("a program's output and exit code are heard; it has an empty input and no socket") {
  RunningProgram program(R"(cat; ls /proc/self/fd | tr '\n' ' '; echo; echo err >&2; exit 3)");
  CHECK(program.ended.take().exit_code == 3);
  program.gone.take();
  const std::string descriptors = program.lines.take(
      [](const std::string& line) { return line.find("0 1 2") != std::string::npos; });
  CHECK_MESSAGE(descriptors.starts_with("0 1 2 3 "), descriptors);  // 3: what lists them
  CHECK(descriptors.find(" 4") == std::string::npos);
  CHECK(program.lines.has([](const std::string& line) { return line == "err"; }));
}

TEST_CASE("the end of a program's group is seen without killing it") {
  // The shell ends at the signal; its child takes a moment more, and says so.
  RunningProgram program(
      R"(sh -c 'trap "echo saved; exit 0" TERM; echo up; while :; do sleep 0.01; done' & wait)");
  program.lines.take([](const std::string& line) { return line == "up"; });
  program.ask_to_stop();
  CHECK(program.ended.take().signal == SIGTERM);
  program.gone.take();
  program.lines.take([](const std::string& line) { return line == "saved"; });
}

}  // namespace
}  // namespace troupe::scheduler::tests
