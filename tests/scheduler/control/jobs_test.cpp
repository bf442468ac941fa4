// Jobs: submitted, placed, run, ended with all that is theirs, known to a head that comes back.

#include "scheduler/policy/program_kind.h"
#include "tests/scheduler/control/desk.h"
#include "tests/support/text.h"

namespace troupe::scheduler::tests {
namespace {

using troupe::tests::contains;

constexpr PeerId kInside = 2;   // a driver in the job's program
constexpr PeerId kInside2 = 3;  // another one
constexpr PeerId kOutside = 4;  // a driver that connected by itself
const JobId kJob{70, 1};
const JobId kOtherJob{70, 2};
const ActorId kProgram{80, 1};
const ActorId kOtherProgram{80, 2};
const GroupId kJobsGroup{90, 1};

wire::SubmitJob submission(JobId job = kJob, ActorId program = kProgram, std::int64_t cpus = 0) {
  wire::SubmitJob message;
  message.request_id = 20;
  message.name = "nightly";
  message.driver.actor_id = program;
  message.driver.job_id = job;
  message.driver.type = "train.sh";
  message.driver.program.argv = {"./train.sh", "--name", "a b"};
  message.driver.program.working_directory = "/work";
  if (cpus > 0) message.driver.resources = Desk::cpus(cpus);
  return message;
}

struct JobDesk : Desk {
  const wire::JobInfo& job(JobId id = kJob) { return head.jobs().at(id).info; }
  void submit(JobId id = kJob, ActorId program = kProgram, std::int64_t cpus = 0) {
    say(kDriver, submission(id, program, cpus));
  }
  void run(JobId id = kJob, ActorId program = kProgram, PeerId node = kNodeOne) {
    submit(id, program);
    ready(node, program, 1);
    REQUIRE(job(id).state == wire::JobState::kRunning);
  }
  void exits(PeerId peer, ActorId program, wire::ExitStatus exit, std::string tail = {}) {
    wire::ActorExited exited;
    exited.actor_id = program;
    exited.generation = 1;
    exited.exit = exit;
    exited.log_tail = std::move(tail);
    say(peer, std::move(exited));
  }
  Status hello(PeerId peer, JobId id, const std::string& kind = "driver") {
    wire::ClientHello message;
    message.request_id = 21;
    message.client_id = ClientId{60, peer};
    message.job_id = id;
    message.name = kind + " " + std::to_string(peer);
    message.kind = kind;
    say(peer, message);
    return reply_to(peer);
  }
  Status reply_to(PeerId peer) {
    const auto replies = sent<wire::Reply>(peer);
    REQUIRE(replies.size() == 1);
    return replies[0].status;
  }
  Status create_from(PeerId peer, wire::ActorSpec actor) {
    wire::CreateActors message;
    message.request_id = 22;
    message.specs = {std::move(actor)};
    say(peer, std::move(message));
    return reply_to(peer);
  }
  Status stop(JobId id, std::int64_t grace_ms = 5000) {
    say(kDriver, wire::StopJob{23, id, grace_ms, "enough"});
    return answer();
  }
  std::vector<wire::JobInfo> list(bool ended = true) {
    say(kDriver, wire::ListJobs{24, ended});
    const auto lists = sent<wire::JobList>(kDriver);
    REQUIRE(lists.size() == 1);
    return lists[0].jobs;
  }
  std::size_t events(const std::string& kind) {
    say(kDriver, wire::ListEvents{25, 0, 10'000});
    std::size_t count = 0;
    const auto lists = sent<wire::EventList>(kDriver);
    REQUIRE(lists.size() == 1);
    for (const auto& event : lists[0].events) {
      if (event.kind == kind) ++count;
    }
    return count;
  }
};

TEST_CASE("a job's program is started like an actor, and its exit code is the job's") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 2);
  desk.submit(kJob, kProgram, 1);
  CHECK(desk.answer().ok());
  const auto starts = desk.sent<wire::StartActor>(kNodeOne);
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].spec.program.argv.at(0) == "./train.sh");
  CHECK(starts[0].spec.program.working_directory == "/work");
  CHECK(starts[0].spec.job_id == kJob);
  CHECK(desk.job().state == wire::JobState::kPending);
  CHECK(desk.free_cpus(kIdOne) == 1);
  desk.ready(kNodeOne, kProgram, 1);
  CHECK(desk.job().state == wire::JobState::kRunning);
  CHECK(desk.job().node_id == kIdOne);
  CHECK(desk.job().started_unix_us == desk.now.unix_us);

