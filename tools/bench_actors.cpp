// Times actor calls between a driver and an actor's process on this machine, beside the raw limits
// of the same machine in the same run: "name value unit" lines, or one JSON object with --json.
//
//   bench_actors [--json] [--repeats N] [--quick] [--only starts|lives|light|calls|saves]
//
// The driver is pinned to the first CPU that it may use and the actor to the last one. Every figure
// is the median of N (at least 5) measurements; figures and their raw limits take turns.

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "actors/client.h"
#include "actors/head_directory.h"
#include "runtime/base/json.h"
#include "runtime/memory/adaptive_spin.h"
#include "runtime/memory/futex.h"
#include "runtime/memory/segment.h"
#include "runtime/process/child.h"
#include "runtime/process/spawn.h"
#include "scheduler/client/head_client.h"
#include "troupe/actor.h"
#include "troupe/chaos_cluster.h"
#include "troupe/cluster.h"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

constexpr std::size_t kLargeBytes = 1u << 20;
constexpr int kCallersGone = 8;

// --- the machine

int g_driver_cpu = 0;  // set once, in main()
int g_actor_cpu = 0;

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void pin_thread(pid_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  (void)::sched_setaffinity(thread, sizeof set, &set);
}

// All threads of this process.
void pin_process(int cpu) {
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return;
  while (const dirent* entry = ::readdir(tasks)) {
    if (const int thread = std::atoi(entry->d_name); thread > 0) pin_thread(thread, cpu);
  }
  ::closedir(tasks);
}

// --- the actor

class Echo {
 public:
  void pin(int cpu) { pin_process(cpu); }
  std::int64_t pid() const { return ::getpid(); }
  int add(int n) const { return n + 1; }
  // Looks at every 4096th byte, in place.
  std::uint64_t look(troupe::BytesView bytes) const {
    std::uint64_t sum = bytes.size();
    for (std::size_t i = 0; i < bytes.size(); i += 4096) sum += static_cast<unsigned>(bytes[i]);
    return sum;
  }
  static constexpr auto methods = troupe::methods<&Echo::pin, &Echo::pid, &Echo::add, &Echo::look>;
};

// The same with a context of its own: what a light actor costs at most.
class Placed {
 public:
  explicit Placed(ActorContext& context) : context_(context) {}
  std::uint64_t index() const { return context_.light_index(); }
  std::int64_t pid() const { return ::getpid(); }
  static constexpr auto methods = troupe::methods<&Placed::index, &Placed::pid>;

 private:
  ActorContext& context_;
};

// Saves its 4 KiB before it answers.
class Keeper {
 public:
  int add(int n) {
    ++count_;
    return n + 1;
  }
  std::vector<std::int64_t> save() const { return std::vector<std::int64_t>(512, count_); }
  void load(std::vector<std::int64_t> saved) { count_ = saved.front(); }
  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&Keeper::add>;

 private:
  std::int64_t count_ = 0;
};

// --- measuring

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_actors: %s\n", status.to_string().c_str());
  std::exit(exit_code(status.code()));
}
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

TimePoint now() { return SystemClock().now(); }
double us_since(TimePoint start) {
  return std::chrono::duration<double, std::micro>(now() - start).count();
}

double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const auto index = static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5);
  return values[index];
}
double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
};

class Report {
 public:
  void add(const std::string& name, double value, const std::string& unit) {
    figures_.push_back({name, value, unit});
    if (!json_) {
      std::printf("%-52s %12.3f %s\n", name.c_str(), value, unit.c_str());
      std::fflush(stdout);
    }
  }
  void set_json() { json_ = true; }
  void finish() const {
    if (!json_) return;
    json::Object object;
    for (const Figure& figure : figures_) {
      object.emplace(figure.name, json::Object{{"value", figure.value}, {"unit", figure.unit}});
    }
    std::printf("%s\n", json::write(json::Value(std::move(object))).c_str());
  }

 private:
  std::vector<Figure> figures_;
  bool json_ = false;
};

struct Round {
  double p50 = 0;
  double p99 = 0;
};

// The time of each of `count` runs of `once`, in µs.
template <typename F>
Round timed(int count, F once) {
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const TimePoint start = now();
    once();
    times.push_back(us_since(start));
  }
  return {percentile(times, 0.5), percentile(times, 0.99)};
}

// --- raw limits

