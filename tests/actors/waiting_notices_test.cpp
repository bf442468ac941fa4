// What a driver says of actors that have to wait, and that it says nothing where none does.

#include "actors/waiting_notices.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <future>

#include "tests/actors/lives_actors.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"
#include "troupe/detail/mutex.h"

namespace troupe::tests::waiting_notices_test {
namespace {

using namespace std::chrono_literals;
using detail::WaitingNotices;

wire::ActorInfo waiting(std::uint64_t n, const std::string& name,
                        const std::string& why = "needs CPU 1; vm has CPU 0 of 2 free") {
  wire::ActorInfo info;
  info.actor_id = ActorId{1, n};
  info.type = "Reader";
  info.name = name;
  info.pending_why = why;
  return info;
}

TEST_CASE("actors that wait for the same are told in one line, and few lines are said") {
  using detail::lines_of_waiting;
  CHECK(lines_of_waiting({}, true).empty());
  CHECK(lines_of_waiting({waiting(1, "reader")}, false) ==
        std::vector<std::string>{"reader waits: needs CPU 1; vm has CPU 0 of 2 free"});
  CHECK(lines_of_waiting({waiting(1, "reader")}, true)
            .at(0)
            .ends_with(" ('troupe why reader' tells it again)"));
  std::vector<wire::ActorInfo> many;
  for (std::uint64_t n = 1; n <= 6; ++n) many.push_back(waiting(n, "r" + std::to_string(n)));
  CHECK(
      lines_of_waiting(many, false) ==
      std::vector<std::string>{"r1, r2, r3 and 3 more wait: needs CPU 1; vm has CPU 0 of 2 free"});
  for (std::uint64_t n = 7; n <= 10; ++n) {
    many.push_back(waiting(n, "g" + std::to_string(n), "needs GPU " + std::to_string(n)));
  }
  const auto lines = lines_of_waiting(many, true);
  REQUIRE(lines.size() == 4);
  CHECK(lines[1] == "g7 waits: needs GPU 7 ('troupe why g7' tells it again)");
  CHECK(lines[3] == "2 more actors wait for other things: 'troupe actors' lists them");
}

// A driver's notices with a head that answers what it is told to.
struct Notices {
  net::LoopThread thread{"test"};
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> said TROUPE_GUARDED_BY(mutex);
  std::vector<wire::ActorInfo> actors TROUPE_GUARDED_BY(mutex);
  int asked TROUPE_GUARDED_BY(mutex) = 0;
  std::shared_ptr<WaitingNotices> notices = WaitingNotices::make(
      thread.loop(), {.patience = 5ms,
                      .ask =
                          [this](const std::function<void(const WaitingNotices::Actors&)>& done) {
                            std::vector<wire::ActorInfo> now;
                            {
                              MutexLock lock(mutex);
                              now = actors;
                              ++asked;
                              changed.notify_all();
                            }
                            done(now);
                          },
                      .say =
                          [this](const std::string& line) {
                            MutexLock lock(mutex);
                            said.push_back(line);
                            changed.notify_all();
                          }});

  void update(const wire::ActorInfo& info) {
    std::promise<void> done;
    thread.loop().post([&] {
      notices->updated(info);
      done.set_value();
    });
    REQUIRE(done.get_future().wait_for(20s) == std::future_status::ready);
  }
  void head_has(std::vector<wire::ActorInfo> list) {
    MutexLock lock(mutex);
    actors = std::move(list);
  }
  // What was said when the head has been asked so often, and has answered.
  std::vector<std::string> after(int questions) {
    {
      MutexLock lock(mutex);
      REQUIRE(changed.wait_until(mutex, Deadline::after(20s),
                                 [&]() TROUPE_NO_ANALYSIS { return asked >= questions; }));
    }
    std::promise<void> passed;  // the answer has been taken
    thread.loop().post([&] { passed.set_value(); });
    REQUIRE(passed.get_future().wait_for(20s) == std::future_status::ready);
    MutexLock lock(mutex);
    CHECK(asked == questions);
    return said;
  }
};

TEST_CASE("an actor that waits is told once for each time it waits") {
  Notices n;
  auto reader = waiting(1, "reader");
  n.head_has({reader});
  n.update(reader);
  CHECK(n.after(1).size() == 1);
  n.update(reader);  // the same wait
  auto other = waiting(2, "other");
  n.head_has({reader, other});
  n.update(other);
  CHECK(n.after(2).size() == 2);
  // It ran, died, and waits again.
  auto running = reader;
  running.generation = 1;
  running.state = wire::ActorState::kAlive;
  n.update(running);
  reader.generation = 1;
  reader.state = wire::ActorState::kRestarting;
  n.head_has({reader, other});
  n.update(reader);
  const auto said = n.after(3);
  REQUIRE(said.size() == 3);
  CHECK(said[2].starts_with("reader waits"));
}

TEST_CASE("while nothing waits the head is not asked, and what has room by then is not told") {
  Notices n;
  auto quick = waiting(1, "quick");
  auto running = quick;
  running.state = wire::ActorState::kAlive;
  // (One after the other on the loop: no timer comes between.)
  std::promise<void> done;
  n.thread.loop().post([&] {
    for (int i = 0; i < 3; ++i) {
      n.notices->updated(quick);
      n.notices->updated(running);
    }
    done.set_value();
  });
  REQUIRE(done.get_future().wait_for(20s) == std::future_status::ready);
  // The head does not count this one as waiting any more.
  const auto late = waiting(2, "late", "");
  n.head_has({running, late});
  n.update(late);
  CHECK(n.after(1).empty());
}

TEST_CASE("a driver says which of its actors wait, also those that its actors made") {
  struct Lines {
    Mutex mutex;
    CondVar changed;
    std::vector<std::string> of_troupe TROUPE_GUARDED_BY(mutex);
  };
  const auto lines = std::make_shared<Lines>();
  auto cluster =
      Cluster::start_embedded({.num_cpus = 1,
                               .on_output =
                                   [lines](const std::string& actor, std::string_view line) {
                                     if (actor != "troupe") return;
                                     MutexLock lock(lines->mutex);
                                     lines->of_troupe.emplace_back(line);
                                     lines->changed.notify_all();
                                   },
                               .tell_waiting_after = 100ms,
                               .program = bin_dir() + "/test_actors_lives_host"})
          .value();
  const auto busy = cluster.spawn<Life>({.name = "busy"}).value();
  REQUIRE(busy.call<&Life::pid>().get(20s).ok());
  // Nobody calls these: the driver hears of them all the same.
  REQUIRE(cluster.spawn<Life>({.name = "reader"}).ok());
  REQUIRE(cluster.spawn<Life>({.name = "writer"}).ok());
  MutexLock lock(lines->mutex);
  const auto told = [&](const char* name) TROUPE_NO_ANALYSIS {
    return std::any_of(lines->of_troupe.begin(), lines->of_troupe.end(),
                       [&](const std::string& line) {
                         return line.find(name) != std::string::npos &&
                                line.ends_with(": needs CPU 1; local has CPU 0 of 1 free");
                       });
  };
  CHECK(lines->changed.wait_until(lines->mutex, Deadline::after(20s),
                                  [&] { return told("reader") && told("writer"); }));
}

}  // namespace
}  // namespace troupe::tests::waiting_notices_test
