// Names, owners, supervisors, stops and health through a real head and node.

#include <doctest/doctest.h>
#include <signal.h>

#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "actors/actor_spec.h"
#include "scheduler/embedded/embedded_cluster.h"
#include "tests/actors/driver_client.h"
#include "tests/actors/lives_actors.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"
#include "troupe/spawn.h"
#include "troupe/supervision.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;
using Handle = ActorHandle<Life>;

constexpr auto kQuiet = [](const std::string&, std::string_view) {};
const ActorOptions kFree{.num_cpus = 0};

struct Driver {
  net::LoopThread thread{"driver"};
  DriverClient parts;
  const std::shared_ptr<scheduler::HeadClient>& head = parts.head;
  const std::shared_ptr<detail::ActorClient>& client = parts.client;

  Driver(const scheduler::EmbeddedCluster& cluster, const std::string& namespace_name)
      : parts(connect_driver(cluster, thread, "test_actors_lives_host", namespace_name)) {}
  ~Driver() { client->close(); }

  Handle spawn(const ActorOptions& options = kFree) {
    return detail::spawn<Life>(client, options).value();
  }
  wire::ActorInfo info(ActorId id) {
    for (const auto& actor : head->actors(true, Deadline::after(20s)).value()) {
      if (actor.actor_id == id) return actor;
    }
    FAIL("no such actor");
    return {};
  }
  // Waits until the actor's state is as wanted.
  wire::ActorInfo wait(ActorId id, std::function<bool(const wire::ActorInfo&)> wanted) {
    auto promise = std::make_shared<std::promise<wire::ActorInfo>>();
    auto found = std::make_shared<std::atomic<bool>>(false);
    auto future = promise->get_future();
    const auto watch = detail::watch_actor(client, id, [=](const ActorInfo& info) {
      if (wanted(info) && !found->exchange(true)) promise->set_value(info);
    });
    REQUIRE(future.wait_for(20s) == std::future_status::ready);
    return future.get();
  }
  wire::ActorInfo wait_for_death(ActorId id) {
    return wait(id, [](const auto& info) { return info.state == wire::ActorState::kDead; });
  }
  wire::ActorInfo wait_for_generation(ActorId id, std::uint64_t generation) {
    return wait(id, [generation](const auto& info) {
      return info.state == wire::ActorState::kAlive && info.generation >= generation;
    });
  }
  static void kill(const wire::ActorInfo& info) {
    REQUIRE(info.pid > 0);
    REQUIRE(::kill(static_cast<pid_t>(info.pid), SIGKILL) == 0);
  }
};

struct Lives {
  std::unique_ptr<scheduler::EmbeddedCluster> cluster =
      scheduler::EmbeddedCluster::start({.num_cpus = 4, .on_output = kQuiet}).value();
  std::unique_ptr<Driver> driver = std::make_unique<Driver>(*cluster, "shop");
  ~Lives() {
    driver.reset();
    cluster->stop();
  }
};

// peer: NamespaceTest, GetNamespaceApiTest
TEST_CASE_FIXTURE(Lives,
                  "names are seen in their namespace, and from others when asked for there") {
  auto db = driver->spawn({.name = "db", .num_cpus = 0});
  CHECK(db.call<&Life::namespace_name>().get(20s).value() == "shop");
  Driver other(*cluster, "");
  CHECK(detail::find<Life>(other.client, "db", {}).status().code() == Code::kNotFound);
  const auto found = detail::find<Life>(other.client, "db", {.namespace_name = "shop"});
  REQUIRE(found.ok());
  CHECK(*found == db);
  // From inside of an actor, whose namespace is its driver's.
  auto own = driver->spawn();
  CHECK(own.call<&Life::find>("db", "").get(20s).value() == db);
  auto stranger = other.spawn();
  CHECK(stranger.call<&Life::find>("db", "").get(20s).status().code() == Code::kNotFound);
  CHECK(stranger.call<&Life::find>("db", "shop").get(20s).value() == db);
}