  desk.now.unix_us += 5'000'000;
  SUBCASE("it succeeded") {
    desk.exits(kNodeOne, kProgram, {});
    CHECK(desk.job().state == wire::JobState::kSucceeded);
    CHECK(desk.job().exit == wire::ExitStatus());
    CHECK(desk.job().why.empty());
    CHECK(desk.events("job_succeeded") == 1);
  }
  SUBCASE("it failed: the last output says why") {
    desk.exits(kNodeOne, kProgram, {.exit_code = 3}, "no such file\n");
    CHECK(desk.job().state == wire::JobState::kFailed);
    CHECK(desk.job().exit->exit_code == 3);
    CHECK(desk.job().why.starts_with("its program on node machine ended: exit code 3"));
    CHECK(contains(desk.job().why, "no such file"));
  }
  SUBCASE("it was killed") {
    desk.exits(kNodeOne, kProgram, {.signal = 9});
    CHECK(desk.job().state == wire::JobState::kFailed);
    CHECK(desk.job().exit->signal == 9);
  }
  CHECK(desk.job().ended_unix_us - desk.job().started_unix_us == 5'000'000);
  CHECK(desk.free_cpus(kIdOne) == 2);
  CHECK(desk.list(false).empty());
  const auto all = desk.list();
  REQUIRE(all.size() == 1);
  CHECK(all[0].name == "nightly");
  CHECK(all[0].command == "./train.sh --name 'a b'");
  CHECK(all[0].driver == kProgram);
}

TEST_CASE("a program that could not be started: failed, without an exit code, with the reason") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.submit();
  wire::ActorExited exited{kProgram, 1};
  exited.cause = Status(Code::kNotFound, "node machine has no file /work/train.sh");
  desk.say(kNodeOne, exited);
  CHECK(desk.job().state == wire::JobState::kFailed);
  CHECK_FALSE(desk.job().exit.has_value());
  CHECK(contains(desk.job().why, "no file /work/train.sh"));
  CHECK(desk.job().started_unix_us == 0);
}

TEST_CASE("a job that runs says what of it waits for room") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 4);
  desk.run(kJob, kProgram, kNodeOne);
  REQUIRE(desk.hello(kInside, kJob).ok());
  CHECK(desk.create_from(kInside, Desk::spec({1, 1})).ok());
  CHECK(desk.list().at(0).why.empty());
  auto large = Desk::spec({1, 2}, 4);
  large.name = "large";
  CHECK(desk.create_from(kInside, large).ok());
  CHECK(contains(desk.list().at(0).why, "'large' waits: "));
  CHECK(contains(desk.list().at(0).why, "CPU 4"));
  CHECK_FALSE(contains(desk.list().at(0).why, "more wait"));
  CHECK(desk.create_from(kInside, Desk::spec({1, 3}, 4)).ok());
  desk.say(kInside, wire::CreatePlacementGroup{26, Desk::group(kJobsGroup, {4})});
  CHECK(contains(desk.list().at(0).why, "'large' waits: "));  // the first in line
  CHECK(desk.list().at(0).why.ends_with("; 2 more wait"));
  auto urgent = Desk::group({9, 9}, {4});
  urgent.priority = 5;
  desk.say(kInside, wire::CreatePlacementGroup{27, urgent});
  CHECK(contains(desk.list().at(0).why, "placement group"));
  desk.exits(kNodeOne, kProgram, {});
  CHECK(desk.list().at(0).why.empty());
}

