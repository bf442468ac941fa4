#pragma once
// How `tools/bench compare-rpc` measures calls between two processes: the same loops for Troupe,
// for every peer and for raw sockets. C++17 and the standard library alone, since the peers'
// programs are built with it too.
//
//   PROGRAM WAY FOLDER SECONDS WINDOW CALLER_CPU CALLEE_CPU
//
// WAY is unix, tcp or tls; FOLDER has the socket and the certificate (cert.pem, key.pem); a CPU of
// -1 leaves the process where the kernel puts it. Prints "row<TAB>value<TAB>unit" lines.

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace rpc_measure {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Calls of a handle or connection that count as its first ones: Troupe's next call may be through
// shared memory.
constexpr int kFirstCalls = 31;
// Fresh handles or connections of which the first calls are timed.
constexpr int kFreshMax = 40;
// So many calls of a size are timed at least, and at most.
constexpr int kCallsMin = 5;
constexpr int kCallsMax = 1'000'000;

struct Plan {
  std::string way;
  std::string folder;
  double seconds = 0;      // of each row
  std::size_t window = 0;  // asynchronous calls on their way
  int caller_cpu = -1;
  int callee_cpu = -1;
  int port = 0;  // of the server, once it is ready

  std::string socket() const { return folder + "/socket"; }
  std::string text_of(const char* file) const {
    std::ifstream in(folder + "/" + file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

[[noreturn]] inline void fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(7);
}

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void row(const std::string& name, double value, const char* unit) {
  std::printf("%s\t%.6g\t%s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

inline double part_of(std::vector<double>& values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}

// What a callee does with large arguments: it looks at every 4096th byte.
inline std::uint64_t look(const char* bytes, std::size_t count) {
  std::uint64_t sum = count;
  for (std::size_t i = 0; i < count; i += 4096) sum += static_cast<unsigned char>(bytes[i]);
  return sum;
}
inline void check_look(std::uint64_t sum, std::size_t count) {
  if (sum != count + count / 4096) fail("the callee saw other bytes");
}
inline std::string argument(std::size_t bytes) { return std::string(bytes, '\1'); }

// Synchronous calls, each timed.
template <typename Once>
void sync_calls(const Plan& plan, const std::string& name, Once once) {
  for (int i = 0; i < 200; ++i) once();
  std::vector<double> times;
  const double end = now_s() + plan.seconds;
  for (double start = now_s(); start < end && times.size() < kCallsMax;) {
    once();
    const double done = now_s();
    times.push_back((done - start) * 1e6);
    start = done;
  }
  row(name + " p50", part_of(times, 0.5), "us");
  row(name + " p99", part_of(times, 0.99), "us");
}

// Synchronous calls with an argument of `bytes`.
template <typename Once>
void large_calls(const Plan& plan, const std::string& name, std::size_t bytes, Once once) {
  for (int i = 0; i < 2; ++i) once();
  int count = 0;
  const double start = now_s();
  while (count < kCallsMax && (count < kCallsMin || now_s() - start < plan.seconds)) {
    once();
    ++count;
  }
  const double rate = count / (now_s() - start);
  row(name, rate, "1/s");
  if (bytes > kMiB) row(name + " rate", rate * static_cast<double>(bytes) / 1e9, "GB/s");
}

// `connect()` makes a fresh connection and returns a function that makes one call over it.
template <typename Connect>
void first_calls(const Plan& plan, const std::string& name, Connect connect) {
  std::vector<double> times;
  const double start = now_s();
  for (int i = 0; i < kFreshMax && (i < kCallsMin || now_s() - start < 2 * plan.seconds); ++i) {
    auto once = connect();
    for (int k = 0; k < kFirstCalls; ++k) {
      const double begin = now_s();
      once();
      times.push_back((now_s() - begin) * 1e6);
    }
  }
  row(name + " p50", part_of(times, 0.5), "us");
}

// Counts answers of asynchronous calls: begin, then done() for each answer until it says that it is
// over.
class Rate {
 public:
  explicit Rate(const Plan& plan)
      : warm_until_(now_s() + plan.seconds / 5), seconds_(plan.seconds) {}
  // Whether to go on. The clock is asked at every 64th answer.
  bool go_on() {
    if (++answers_ % 64 != 0) return true;
    const double now = now_s();
    if (start_ == 0) {
      if (now < warm_until_) return true;
      start_ = now;
      answers_ = 0;
      return true;
    }
    if (now - start_ < seconds_ && answers_ < kCallsMax * 10) return true;
    rate_ = static_cast<double>(answers_) / (now - start_);
    return false;
  }
  double rate() const { return rate_; }

 private:
  const double warm_until_;
  const double seconds_;
  double start_ = 0;
  double rate_ = 0;
  std::int64_t answers_ = 0;
};

inline void pin(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  (void)::sched_setaffinity(0, sizeof set, &set);
}

inline bool plan_of(int argc, char** argv, Plan& plan) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: %s WAY FOLDER SECONDS WINDOW CALLER_CPU CALLEE_CPU\n", argv[0]);
    return false;
  }
  plan.way = argv[1];
  plan.folder = argv[2];
  plan.seconds = std::atof(argv[3]);
  plan.window = std::strtoul(argv[4], nullptr, 10);
  plan.caller_cpu = std::atoi(argv[5]);
  plan.callee_cpu = std::atoi(argv[6]);
  return plan.seconds > 0 && plan.window > 0;
}

// The server in a process of its own, the caller in this one. `serve(plan, ready)` calls
// ready(port) once it accepts, and never returns; `call(plan)` measures.
template <typename Serve, typename Call>
int run(int argc, char** argv, Serve serve, Call call) {
  Plan plan;
  if (!plan_of(argc, argv, plan)) return 2;
  int ends[2];
  if (::pipe(ends) != 0) fail("no pipe");
  const pid_t parent = ::getpid();
  const pid_t server = ::fork();
  if (server == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) std::_Exit(7);
    ::close(ends[0]);
    pin(plan.callee_cpu);
    serve(plan, [&](int port) {
      if (::write(ends[1], &port, sizeof port) != sizeof port) std::_Exit(7);
    });
    std::_Exit(0);
  }
  ::close(ends[1]);
  if (::read(ends[0], &plan.port, sizeof plan.port) != sizeof plan.port)
    fail("the server did not start");
  pin(plan.caller_cpu);
  call(plan);
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  std::_Exit(0);
}

}  // namespace rpc_measure