TEST_CASE_FIXTURE(Lives, "drivers that get or create at the same time get the same actor") {
  std::vector<std::unique_ptr<Driver>> drivers;
  for (int i = 0; i < 4; ++i) drivers.push_back(std::make_unique<Driver>(*cluster, "shop"));
  std::vector<std::optional<Result<Handle>>> answers(drivers.size());
  std::vector<std::jthread> asking;
  for (std::size_t i = 0; i < drivers.size(); ++i) {
    asking.emplace_back([&client = drivers[i]->client, &answer = answers[i]] {
      answer =
          detail::get_or_create<Life>(client, {.name = "ledger", .num_cpus = 0, .detached = true});
    });
  }
  asking.clear();
  std::vector<Handle> handles;
  for (auto& answer : answers) handles.push_back(answer->value());
  for (const Handle& handle : handles) {
    CHECK(handle == handles[0]);
    CHECK(handle.call<&Life::generation>().get(20s).value() == 1);
  }
}

// peer: KillForGood
TEST_CASE_FIXTURE(Lives, "a name is free as soon as its actor was killed") {
  auto first = driver->spawn({.name = "db", .num_cpus = 0});
  REQUIRE(first.call<&Life::pid>().get(20s).ok());
  REQUIRE(detail::kill_actor(driver->client, first.id(), {}).ok());
  CHECK(detail::find<Life>(driver->client, "db", {}).status().code() == Code::kNotFound);
  CHECK(first.call<&Life::pid>().get(20s).status().code() == Code::kActorDied);
  auto second = driver->spawn({.name = "db", .num_cpus = 0});
  CHECK(second.call<&Life::pid>().get(20s).ok());
}

// peer: DefaultActorLifetimeTest
TEST_CASE_FIXTURE(Lives, "kill -9 of an owner ends what it owns") {
  auto owner = driver->spawn({.num_cpus = 0, .max_restarts = 1});
  const auto child_of = [&](Owner how, bool detached) {
    return owner.call<&Life::have_child>(static_cast<int>(how), detached).get(20s).value();
  };
  const Handle of_process = child_of(Owner::kProcess, false);
  const Handle of_actor = child_of(Owner::kActor, false);
  const Handle of_job = child_of(Owner::kJob, false);
  const Handle detached = child_of(Owner::kProcess, true);
  for (const Handle& child : {of_process, of_actor, of_job, detached}) {
    REQUIRE(child.call<&Life::pid>().get(20s).ok());
  }
  const std::int64_t pid = of_process.call<&Life::pid>().get(20s).value();
  Driver::kill(driver->info(owner.id()));
  const wire::ActorInfo died = driver->wait_for_death(of_process.id());
  CHECK(died.death.message().find("its owner") != std::string::npos);
  CHECK(::kill(static_cast<pid_t>(pid), 0) != 0);
  driver->wait_for_generation(owner.id(), 2);
  CHECK(of_actor.call<&Life::generation>().get(20s).value() == 1);
  Driver::kill(driver->info(owner.id()));  // its second process: it is dead for good
  driver->wait_for_death(of_actor.id());
  CHECK(of_job.call<&Life::generation>().get(20s).value() == 1);
  CHECK(detached.call<&Life::generation>().get(20s).value() == 1);
  // The driver's end takes the one that it owns.
  Driver watcher(*cluster, "shop");
  driver.reset();
  watcher.wait_for_death(of_job.id());
  CHECK(watcher.info(detached.id()).state == wire::ActorState::kAlive);
}