// A process that answers, pinned to the actor's CPU; ended by the destructor.
class Answerer {
 public:
  explicit Answerer(const std::function<void()>& answer_forever) {
    child_ = ::fork();
    if (child_ == 0) {
      pin_thread(0, g_actor_cpu);
      answer_forever();
      ::_exit(0);
    }
  }
  ~Answerer() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

 private:
  pid_t child_;
};

struct PingPong {
  alignas(128) std::atomic<std::uint32_t> ping;
  alignas(128) std::atomic<std::uint32_t> pong;
};

Round raw_futex(int count) {
  auto segment = must(memory::Segment::create("bench", 4096));
  auto* words = reinterpret_cast<PingPong*>(segment.data());
  const auto wait_for = [](std::atomic<std::uint32_t>& word, std::uint32_t value) {
    for (std::uint32_t seen; (seen = word.load()) != value;) {
      (void)memory::futex_wait(word, seen, 10s);
    }
  };
  const Answerer answerer([&] {
    for (std::uint32_t i = 1;; ++i) {
      wait_for(words->ping, i);
      words->pong.store(i);
      memory::futex_wake(words->pong, 1);
    }
  });
  std::uint32_t i = 0;
  const auto once = [&] {
    words->ping.store(++i);
    memory::futex_wake(words->ping, 1);
    wait_for(words->pong, i);
  };
  (void)timed(count / 10 + 1, once);
  return timed(count, once);
}

Round raw_spin(int count) {
  auto segment = must(memory::Segment::create("bench", 4096));
  auto* words = reinterpret_cast<PingPong*>(segment.data());
  const Answerer answerer([&] {
    for (std::uint32_t i = 1;; ++i) {
      while (words->ping.load(std::memory_order_acquire) != i) memory::spin_pause();
      words->pong.store(i, std::memory_order_release);
    }
  });
  std::uint32_t i = 0;
  const auto once = [&] {
    words->ping.store(++i, std::memory_order_release);
    while (words->pong.load(std::memory_order_acquire) != i) memory::spin_pause();
  };
  (void)timed(count / 10 + 1, once);
  return timed(count, once);
}

void exact(ssize_t count, std::size_t wanted) {
  if (count == static_cast<ssize_t>(wanted)) return;
  std::fprintf(stderr, "bench_actors: the raw TCP connection broke\n");
  std::_Exit(7);
}

// 64 bytes back over TCP on the loopback interface for each `bytes_there` bytes there, in blocking
// calls.
Round raw_tcp(int count, std::size_t bytes_there = 64) {
  UniqueFd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listening.get(), any, length) != 0 || ::listen(listening.get(), 1) != 0 ||
      ::getsockname(listening.get(), any, &length) != 0) {
    must(error(Code::kResourceExhausted, "no TCP port on the loopback interface"));
  }
  const int yes = 1;
  const Answerer answerer([&] {
    UniqueFd socket(::accept(listening.get(), nullptr, nullptr));
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    std::vector<std::byte> bytes(bytes_there);
    while (::recv(socket.get(), bytes.data(), bytes_there, MSG_WAITALL) ==
           static_cast<ssize_t>(bytes_there)) {
      exact(::send(socket.get(), bytes.data(), 64, MSG_NOSIGNAL), 64);
    }
  });
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), any, length) != 0) {
    must(error(Code::kUnavailable, "the raw TCP connection failed"));
  }
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  std::vector<std::byte> bytes(bytes_there);
  const auto once = [&] {
    exact(::send(socket.get(), bytes.data(), bytes_there, MSG_NOSIGNAL), bytes_there);
    exact(::recv(socket.get(), bytes.data(), 64, MSG_WAITALL), 64);
  };
  (void)timed(count / 10 + 1, once);
  return timed(count, once);
}

// Copies of 1 MiB into shared memory, a second.
double raw_copies() {
  auto segment = must(memory::Segment::create("bench", kLargeBytes));
  const std::vector<std::byte> source(kLargeBytes, std::byte{1});
  constexpr int kCopies = 500;
  std::memcpy(segment.data(), source.data(), kLargeBytes);
  const TimePoint start = now();
  for (int i = 0; i < kCopies; ++i) {
    std::memcpy(segment.data(), source.data(), kLargeBytes);
    asm volatile("" : : "r"(segment.data()) : "memory");
  }
  return kCopies / us_since(start) * 1e6;
}