TEST_CASE("everything of a job ends with it, and nothing of another one") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 8);
  desk.node(kNodeTwo, kIdTwo, 8);
  desk.run(kJob, kProgram, desk.head.actors().empty() ? kNodeOne : kNodeTwo);
  const PeerId at = desk.info(kProgram).node_id == kIdOne ? kNodeOne : kNodeTwo;
  desk.submit(kOtherJob, kOtherProgram);
  const PeerId other_at = desk.info(kOtherProgram).node_id == kIdOne ? kNodeOne : kNodeTwo;
  desk.ready(other_at, kOtherProgram, 1);
  REQUIRE(desk.hello(kInside, kJob).ok());
  REQUIRE(desk.hello(kInside2, kOtherJob).ok());
  CHECK(desk.create_from(kInside, Desk::spec({1, 1})).ok());
  auto detached = Desk::spec({1, 2});
  detached.detached = true;
  detached.name = "stays";
  CHECK(desk.create_from(kInside, detached).ok());
  CHECK(desk.create_from(kInside, Desk::spec({1, 3}, 20)).code() == Code::kResourceExhausted);
  CHECK(desk.create_from(kInside2, Desk::spec({2, 1})).ok());
  wire::CreatePlacementGroup group{26, Desk::group(kJobsGroup, {1})};
  desk.say(kInside, group);
  CHECK(desk.list().at(0).actors_alive == 2);
  CHECK(desk.list().at(0).why.empty());

  SUBCASE("its program ends") { desk.exits(at, kProgram, {}); }
  SUBCASE("its program is killed") { desk.exits(at, kProgram, {.signal = 9}); }
  SUBCASE("its program's node is gone") {
    if (other_at == at) return;  // both would end
    desk.say(at, [&] {
      wire::NodeUpdate left;
      left.node.node_id = at == kNodeOne ? kIdOne : kIdTwo;
      left.node.state = wire::NodeState::kDead;
      return left;
    }());
    CHECK_FALSE(desk.job().exit.has_value());
  }
  CHECK(desk.job().ended());
  const ActorRecord& actor = desk.head.actors().at({1, 1});
  CHECK((actor.dead() || actor.stopping));
  CHECK_FALSE(actor.restart_after_stop);
  CHECK_FALSE(desk.head.actors().at({1, 2}).stopping);
  CHECK(desk.head.groups().at(kJobsGroup).removed());
  CHECK(desk.job(kOtherJob).state == wire::JobState::kRunning);
  CHECK_FALSE(desk.head.actors().at({2, 1}).dead());
  CHECK_FALSE(desk.head.actors().at({2, 1}).stopping);
}

TEST_CASE("a job that does not fit waits, says for what, and can be stopped meanwhile") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 2);
  desk.create({Desk::spec(kActor, 2)});
  desk.submit(kJob, kProgram, 2);
  CHECK(desk.job().state == wire::JobState::kPending);
  const auto listed = desk.list(false).at(0);
  CHECK(contains(listed.why, "needs CPU 2"));
  CHECK(contains(listed.why, "has CPU 0 of 2 free"));
  SUBCASE("room comes") {
    desk.killed(kNodeOne, kActor, 1);
    CHECK(desk.sent<wire::StartActor>(kNodeOne).size() == 1);
  }
  SUBCASE("it is stopped") {
    CHECK(desk.stop(kJob).ok());
    CHECK(desk.job().state == wire::JobState::kStopped);
    CHECK(desk.job().why == "enough");
    CHECK(desk.sent<wire::StopActor>(kNodeOne).empty());
  }
  SUBCASE("what the cluster can never hold is refused") {
    desk.submit(kOtherJob, kOtherProgram, 3);
    CHECK(desk.answer().code() == Code::kResourceExhausted);
    CHECK_FALSE(desk.head.jobs().contains(kOtherJob));
  }
}

TEST_CASE("a job is stopped with grace, its actors after its program") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 4);
  desk.run();
  REQUIRE(desk.hello(kInside, kJob).ok());
  CHECK(desk.create_from(kInside, Desk::spec({1, 1})).ok());
  desk.ready(kNodeOne, {1, 1}, 1);

  CHECK(desk.stop(kJob, 7000).ok());
  auto stops = desk.sent<wire::StopActor>(kNodeOne);
  REQUIRE(stops.size() == 1);  // the program alone: it may need its actors to end well
  CHECK(stops[0].actor_id == kProgram);
  CHECK(stops[0].grace_ms == 7000);
  CHECK(desk.job().state == wire::JobState::kRunning);
  CHECK(desk.list().at(0).stopping);
  // Impatience.
  CHECK(desk.stop(kJob, 0).ok());
  CHECK(desk.sent<wire::StopActor>(kNodeOne).at(0).grace_ms == 0);
  CHECK(desk.events("job_stopping") == 1);

  desk.exits(kNodeOne, kProgram, {.signal = 15});
  stops = desk.sent<wire::StopActor>(kNodeOne);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].actor_id == ActorId{1, 1});
  CHECK(desk.job().state == wire::JobState::kStopped);
  CHECK(desk.job().exit->signal == 15);
  CHECK(desk.stop(kJob).ok());  // it has
  CHECK(desk.sent<wire::StopActor>(kNodeOne).empty());
  CHECK(desk.stop(kOtherJob).code() == Code::kNotFound);
}