TEST_CASE_FIXTURE(Lives, "a supervisor restarts its members together, and gives up") {
  const auto group =
      detail::Access::create<Supervisor>(driver->client,
                                         SupervisorOptions{.name = "stages",
                                                           .strategy = RestartStrategy::kAllForOne,
                                                           .max_restarts = 1,
                                                           .backoff_initial = 0ms},
                                         Deadline::after(20s))
          .value();
  const ActorOptions member{.num_cpus = 0, .supervisor = group.id()};
  auto one = driver->spawn(member);
  auto two = driver->spawn(member);
  driver->wait_for_generation(one.id(), 1);
  Driver::kill(driver->wait_for_generation(two.id(), 1));
  driver->wait_for_generation(one.id(), 2);
  driver->wait_for_generation(two.id(), 2);
  CHECK(one.call<&Life::generation>().get(20s).value() == 2);
  CHECK(group.info().value().restarts == 1);
  CHECK(group.wait_for_end(0ms).code() == Code::kDeadlineExceeded);
  std::promise<Status> told;
  bool was_told = false;
  const SupervisorWatch watch = group.watch([&](const wire::SupervisorInfo& info) {
    const bool ended = info.state == wire::SupervisorState::kEnded;
    if (ended && !std::exchange(was_told, true)) told.set_value(info.why);
  });
  Driver::kill(driver->info(one.id()));
  const Status why = group.wait_for_end(20s);
  CHECK(why.code() == Code::kAborted);
  CHECK(why.message().find("supervisor 'stages' gave up after 1 restarts") != std::string::npos);
  auto notice = told.get_future();
  REQUIRE(notice.wait_for(20s) == std::future_status::ready);
  CHECK(notice.get() == why);
  driver->wait_for_death(two.id());
  CHECK(two.call<&Life::pid>().get(20s).status().code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(Lives, "a stop lets what is queued finish, and takes nothing new") {
  auto worker = driver->spawn();
  REQUIRE(worker.call<&Life::pid>().get(20s).ok());
  auto first = worker.call<&Life::work>(20);
  auto second = worker.call<&Life::work>(0);
  Result<StopReport> report = StopReport();
  std::jthread stopping(
      [&] { report = detail::stop_actor(driver->client, worker.id(), false, {.timeout = 20s}); });
  CHECK(first.get(20s).value() == 1);
  CHECK(second.get(20s).value() == 2);
  stopping.join();
  REQUIRE(report.ok());
  CHECK(report->calls_dropped == 0);
  CHECK(worker.call<&Life::pid>().get(20s).status().code() == Code::kActorDied);
  CHECK(driver->info(worker.id()).death.message().find("stopped by its user") != std::string::npos);
}

TEST_CASE_FIXTURE(Lives, "a stop says how many calls it dropped when its time was over") {
  auto worker = driver->spawn();
  REQUIRE(worker.call<&Life::pid>().get(20s).ok());
  auto running = worker.call<&Life::work>(60'000);
  std::vector<Future<int>> queued;
  for (int i = 0; i < 3; ++i) queued.push_back(worker.call<&Life::work>(0));
  const Result<StopReport> report =
      detail::stop_actor(driver->client, worker.id(), false, {.timeout = 50ms});
  REQUIRE(report.ok());
  CHECK(report->calls_dropped == 4);
  for (auto& call : queued) {
    const Status status = call.get(20s).status();
    CHECK(status.code() == Code::kActorDied);
    CHECK(status.message().find("before it came to this call") != std::string::npos);
  }
  const Code cut_short = running.get(20s).status().code();
  CHECK((cut_short == Code::kUnavailable || cut_short == Code::kActorDied));
}

TEST_CASE_FIXTURE(Lives, "calls that come while an actor drains are refused by name") {
  auto worker = driver->spawn();
  REQUIRE(worker.call<&Life::pid>().get(20s).ok());
  auto running = worker.call<&Life::work>(1'000);
  std::atomic<bool> done = false;
  Result<StopReport> report = StopReport();
  std::jthread stopping([&] {
    report = detail::stop_actor(driver->client, worker.id(), false, {.timeout = 20s});
    done = true;
  });
  // Until the actor has heard of it, calls wait behind the one that runs.
  Status refused;
  while (!done && refused.ok()) {
    auto call = worker.call<&Life::pid>();
    const auto answer = call.get(20ms);
    if (answer.status().code() != Code::kDeadlineExceeded) refused = answer.status();
  }
  CHECK(refused.code() == Code::kActorDied);
  CHECK(running.get(20s).value() == 1);
  stopping.join();
  CHECK(report.ok());
}

TEST_CASE_FIXTURE(Lives, "an actor that is not well is replaced; its story says so") {
  const auto checked = [&](std::chrono::milliseconds timeout) {
    return driver->spawn(
        {.num_cpus = 0, .max_restarts = -1, .health_interval = 5ms, .health_timeout = timeout});
  };
  SUBCASE("it says so") {
    auto patient = checked(20s);
    CHECK(patient.call<&Life::fall_ill>().get(20s).ok());
    driver->wait_for_generation(patient.id(), 2);
    const auto events = driver->head->events(0, 1000, Deadline::after(20s)).value();
    CHECK(std::any_of(events.begin(), events.end(), [](const wire::EventRecord& event) {
      return event.kind == "actor_restarting" &&
             event.text.find("failed its health check: it has a fever") != std::string::npos;
    }));
  }
  SUBCASE("its thread is stuck") {
    auto patient = checked(500ms);
    const std::uint64_t generation = driver->wait_for_generation(patient.id(), 1).generation;
    auto stuck = patient.call<&Life::work>(60'000);
    CHECK(stuck.get(20s).status().code() == Code::kUnavailable);
    driver->wait_for_generation(patient.id(), generation + 1);
  }
  SUBCASE("its process is stopped") {
    auto patient = checked(500ms);
    const wire::ActorInfo before = driver->wait_for_generation(patient.id(), 1);
    REQUIRE(::kill(static_cast<pid_t>(before.pid), SIGSTOP) == 0);
    driver->wait_for_generation(patient.id(), before.generation + 1);
  }
}

TEST_CASE("options of lifetimes that make no sense are refused by name") {
  ActorOptions options;
  SUBCASE("a namespace without a name") { options.namespace_name = "shop"; }
  SUBCASE("two who decide about restarts") {
    options.supervisor = SupervisorId{1, 1};
    options.max_restarts = 1;
  }
  SUBCASE("health in no time") {
    options.health_interval = 1s;
    options.health_timeout = 0s;
  }
  CHECK(detail::make_spec(options).status().code() == Code::kInvalidArgument);
}

// Its program does not list it.
struct Unlisted {
  int one() { return 1; }
  static constexpr auto methods = troupe::methods<&Unlisted::one>;
};

TEST_CASE("a class that its program does not list is told once, beside those that it does") {
  auto cluster =
      Cluster::start_embedded(
          {.num_cpus = 1, .on_output = kQuiet, .program = bin_dir() + "/test_actors_lives_host"})
          .value();
  const auto actor = cluster.spawn<Unlisted>({.name = "one"});
  const Status why = actor.ok() ? actor->call<&Unlisted::one>().get(20s).status() : actor.status();
  const std::string text = why.to_string();
  const std::string told = "the program has no actor class Unlisted";
  CHECK_MESSAGE(text.find(told) != std::string::npos, text);
  CHECK_MESSAGE(text.find(told) == text.rfind(told), text);
  CHECK_MESSAGE(text.find("StateCopy") == std::string::npos, text);
  CHECK_MESSAGE(text.find("actor=one") == text.rfind("actor=one"), text);
}

TEST_CASE("an embedded cluster has a namespace, its job's own where none was named") {
  auto cluster = Cluster::start_embedded({.num_cpus = 1, .on_output = kQuiet}).value();
  CHECK(cluster.namespace_name() == wire::namespace_of_job(cluster.job_id()));
  CHECK(cluster.get_actor<Life>("nobody", 20s).status().code() == Code::kNotFound);
  auto other = Cluster::connect({.host = cluster.head_address().host,
                                 .port = cluster.head_address().port,
                                 .token = cluster.token(),
                                 .namespace_name = "shop",
                                 .follow_output = false})
                   .value();
  CHECK(other.namespace_name() == "shop");
  CHECK(other.supervise({.name = "idle"}).value().info().value().owner_name.find("driver") !=
        std::string::npos);
  CHECK(other.supervise({.max_restarts = -2}).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::tests
