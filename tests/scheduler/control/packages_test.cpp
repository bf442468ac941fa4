// What the head knows of packages: who has them, which actors need them. Never their bytes.

#include "tests/scheduler/control/desk.h"
#include "tests/support/text.h"

namespace troupe::scheduler::tests {
namespace {

using troupe::tests::contains;

const wire::Package kPackage{std::string(64, 'a'), 3u << 20};
const ActorId kShippedProgram{7, 9};

struct PackageDesk : Desk {
  PackageDesk() {
    node(kNodeOne, kIdOne, "one", cpus(8));
    node(kNodeTwo, kIdTwo, "two", cpus(8));
  }
  wire::SubmitJob job(wire::Package package) {
    wire::SubmitJob job;
    job.request_id = 7;
    job.driver = Desk::spec(kShippedProgram);
    job.driver.job_id = JobId{7, 1};
    job.driver.program.argv = {"./app"};
    job.driver.node_affinity = kIdOne;
    job.driver.package = std::move(package);
    return job;
  }
  void has(PeerId peer, std::vector<std::string> sha256s) {
    say(peer, wire::NodePackages{std::move(sha256s)});
  }
  std::size_t sources(PeerId asks) {
    say(asks, wire::FindPackage{5, kPackage});
    const auto answers = sent<wire::PackageSources>(asks);
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].request_id == 5);
    CHECK(answers[0].package == kPackage);
    return answers[0].nodes.size();
  }
};

TEST_CASE("nodes and tools are told which nodes have a package, as long as these are there") {
  PackageDesk desk;
  CHECK(desk.sources(kNodeOne) == 0);
  desk.has(kNodeTwo, {kPackage.sha256, std::string(64, 'b'), "no hash"});
  CHECK(desk.sources(kNodeOne) == 1);
  CHECK(desk.sources(kDriver) == 1);
  desk.lose(kNodeTwo);
  CHECK(desk.sources(kNodeOne) == 0);
  desk.node(kNodeTwo, kIdTwo, "two", Desk::cpus(8));
  CHECK(desk.sources(kNodeOne) == 0);  // until it says so anew
  desk.has(kNodeTwo, {kPackage.sha256});
  CHECK(desk.sources(kNodeOne) == 1);
  desk.has(kNodeTwo, {});
  CHECK(desk.sources(kNodeOne) == 0);
}

TEST_CASE("a job's actors need its package, whatever they claim, and what is missing is said") {
  PackageDesk desk;
  desk.say(kDriver, desk.job({"../../x", 1}));
  CHECK(desk.answer().code() == Code::kInvalidArgument);
  desk.say(kDriver, desk.job(kPackage));
  CHECK(desk.answer().ok());
  auto why = desk.seen(kShippedProgram).pending_why;
  CHECK_MESSAGE(contains(why, "node one lacks package aaaaaaaaaaaa"), why);
  CHECK(contains(why, "'troupe submit --ship'"));
  desk.has(kNodeTwo, {kPackage.sha256});
  why = desk.seen(kShippedProgram).pending_why;
  CHECK_MESSAGE(contains(why, "node one fetches package aaaaaaaaaaaa (3.0 MiB)"), why);
  desk.has(kNodeOne, {kPackage.sha256});
  CHECK(desk.seen(kShippedProgram).pending_why.empty());

  auto member = Desk::spec(kActor), stranger = Desk::spec(ActorId{8, 8});
  member.job_id = JobId{7, 1};
  stranger.package = kPackage;
  desk.create({member, stranger});
  CHECK_MESSAGE(desk.answer().ok(), desk.answer().to_string());
  CHECK(desk.head.actors().at(kActor).spec.package == kPackage);
  CHECK(desk.head.actors().at(ActorId{8, 8}).spec.package.empty());
}

}  // namespace
}  // namespace troupe::scheduler::tests