TEST_CASE("a job's priority is that of its actors and groups that have none of their own") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 1);
  auto message = submission();
  message.driver.priority = 5;
  desk.say(kDriver, message);
  desk.ready(kNodeOne, kProgram, 1);
  REQUIRE(desk.hello(kInside, kJob).ok());
  CHECK(desk.create_from(kInside, Desk::spec({1, 1})).ok());
  auto own = Desk::spec({1, 2});
  own.priority = -2;
  CHECK(desk.create_from(kInside, own).ok());
  desk.say(kInside, wire::CreatePlacementGroup{26, Desk::group(kJobsGroup, {1})});
  CHECK(desk.head.actors().at({1, 1}).spec.priority == 5);
  CHECK(desk.head.actors().at({1, 2}).spec.priority == -2);
  CHECK(desk.group_info(kJobsGroup).priority == 5);
  // So it goes before what was asked for earlier, once there is room.
  desk.killed(kNodeOne, {1, 1}, 1);
  CHECK(desk.group_info(kJobsGroup).state == wire::PlacementGroupState::kPreparing);
}

TEST_CASE("several drivers in one job: each one's end is the end of its own actors") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 4);
  desk.run();
  REQUIRE(desk.hello(kInside, kJob).ok());
  REQUIRE(desk.hello(kInside2, kJob).ok());
  CHECK(desk.create_from(kInside, Desk::spec({1, 1})).ok());
  CHECK(desk.create_from(kInside2, Desk::spec({2, 1})).ok());
  desk.say(kInside, wire::EndJob{27, kJob, "the driver ended"});
  CHECK(desk.reply_to(kInside).ok());
  CHECK(desk.head.actors().at({1, 1}).stopping);
  CHECK_FALSE(desk.head.actors().at({2, 1}).stopping);
  CHECK_FALSE(desk.head.actors().at(kProgram).stopping);
  CHECK(desk.job().state == wire::JobState::kRunning);
}

TEST_CASE("nothing joins a job that has ended, but what outlives it goes on") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 4);
  desk.run();
  REQUIRE(desk.hello(kInside, kJob).ok());
  desk.exits(kNodeOne, kProgram, {});
  // A process that left the program's group.
  CHECK(desk.create_from(kInside, Desk::spec({1, 1})).code() == Code::kFailedPrecondition);
  desk.say(kInside, wire::CreatePlacementGroup{26, Desk::group(kJobsGroup, {1})});
  CHECK(desk.reply_to(kInside).code() == Code::kFailedPrecondition);
  const Status late = desk.hello(kInside2, kJob);
  CHECK(late.code() == Code::kFailedPrecondition);
  CHECK(contains(late.message(), "TROUPE_JOB_ID"));
  // A detached actor of it.
  REQUIRE(desk.hello(kOutside, kJob, "actor").ok());
  CHECK(desk.create_from(kOutside, Desk::spec({1, 2})).ok());
}

TEST_CASE("drivers that connected by themselves are listed, and nobody stops them from here") {
  JobDesk desk;
  REQUIRE(desk.hello(kOutside, kOtherJob).ok());
  const auto jobs = desk.list(false);
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].job_id == kOtherJob);
  CHECK(jobs[0].name == "driver 4");
  CHECK(jobs[0].driver.empty());
  const Status refused = desk.stop(kOtherJob);
  CHECK(refused.code() == Code::kFailedPrecondition);
  CHECK(contains(refused.message(), "driver 4"));
}

TEST_CASE("what is no job is refused by name; a job asked for twice is one") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 1);
  auto message = submission();
  const auto refused = [&](Code code, const std::string& text) {
    desk.say(kDriver, message);
    const Status status = desk.answer();
    CHECK(status.code() == code);
    CHECK_MESSAGE(contains(status.message(), text), status.message());
    CHECK(desk.head.jobs().empty());
    message = submission();
  };
  message.driver.job_id = {};
  refused(Code::kInvalidArgument, "job id");
  message.driver.program.argv.clear();
  refused(Code::kInvalidArgument, "without a program");
  message.driver.program.working_directory = "work";
  refused(Code::kInvalidArgument, "not absolute");
  message.driver.restart.max_restarts = 1;
  refused(Code::kUnsupported, "started once");
  message.driver.placement_group = kJobsGroup;
  refused(Code::kUnsupported, "outside of placement groups");
  message.driver.environment["TEXT"] = std::string(70'000, 'x');
  refused(Code::kInvalidArgument, "put them into a file");
  message.driver.resources = {{"CPU", -1}};
  refused(Code::kInvalidArgument, "CPU");
  // One that comes as an actor ends with its owner.
  auto outliving = submission().driver;
  outliving.detached = true;
  desk.create({outliving});
  CHECK(contains(desk.answer().message(), "submit it as a job"));

  desk.submit();
  desk.submit();
  CHECK(desk.answer().ok());
  CHECK(desk.head.jobs().size() == 1);
  CHECK(desk.sent<wire::StartActor>(kNodeOne).empty());
  desk.submit(kJob, kOtherProgram);
  CHECK(desk.answer().code() == Code::kInvalidArgument);
}

