// fork() in a driver and in an actor: the child is told, the parent notices nothing.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <set>

#include "runtime/memory/unix_socket.h"
#include "runtime/net/event_loop.h"
#include "tests/actors/harmless_methods.h"
#include "tests/actors/lives_actors.h"
#include "tests/actors/test_actors.h"
#include "tests/support/on_loop.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"

namespace troupe::tests::fork_test {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kChildSeconds = 60;

// Runs `steps` in a forked child, which ends by exit(); the number of the first step that returned
// false, 0 where all were well. One that hangs is killed: -1.
int in_child(const std::vector<std::function<bool()>>& steps) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kChildSeconds);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!steps[i]()) std::exit(static_cast<int>(i) + 1);
    }
    std::exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool says_forked(const Status& status) {
  return status.code() == Code::kFailedPrecondition &&
         status.message().find("is a fork of one that was connected") != std::string::npos;
}

TEST_CASE_FIXTURE(CallsBothWays, "a forked child's calls are refused, and its parent's go on") {
  auto counter = spawn<Counter>({}, 0);
  auto before = counter.call<&Counter::add>(1);
  const wire::Bytes large(200'000, std::byte{1});
  CHECK(in_child({
            [&] { return says_forked(counter.call<&Counter::add>(100).get(20s).status()); },
            // Made by the parent: the answer comes there.
            [&] { return says_forked(before.get(20s).status()) || before.ready(); },
            [&] { return says_forked(counter.call<&Counter::echo>(large).get(20s).status()); },
            [&] { return says_forked(detail::spawn<Counter>(client, {}, 0).status()); },
            [&] {
              auto same = detail::handle_to<Counter>(client, counter.id());
              return says_forked(same.call<&Counter::get>().get(20s).status());
            },
            [&] {
              client->close();
              return true;
            },
        }) == 0);
  CHECK(before.get(20s).value() == 1);
  for (int i = 2; i < 100; ++i) REQUIRE(counter.call<&Counter::add>(1).get(20s).value() == i);
  CHECK(counter.call<&Counter::echo>(large).get(20s).value() == large);
  CHECK(client->channel(counter.id(), detail::kActorInterface<Counter>)->has_ring() == ring);
}

// Descriptors of this process that a program that it executes would have.
std::set<int> inherited() {
  std::set<int> found;
  for (int fd = 3; fd < 4096; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) found.insert(fd);
  }
  return found;
}

TEST_CASE("a forked child ends, or connects anew; its parent's cluster goes on") {
  const std::set<int> before = inherited();
  const std::string program = bin_dir() + "/test_actors_lives_host";
  const auto quiet = [](const std::string&, std::string_view) {};
  auto cluster = std::make_unique<Cluster>(
      Cluster::start_embedded({.num_cpus = 4, .on_output = quiet, .program = program}).value());
  auto life = cluster->spawn<Life>({.num_cpus = 0}).value();
  REQUIRE(life.call<&Life::generation>().get(20s).value() == 1);
  CHECK(in_child({
            [&] { return says_forked(life.call<&Life::generation>().get(20s).status()); },
            [&] { return says_forked(cluster->nodes().status()); },
            [&] { return says_forked(cluster->spawn<Life>({.num_cpus = 0}).status()); },
            [&] { return says_forked(cluster->kill(life)); },
            [&] { return says_forked(cluster->get_actor<Life>("x").status()); },
            [&] { return says_forked(cluster->create_placement_group({}).status()); },
            [&] { return says_forked(cluster->supervise({}).status()); },
            [&] {  // a cluster of its own
#if defined(__SANITIZE_THREAD__)
              return true;  // whose threads ThreadSanitizer allows in no forked process
#endif
              auto own = Cluster::connect({.host = cluster->head_address().host,
                                           .port = cluster->head_address().port,
                                           .token = cluster->token(),
                                           .program = program,
                                           .on_output = quiet});
              if (!own.ok()) return false;
              auto other = own->spawn<Life>({.num_cpus = 0});
              return other.ok() && other->call<&Life::generation>().get(20s).ok();
            },
            [&] {
              cluster.reset();
              return true;
            },
        }) == 0);
  CHECK(life.call<&Life::generation>().get(20s).value() == 1);
  CHECK(cluster->spawn<Life>({.num_cpus = 0})->call<&Life::generation>().get(20s).value() == 1);
  CHECK(cluster->nodes().value().size() == 1);
  CHECK(inherited() == before);
}

TEST_CASE("a connection ends with its process, though a forked child lives on") {
  net::LoopThread thread("parent");
  auto ends = memory::socket_pair().value();
  on_loop(thread.loop(), [&] { thread.loop().watch_readable(ends.first.get(), [] {}); });
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kChildSeconds);
    for (;;) ::pause();
  }
  on_loop(thread.loop(), [&] {
    thread.loop().unwatch(ends.first.get());
    ends.first.reset();
  });
  pollfd other{ends.second.get(), POLLIN, 0};
  // (When the child has begun to run.)
  CHECK(::poll(&other, 1, 20'000) == 1);
  CHECK((other.revents & POLLHUP) != 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("an actor may fork: what its child does there is refused, and programs run") {
  const std::string program = bin_dir() + "/test_actors_lives_host";
  const auto quiet = [](const std::string&, std::string_view) {};
  auto cluster =
      Cluster::start_embedded({.num_cpus = 4, .on_output = quiet, .program = program}).value();
  auto life = cluster.spawn<Life>({.num_cpus = 0}).value();
  auto other = cluster.spawn<Life>({.num_cpus = 0}).value();
  for (int i = 0; i < 100; ++i) REQUIRE(life.call<&Life::generation>().get(20s).ok());
  CHECK(life.call<&Life::fork_and_call>(other).get(20s).value() == 0);
  CHECK(life.call<&Life::fork_and_return>().get(20s).value() == 1);
  CHECK(life.call<&Life::run_program>("exit 7").get(20s).value() == 7);
  CHECK(life.call<&Life::generation>().get(20s).value() == 1);
  CHECK(life.call<&Life::ask>(other).get(20s).value() == 1);
}

}  // namespace
}  // namespace troupe::tests::fork_test