double raw_spawn_ms() {
  process::SpawnOptions options;
  options.path = "/proc/self/exe";
  options.argv = {"bench_actors", "--nothing"};
  const TimePoint start = now();
  auto child = must(process::spawn(options));
  must(process::wait(child, Deadline::after(10s)).status());
  return us_since(start) / 1000;
}

// --- callers

enum class Way { kSpin, kNoSpin, kSocket, kTcp };

// A client of its own of the cluster's actors, which reaches them in one way only.
class Caller {
 public:
  Caller(Cluster& cluster, Way way) : thread_("bench-caller") {
    wire::ClientHello hello;
    hello.client_id = ClientId::make(*random_);
    hello.job_id = cluster.job_id();
    hello.name = "bench";
    hello.kind = "tool";
    head_ = must(scheduler::HeadClient::connect(thread_.loop(), cluster.head_address(),
                                                cluster.token(), hello, Deadline::after(10s)));
    auto environment = std::make_shared<detail::ChannelEnvironment>();
    environment->loop = &thread_.loop();
    environment->token = cluster.token();
    if (way != Way::kTcp) environment->node_id = cluster.node_id();
    if (way == Way::kSocket) environment->rings_max = 0;
    if (way != Way::kSpin) environment->spin_max = Duration::zero();
    environment->directory = std::make_shared<detail::HeadDirectory>(head_);
    detail::ClientOptions options;
    options.environment = std::move(environment);
    options.client_id = hello.client_id;
    options.random = random_;
    client_ = std::make_shared<detail::ActorClient>(std::move(options));
  }
  ~Caller() {
    client_->close();
    head_->close();
  }
  ActorHandle<Echo> handle(ActorId id) const { return detail::handle_to<Echo>(client_, id); }
  // Until calls go the way they are to go.
  ActorHandle<Echo> warm(ActorId id, Way way) const {
    const auto handle = this->handle(id);
    const auto channel = client_->channel(id, detail::kActorInterface<Echo>);
    const Deadline patience = Deadline::after(60s);
    const bool ring = way == Way::kSpin || way == Way::kNoSpin;
    for (int i = 0; i < 500 || (ring && !channel->has_ring()); ++i) {
      must(handle.call<&Echo::add>(i).get(10s).status());
      if (patience.passed()) must(error(Code::kInternal, "no ring was made"));
    }
    return handle;
  }

 private:
  const std::shared_ptr<SystemRandom> random_ = std::make_shared<SystemRandom>();
  net::LoopThread thread_;
  std::shared_ptr<scheduler::HeadClient> head_;
  std::shared_ptr<detail::ActorClient> client_;
};

template <typename T>
Round sync_calls(const ActorHandle<T>& handle, int count) {
  return timed(count, [&] { must(handle.template call<&T::add>(1).get(10s).status()); });
}

// Calls a second with up to `window` on their way.
double async_calls(const ActorHandle<Echo>& handle, int count, std::size_t window) {
  std::deque<Future<int>> open;
  const TimePoint start = now();
  for (int i = 0; i < count; ++i) {
    if (open.size() == window) {
      must(open.front().get(10s).status());
      open.pop_front();
    }
    open.push_back(handle.call<&Echo::add>(i));
  }
  for (auto& future : open) must(future.get(10s).status());
  return count / us_since(start) * 1e6;
}

double large_calls(const ActorHandle<Echo>& handle, int count) {
  const std::vector<std::byte> bytes(kLargeBytes, std::byte{1});
  const std::uint64_t expected = kLargeBytes + kLargeBytes / 4096;
  const TimePoint start = now();
  for (int i = 0; i < count; ++i) {
    if (must(handle.call<&Echo::look>(bytes).get(10s)) != expected) {
      must(error(Code::kDataLoss, "the actor saw other bytes"));
    }
  }
  return count / us_since(start) * 1e6;
}

// --- the benchmark

struct Options {
  int repeats = 7;
  int calls = 20'000;
  std::string only;  // empty: everything
  bool measures(const char* part) const { return only.empty() || only == part; }
};

struct Rounds {
  std::vector<double> p50;
  std::vector<double> p99;
  void add(const Round& round) {
    p50.push_back(round.p50);
    p99.push_back(round.p99);
  }
};

