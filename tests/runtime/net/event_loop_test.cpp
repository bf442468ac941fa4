#include "runtime/net/event_loop.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/runtime/net/support.h"
#include "tests/support/no_threads.h"

namespace troupe::net {
namespace {

using namespace std::chrono_literals;
using tests::on_loop;
using tests::Promise;

TEST_CASE("posted work runs in order, on the loop's thread") {
  LoopThread thread("test");
  CHECK_FALSE(thread.loop().in_loop_thread());
  std::vector<int> order;
  Promise<bool> done;
  for (int i = 0; i < 1000; ++i) thread.loop().post([&order, i] { order.push_back(i); });
  thread.loop().post([&] { done.set(thread.loop().in_loop_thread()); });
  CHECK(done.get());
  REQUIRE(order.size() == 1000);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("a loop for which there is no thread is an error that names it") {
  const tests::NoThreads none;
  const Status refused = LoopThread::start("troupe-test").status();
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK(refused.context("thread") == "troupe-test");
}

TEST_CASE("timers run by time, and not once cancelled") {
  const auto loop = make_event_loop();
  std::vector<int> order;
  loop->call_after(4ms, [&] { order.push_back(2); });
  loop->call_after(1ms, [&] { order.push_back(1); });
  const TimerId cancelled = loop->call_after(2ms, [&] { order.push_back(9); });
  loop->cancel(cancelled);
  loop->cancel(cancelled);
  // Cancelled in the same turn in which it expired.
  TimerId late = 0;
  loop->call_after(5ms, [&] { loop->cancel(late); });
  late = loop->call_after(5ms, [&] { order.push_back(8); });
  loop->call_after(6ms, [&] { loop->stop(); });
  loop->run();
  CHECK(order == std::vector<int>{1, 2});
}

TEST_CASE("a timer of another thread") {
  LoopThread thread("test");
  Promise<bool> done;
  thread.loop().call_after(1ms, [&] { done.set(thread.loop().in_loop_thread()); });
  CHECK(done.get());
}

TEST_CASE("a readable descriptor is reported until it is read, and not after unwatch") {
  const auto loop = make_event_loop();
  const auto pair = tests::socket_pair();
  const int ours = pair.first.get();
  const int theirs = pair.second.get();
  int calls = 0;
  REQUIRE(::write(theirs, "abc", 3) == 3);
  loop->watch_readable(ours, [&] {
    ++calls;
    char byte;
    REQUIRE(::read(ours, &byte, 1) == 1);
    if (calls == 3) {
      loop->unwatch(ours);
      REQUIRE(::write(theirs, "d", 1) == 1);
      loop->call_after(1ms, [&] { loop->stop(); });
    }
  });
  loop->run();
  CHECK(calls == 3);
}

TEST_CASE("a descriptor number that is used again is another descriptor") {
  const auto loop = make_event_loop();
  for (int round = 0; round < 3; ++round) {
    const auto pair = tests::socket_pair();
    const int ours = pair.first.get();
    const int theirs = pair.second.get();
    loop->watch_readable(ours, [&loop] { loop->stop(); });
    REQUIRE(::write(theirs, "x", 1) == 1);
    loop->run();
    loop->unwatch(ours);
  }
}

TEST_CASE("readable and writable on one descriptor") {
  const auto loop = make_event_loop();
  const auto pair = tests::socket_pair();
  const int ours = pair.first.get();
  const int theirs = pair.second.get();
  bool writable = false;
  loop->watch_readable(ours, [&] { loop->stop(); });
  loop->when_writable(ours, [&] {
    writable = true;
    REQUIRE(::write(theirs, "x", 1) == 1);
  });
  loop->run();
  CHECK(writable);
  loop->unwatch(ours);
}

TEST_CASE("signals arrive as calls") {
  const auto loop = make_event_loop();
  int count = 0;
  loop->on_signal(SIGUSR1, [&] {
    if (++count == 2) {
      loop->stop();
    } else {
      ::kill(::getpid(), SIGUSR1);
    }
  });
  ::kill(::getpid(), SIGUSR1);
  loop->run();
  CHECK(count == 2);
}

// Posts and unwatches when it goes, as connections do.
struct Clinging {
  EventLoop& loop;
  int fd;
  ~Clinging() {
    loop.post([] {});
    loop.unwatch(fd);
  }
};

TEST_CASE("what waits in a loop is destroyed with it, even if it calls the loop") {
  const auto pair = tests::socket_pair();
  const int ours = pair.first.get();
  auto loop = make_event_loop();
  auto clinging = std::make_shared<Clinging>(Clinging{*loop, ours});
  std::weak_ptr<Clinging> alive = clinging;
  loop->post([clinging] {});
  loop->call_after(1h, [clinging] {});
  loop->watch_readable(ours, [clinging] {});
  clinging.reset();
  CHECK_FALSE(alive.expired());
  loop.reset();
  CHECK(alive.expired());
}

}  // namespace
}  // namespace troupe::net