TEST_CASE("a head that comes back knows the jobs: what runs goes on, what waits waits") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 2);
  desk.run();
  desk.exits(kNodeOne, kProgram, {.exit_code = 3});
  const JobId running{70, 3}, waiting{70, 4};
  const ActorId running_program{80, 3}, waiting_program{80, 4};
  desk.submit(running, running_program, 2);
  desk.ready(kNodeOne, running_program, 1);
  desk.submit(waiting, waiting_program, 2);
  desk.restart();
  CHECK(desk.job().state == wire::JobState::kFailed);
  CHECK(desk.job().exit->exit_code == 3);
  CHECK(desk.job(running).state == wire::JobState::kRunning);
  CHECK(desk.job(waiting).state == wire::JobState::kPending);
  wire::RunningActor program;
  program.spec = desk.head.actors().at(running_program).spec;
  program.generation = 1;
  program.ready = true;
  SUBCASE("its program runs") {
    desk.node(21, kIdOne, 2, {program});
    CHECK(desk.sent<wire::RegisterNodeReply>(21).at(0).stop.empty());
    CHECK(desk.job(running).state == wire::JobState::kRunning);
    desk.say(21, [&] {
      wire::ActorExited exited{running_program, 1};
      return exited;
    }());
    CHECK(desk.job(running).state == wire::JobState::kSucceeded);
  }
  SUBCASE("its program ended while the head was away") {
    wire::RegisterNode back;
    back.request_id = 2;
    back.node.node_id = kIdOne;
    back.node.name = "machine";
    back.node.total = Desk::cpus(2);
    back.exited.push_back({running_program, 1, {.exit_code = 4}});
    desk.say(21, back);
    CHECK(desk.job(running).state == wire::JobState::kFailed);
    CHECK(desk.job(running).exit->exit_code == 4);
  }
  SUBCASE("its node does not come back") {
    desk.pass(milliseconds(11'000));
    CHECK(desk.job(running).state == wire::JobState::kFailed);
    CHECK_FALSE(desk.job(running).exit.has_value());
    CHECK(desk.job(waiting).state == wire::JobState::kPending);
    return;
  }
  // The place is the next one's.
  CHECK(desk.info(waiting_program).state == wire::ActorState::kStarting);
}

TEST_CASE("a journal that ends in the middle of a decision about a job") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 4);
  SUBCASE("before its program: whoever submits it says so again") {
    desk.submit();
    while (!holds_alternative<JobKnown>(desk.journal.back())) desk.journal.pop_back();
    HeadState second;
    for (const Delta& delta : desk.journal) REQUIRE(second.replay(delta).ok());
    desk.head = std::move(second);
    desk.take(desk.head.resume(desk.now));
    CHECK(desk.head.jobs().empty());
    desk.say(kDriver, wire::ClientHello{1, ClientId{9, 9}});
    desk.submit();
    CHECK(desk.answer().ok());
    CHECK(desk.head.jobs().contains(kJob));
  }
  SUBCASE("after its end, before that of its actors") {
    desk.run();
    REQUIRE(desk.hello(kInside, kJob).ok());
    CHECK(desk.create_from(kInside, Desk::spec({1, 1}, 1, -1)).ok());
    desk.ready(kNodeOne, {1, 1}, 1);
    desk.exits(kNodeOne, kProgram, {});
    const auto end = std::find_if(desk.journal.begin(), desk.journal.end(), [](const Delta& d) {
      const auto* known = get_if<JobKnown>(&d);
      return known != nullptr && known->job.ended();
    });
    REQUIRE(end != desk.journal.end());
    HeadState second;
    for (auto it = desk.journal.begin(); it <= end; ++it) REQUIRE(second.replay(*it).ok());
    desk.head = std::move(second);
    desk.take(desk.head.resume(desk.now));
    CHECK(desk.head.actors().at({1, 1}).stopping);
    CHECK_FALSE(desk.head.actors().at({1, 1}).restart_after_stop);
  }
}

