// What a node decides where an actor needs a package: whom it asks, how long, and what it says.

#include <doctest/doctest.h>

#include "tests/scheduler/node/node_driver.h"
#include "tests/support/text.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;
using troupe::tests::contains;

const wire::Package kPackage{std::string(64, 'a'), 3u << 20};
const wire::Endpoint kHolder{"10.0.0.9", 700, ""};

wire::StartActor needing(const NodeDriver& d, std::uint64_t n) {
  auto start = d.start_message(n, 1);
  start.spec.package = kPackage;
  return start;
}

TEST_CASE("a package that is here is no reason to wait, is said to each head, and stays in use") {
  NodeDriver d;
  d.apply(node_event::PackagesHere{{kPackage.sha256}});
  d.apply(node_event::HeadUp{});
  REQUIRE(d.said<wire::NodePackages>());
  CHECK(d.said<wire::NodePackages>()->sha256s == std::vector{kPackage.sha256});
  d.apply(node_event::FromHead{wire::RegisterNodeReply{}});
  const auto needed = [&] {
    REQUIRE(d.did<node_command::NeedPackages>());
    return d.did<node_command::NeedPackages>()->sha256s;
  };
  d.apply(node_event::FromHead{needing(d, 1)});
  CHECK(needed() == std::set{kPackage.sha256});
  const HostId host = d.spawned();
  // The next daemon knows it before it looks at what is there.
  d.restart();
  CHECK(needed() == std::set{kPackage.sha256});
  d.leader_ends(host);
  CHECK(needed().empty());
}

TEST_CASE("two actors that need a package wait for one fetch, and start when it is here") {
  NodeDriver d;
  d.join();
  d.apply(node_event::FromHead{needing(d, 1)});
  REQUIRE(d.said<wire::FindPackage>());
  CHECK(d.said<wire::FindPackage>()->package == kPackage);
  d.apply(node_event::FromHead{needing(d, 2)});
  CHECK_FALSE(d.said<wire::FindPackage>());
  CHECK(d.spawning.empty());
  d.apply(node_event::FromHead{wire::PackageSources{0, kPackage, {kHolder}}});
  REQUIRE(d.did<node_command::FetchPackage>());
  CHECK(d.did<node_command::FetchPackage>()->from == std::vector{kHolder});
  d.apply(node_event::FromHead{wire::PackageSources{0, kPackage, {kHolder}}});
  CHECK_FALSE(d.did<node_command::FetchPackage>());
  // However long it takes, as long as it comes.
  d.advance(10min);
  CHECK_FALSE(d.said<wire::ActorExited>());
  d.apply(node_event::PackagesHere{{kPackage.sha256}});
  CHECK(d.said<wire::NodePackages>());
  CHECK(d.spawning.size() == 2);
}

TEST_CASE("a fetch that failed is tried again, until the patience is over") {
  NodeDriver d;
  d.join();
  d.apply(node_event::FromHead{needing(d, 1)});
  d.advance(20s);
  CHECK(d.said<wire::FindPackage>());
  d.apply(node_event::FromHead{wire::PackageSources{0, kPackage, {kHolder}}});
  d.advance(20s);
  d.apply(node_event::PackageNotFetched{kPackage, error(Code::kDataLoss, "its hash is wrong")});
  d.advance(1s);
  CHECK(d.said<wire::FindPackage>());
  d.apply(node_event::FromHead{wire::PackageSources{0, kPackage, {}}});
  d.advance(1s);
  const auto* exit = d.did<node_command::ReportExit>();
  REQUIRE(exit);
  CHECK(exit->exited.cause.code() == Code::kUnavailable);
  const std::string why = exit->exited.cause.message();
  CHECK_MESSAGE(contains(why, "node n could not get package aaaaaaaaaaaa (3.0 MiB)"), why);
  CHECK(contains(why, "its hash is wrong"));
  CHECK(contains(why, "'troupe submit --ship' brings it again"));
  // It is not asked for any more.
  d.advance(1min);
  CHECK_FALSE(d.said<wire::FindPackage>());
}

TEST_CASE("a head that is away is no reason to give up, nor is one to come back to") {
  NodeDriver d;
  d.join();
  d.apply(node_event::FromHead{needing(d, 1)});
  d.apply(node_event::HeadDown{error(Code::kUnavailable, "gone")});
  d.advance(5min);
  CHECK_FALSE(d.did<node_command::ReportExit>());
  d.apply(node_event::HeadUp{});
  d.apply(node_event::FromHead{wire::RegisterNodeReply{}});
  CHECK(d.said<wire::FindPackage>());
  // The head wants the actor no more: nobody waits.
  d.apply(node_event::FromHead{wire::StopActor{ActorId{1, 1}, 1, 0, "x"}});
  CHECK(d.did<node_command::ReportExit>());
  d.advance(1min);
  CHECK_FALSE(d.said<wire::FindPackage>());
}

TEST_CASE("a node without a folder for packages says so at once, and so it is with a false hash") {
  NodeDriver d;
  d.join();
  auto start = needing(d, 1);
  std::string text = "is named by the SHA-256";
  SUBCASE("a false hash") { start.spec.package.sha256 = "../../etc"; }
  SUBCASE("no folder") {
    std::destroy_at(&d.state);
    d.config.without_packages = "its disk is full";
    std::construct_at(&d.state, d.config, d.clock.now());
    d.join();
    text = "keeps no packages: its disk is full";
  }
  d.apply(node_event::FromHead{start});
  const auto* exit = d.did<node_command::ReportExit>();
  REQUIRE(exit);
  CHECK_MESSAGE(contains(exit->exited.cause.message(), text), exit->exited.cause.message());
}

}  // namespace
}  // namespace troupe::scheduler::tests
