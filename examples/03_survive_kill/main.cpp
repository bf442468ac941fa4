// A counter whose process is killed with SIGKILL half-way, and keeps its count.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>

#include <troupe/actor.h>
#include <troupe/cluster.h>

using namespace std::chrono_literals;

class Counter {
 public:
  int add(int n) { return count_ += n; }
  std::int64_t pid() const { return ::getpid(); }

  // What save() returns is kept outside of the process after each call, before its answer leaves;
  // load() gets it back in the next process.
  int save() const { return count_; }
  void load(int count) { count_ = count; }

  static constexpr auto methods = troupe::methods<&Counter::add, &Counter::pid>;

 private:
  int count_ = 0;
};

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Counter>)) return *code;

  auto cluster = troupe::Cluster::start_embedded().value();
  auto counter = cluster.spawn<Counter>({.name = "counter", .max_restarts = 3}).value();

  int count = 0;
  for (int i = 0; i < 10; ++i) count = counter.call<&Counter::add>(1).get(10s).value();
  const auto pid = counter.call<&Counter::pid>().get(10s).value();
  std::printf("count %d, now killing it\n", count);

  ::kill(static_cast<pid_t>(pid), SIGKILL);
  // Asking for the pid twice does no harm, so this call may be sent again to the next process. A
  // call without `retry` that the death cut off ends with kUnavailable: it may or may not have run.
  const auto idempotent = counter.with({.timeout = 10s, .retry = true});
  auto next_pid = pid;
  while (next_pid == pid) next_pid = idempotent.call<&Counter::pid>().get(10s).value();
  std::printf("a new process answers\n");

  for (int i = 0; i < 10; ++i) count = counter.call<&Counter::add>(1).get(10s).value();
  std::printf("count %d\n", count);
  return count == 20 ? 0 : 1;
}