TEST_CASE("of ended jobs the newest are remembered") {
  HeadConfig config;
  config.ended_jobs_max = 2;
  JobDesk desk;
  desk.head = HeadState(config);
  desk.say(kDriver, wire::ClientHello{1, ClientId{9, 9}});
  desk.node(kNodeOne, kIdOne, 1);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    desk.run({70, i}, {80, i});
    desk.exits(kNodeOne, {80, i}, {});
  }
  CHECK(desk.head.jobs().size() == 2);
  CHECK_FALSE(desk.head.jobs().contains(JobId{70, 2}));
  CHECK(desk.head.jobs().contains(JobId{70, 4}));
}

TEST_CASE("the end of the cluster stops its jobs") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 1);
  desk.run();
  desk.say(kDriver, wire::StopCluster{28, "done"});
  desk.exits(kNodeOne, kProgram, {.signal = 15});
  CHECK(desk.job().state == wire::JobState::kStopped);
}

TEST_CASE("nodes and clients of another version are refused by name, and that is noted") {
  JobDesk desk;
  wire::RegisterNode node;
  node.request_id = 2;
  node.protocol_version = 7;
  node.node.node_id = kIdOne;
  node.node.name = "machine";
  desk.say(51, node);
  const Status refused = desk.sent<wire::RegisterNodeReply>(51).at(0).status;
  CHECK(refused.code() == Code::kProtocol);
  CHECK(contains(refused.message(), "node machine speaks protocol 7, the head speaks 4"));
  CHECK(contains(refused.message(), "same version of troupe on both"));
  for (const char* kind : {"driver", "actor", "tool"}) {
    CAPTURE(kind);
    wire::ClientHello hello{29, ClientId{60, 52}, {}, "troupe status 4711", kind};
    hello.protocol_version = 0;
    desk.say(52, hello);
    const Status status = desk.reply_to(52);
    CHECK(status.code() == Code::kProtocol);
    CHECK(contains(status.message(), "troupe status 4711 speaks protocol 0, the head speaks 4"));
    CHECK(holds_alternative<ClosePeer>(desk.commands.back()));
    // It is nobody here: what it asks is not done.
    desk.say(52, wire::StopCluster{30, "x"});
    CHECK_FALSE(desk.head.stopping());
  }
  CHECK(desk.events("version_refused") == 4);
}

TEST_CASE("a client's program: in a gang, ended with its owner, its exit told") {
  JobDesk desk;
  desk.node(kNodeOne, kIdOne, 2);
  wire::ActorSpec rank = Desk::spec({1, 1}, 0);
  rank.type = "python3";
  rank.rank = 0;
  rank.program.argv = {"python3", "train.py"};
  rank.program.working_directory = "/work";
  wire::ActorSpec other = rank;
  other.actor_id = {1, 2};
  other.rank = 1;

  SUBCASE("it ends by itself") {
    desk.create({rank, other}, true);
    desk.ready(kNodeOne, {1, 1}, 1);
    desk.ready(kNodeOne, {1, 2}, 1);
    desk.exits(kNodeOne, {1, 1}, {.exit_code = 7});
    desk.exits(kNodeOne, {1, 2}, {.signal = 9});
    CHECK(desk.info({1, 1}).death.context(kExitCodeContext) == "7");
    CHECK(desk.info({1, 2}).death.context(kExitSignalContext) == "9");
    CHECK_FALSE(desk.info({1, 2}).death.context(kExitCodeContext));
    CHECK(desk.list().size() == 0);  // nobody submitted it
  }
  SUBCASE("its owner ends") {
    desk.create({rank});
    desk.ready(kNodeOne, {1, 1}, 1);
    desk.lose(kDriver);
    desk.pass(std::chrono::seconds(60), {{kNodeOne, kIdOne}});
    CHECK(desk.head.actors().at(ActorId{1, 1}).stopping);
  }
  SUBCASE("what a program cannot be") {
    rank.restart.max_restarts = 1;
    desk.create({rank});
    CHECK(contains(desk.answer().message(), "started once"));
    rank.restart.max_restarts = 0;
    rank.detached = true;
    desk.create({rank});
    CHECK(contains(desk.answer().message(), "submit it as a job"));
    rank.detached = false;
    rank.program.working_directory = "work";
    desk.create({rank});
    CHECK(contains(desk.answer().message(), "is not absolute"));
  }
}

}  // namespace
}  // namespace troupe::scheduler::tests