void bench_calls(Cluster& cluster, const Options& options, Report& report) {
  auto actor = must(cluster.spawn<Echo>({.num_cpus = 0}));
  must(actor.call<&Echo::pin>(g_actor_cpu).get(20s));
  const ActorId id = actor.id();
  const Caller spin(cluster, Way::kSpin), no_spin(cluster, Way::kNoSpin);
  const Caller socket(cluster, Way::kSocket), tcp(cluster, Way::kTcp);
  pin_process(g_driver_cpu);

  // While another caller has a ring that may not spin, nobody spins: the spinning one is alone.
  Rounds raw_spins, spins, raw_futexes, no_spins, sockets, raw_tcps, tcps;
  std::vector<double> asyncs, socket_asyncs, tcp_asyncs, copies, larges, tcp_larges, raw_tcp_larges;
  {
    const auto handle = spin.warm(id, Way::kSpin);
    for (int i = 0; i < options.repeats; ++i) {
      raw_spins.add(raw_spin(options.calls));
      (void)sync_calls(handle, 500);
      spins.add(sync_calls(handle, options.calls));
      asyncs.push_back(async_calls(handle, options.calls * 10, 1000));
      copies.push_back(raw_copies());
      larges.push_back(large_calls(handle, 500));
    }
  }
  const auto no_spin_handle = no_spin.warm(id, Way::kNoSpin);
  const auto socket_handle = socket.warm(id, Way::kSocket);
  const auto tcp_handle = tcp.warm(id, Way::kTcp);
  for (int i = 0; i < options.repeats; ++i) {
    raw_futexes.add(raw_futex(options.calls));
    no_spins.add(sync_calls(no_spin_handle, options.calls));
    sockets.add(sync_calls(socket_handle, options.calls / 4));
    raw_tcps.add(raw_tcp(options.calls));
    tcps.add(sync_calls(tcp_handle, options.calls / 4));
    socket_asyncs.push_back(async_calls(socket_handle, options.calls * 2, 1000));
    tcp_asyncs.push_back(async_calls(tcp_handle, options.calls * 2, 1000));
    raw_tcp_larges.push_back(1e6 / raw_tcp(500, kLargeBytes).p50);
    tcp_larges.push_back(large_calls(tcp_handle, 500));
  }
  const auto sync = [&](const std::string& name, const Rounds& rounds) {
    report.add(name + " p50", median(rounds.p50), "us");
    report.add(name + " p99", median(rounds.p99), "us");
  };
  sync("raw spinning ping-pong", raw_spins);
  sync("sync call, same node, spinning", spins);
  sync("raw blocking futex ping-pong", raw_futexes);
  sync("sync call, same node, no spinning", no_spins);
  report.add("same node, no spinning: part of raw rate",
             median(raw_futexes.p50) / median(no_spins.p50), "x");
  sync("sync call, same node, socket only", sockets);
  sync("raw TCP ping-pong", raw_tcps);
  sync("sync call, TCP loopback", tcps);
  report.add("TCP loopback: part of raw rate", median(raw_tcps.p50) / median(tcps.p50), "x");
  report.add("async calls 1 to 1, same node", median(asyncs), "1/s");
  report.add("async calls 1 to 1, same node, socket only", median(socket_asyncs), "1/s");
  report.add("async calls 1 to 1, TCP loopback", median(tcp_asyncs), "1/s");
  report.add("raw copies of 1 MiB", median(copies), "1/s");
  report.add("sync calls with a 1 MiB argument", median(larges), "1/s");
  report.add("raw TCP, 1 MiB there and 64 bytes back", median(raw_tcp_larges), "1/s");
  report.add("sync calls with a 1 MiB argument, TCP loopback", median(tcp_larges), "1/s");
  report.add("1 MiB, TCP loopback: part of raw rate", median(tcp_larges) / median(raw_tcp_larges),
             "x");
}

void bench_lives(Cluster& cluster, const Options& options, Report& report) {
  std::vector<double> spawns, creations, respawns;
  for (int i = 0; i < options.repeats * 3; ++i) {
    spawns.push_back(raw_spawn_ms());
    TimePoint start = now();
    auto actor = must(cluster.spawn<Echo>({.num_cpus = 0, .max_restarts = 1}));
    must(actor.call<&Echo::add>(1).get(20s).status());
    creations.push_back(us_since(start) / 1000);
    const auto pid = static_cast<pid_t>(must(actor.call<&Echo::pid>().get(20s)));
    start = now();
    ::kill(pid, SIGKILL);
    must(actor.with({.retry = true}).call<&Echo::add>(1).get(20s).status());
    respawns.push_back(us_since(start) / 1000);
    must(cluster.kill(actor, {}));
  }
  report.add("raw: starting this program alone p50", median(spawns), "ms");
  report.add("create a process actor to first answer p50", median(creations), "ms");
  report.add("kill -9 to the respawned actor's first answer p50", median(respawns), "ms");
}

// What processes of light actors are measured with.
constexpr std::size_t kLightCount = 10'000;

// A process that makes as many objects and tells of each by a byte in a pipe: objects a second.
double raw_objects_per_second() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) must(error(Code::kResourceExhausted, "no pipe"));
  const UniqueFd told(ends[0]), telling(ends[1]);
  process::SpawnOptions options;
  options.path = "/proc/self/exe";
  options.argv = {"bench_actors", "--objects"};
  options.descriptors = {{.parent = telling.get(), .child = 3}};
  const TimePoint start = now();
  auto child = must(process::spawn(options));
  char bytes[4096];
  for (std::size_t seen = 0; seen < kLightCount;) {
    const ssize_t count = ::read(told.get(), bytes, sizeof bytes);
    if (count <= 0) must(error(Code::kInternal, "the objects were not made"));
    seen += static_cast<std::size_t>(count);
  }
  const double rate = kLightCount / us_since(start) * 1e6;
  must(process::wait(child, Deadline::after(10s)).status());
  return rate;
}

// The other side of it.
int make_objects() {
  std::vector<std::unique_ptr<Echo>> objects;
  for (std::size_t i = 0; i < kLightCount; ++i) {
    objects.push_back(std::make_unique<Echo>());
    const char byte = static_cast<char>(objects.back()->add(1));
    if (::write(3, &byte, 1) != 1) return 1;
  }
  return 0;
}

// Of a process's memory what is its own, and its part of what it shares.
double pss_bytes(std::int64_t pid) {
  const std::string path = fmt::format("/proc/{}/smaps_rollup", pid);
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) must(error(Code::kNotFound, "{}", path));
  char line[256];
  long kib = -1;
  while (std::fgets(line, sizeof line, file) != nullptr && kib < 0) {
    if (std::sscanf(line, "Pss: %ld kB", &kib) != 1) kib = -1;
  }
  std::fclose(file);
  return static_cast<double>(kib) * 1024;
}

// Their first answers, all.
template <auto Method, typename Handles, typename... A>
void first_answers(const Handles& handles, A... arguments) {
  std::vector<Future<typename detail::MethodTraits<Method>::Value>> answers;
  answers.reserve(kLightCount);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    answers.push_back(handles[i].template call<Method>(arguments...));
  }
  for (auto& answer : answers) must(answer.get(20s).status());
}

void bench_light(Cluster& cluster, const Options& options, Report& report) {
  const ActorOptions light{
      .num_cpus = 0, .isolation = Isolation::kShared, .light_per_host = kLightCount};
  std::vector<double> raw, batches, singles, calls, alone, with_context;
  for (int i = 0; i < options.repeats; ++i) {
    raw.push_back(raw_objects_per_second());
    TimePoint start = now();
    auto actors = must(cluster.spawn_many<Echo>(kLightCount, light));
    first_answers<&Echo::add>(actors, 1);
    batches.push_back(kLightCount / us_since(start) * 1e6);
    alone.push_back(pss_bytes(must(actors[0].call<&Echo::pid>().get(20s))) / kLightCount);
    first_answers<&Echo::add>(actors, 1);
    start = now();
    for (int round = 0; round < 5; ++round) first_answers<&Echo::add>(actors, round);
    calls.push_back(5 * kLightCount / us_since(start) * 1e6);
    must(cluster.kill(actors));

    auto placed = must(cluster.spawn_many<Placed>(kLightCount, light));
    first_answers<&Placed::index>(placed);
    with_context.push_back(pss_bytes(must(placed[0].call<&Placed::pid>().get(20s))) / kLightCount);
    must(cluster.kill(placed));

    start = now();
    std::vector<ActorHandle<Echo>> one_by_one;
    for (std::size_t k = 0; k < kLightCount; ++k) {
      one_by_one.push_back(must(cluster.spawn<Echo>(light)));
    }
    first_answers<&Echo::add>(one_by_one, 1);
    singles.push_back(kLightCount / us_since(start) * 1e6);
    must(detail::kill_actor(detail::Access::client(cluster), one_by_one[0].host_id(), {}));
  }
  report.add("raw: a process makes 10,000 objects, each tells", median(raw), "1/s");
  report.add("create 10,000 light actors to all first answers", median(batches), "1/s");
  report.add("the same, spawned one by one", median(singles), "1/s");
  report.add("memory of a light actor of 10,000, with their process", median(alone), "B");
  report.add("the same, each with a context", median(with_context), "B");
  report.add("async calls, 1 to 10,000 light actors", median(calls), "1/s");
}

// What it costs that a call's effect is saved before its answer: on the actor's node, and on
// another one, too, whose raw limit is a frame of that size there and back over TCP. And once
// callers have gone, whose answers are kept, since they may come back.
void bench_saves(const Options& options, Report& report) {
  auto nodes = must(ChaosCluster::start({.nodes = 2, .cpus_per_node = 3}, Deadline::after(30s)));
  auto cluster = must(nodes->connect());
  const auto keeper = [&](int replicas) {
    return must(cluster.spawn<Keeper>(
        {.max_restarts = 1, .replicas = replicas, .label_selector = on_node(0)}));
  };
  const auto alone = keeper(0), copied = keeper(1), left = keeper(0);
  const int calls = options.calls / 4;
  sync_calls(alone, 100);
  sync_calls(copied, 100);
  for (int i = 0; i < kCallersGone; ++i) {
    auto caller = must(nodes->connect());
    const auto handle = detail::handle_to<Keeper>(detail::Access::client(caller), left.id());
    sync_calls(handle.with({.retry = true}), 200);
  }
  sync_calls(left, 100);
  Rounds raw, kept, with_copy, after_others;
  for (int i = 0; i < options.repeats; ++i) {
    raw.add(raw_tcp(calls, 4096));
    kept.add(sync_calls(alone, calls));
    with_copy.add(sync_calls(copied, calls));
    after_others.add(sync_calls(left, calls));
  }
  report.add("raw TCP, 4 KiB there and 64 bytes back p50", median(raw.p50), "us");
  report.add("call that saves 4 KiB on its node p50", median(kept.p50), "us");
  report.add("the same with a copy on another node p50", median(with_copy.p50), "us");
  report.add("on its node, after eight callers have gone p50", median(after_others.p50), "us");
}

// Head, node and driver in this process: until the node has joined.
double start_ms() {
  const TimePoint start = now();
  auto cluster = must(Cluster::start_embedded());
  const Deadline patience = Deadline::after(10s);
  while (must(cluster.nodes()).empty()) {
    if (patience.passed()) must(error(Code::kDeadlineExceeded, "the node has not joined"));
  }
  return us_since(start) / 1000;
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Echo, Placed, Keeper>)) return *code;
  Options options;
  Report report;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--nothing") return 0;
    if (argument == "--objects") return make_objects();
    if (argument == "--json") {
      report.set_json();
    } else if (argument == "--quick") {
      options.calls = 2'000;
    } else if (argument == "--only" && i + 1 < argc &&
               std::set<std::string>{"starts", "lives", "light", "calls", "saves"}.contains(
                   argv[i + 1])) {
      options.only = argv[++i];
    } else if (argument == "--repeats" && i + 1 < argc && std::atoi(argv[i + 1]) >= 5) {
      options.repeats = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: bench_actors [--json] [--quick] [--repeats N (at least 5)] "
                   "[--only starts|lives|light|calls|saves]\n");
      return 2;
    }
  }
  const auto cpus = usable_cpus();
  g_driver_cpu = cpus.front();
  g_actor_cpu = cpus.back();
  std::vector<double> starts;
  if (options.measures("starts")) {
    for (int i = 0; i < options.repeats; ++i) starts.push_back(start_ms());
    report.add("embedded head ready and node joined p50", median(starts), "ms");
  }
  {
    auto cluster = must(Cluster::start_embedded());
    if (options.measures("lives")) bench_lives(cluster, options, report);
    if (options.measures("light")) bench_light(cluster, options, report);
    if (options.measures("calls")) bench_calls(cluster, options, report);
  }
  if (options.measures("saves")) bench_saves(options, report);
  report.finish();
  return 0;
}
