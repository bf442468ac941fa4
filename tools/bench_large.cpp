// What is large, between a driver and actors of a cluster on this machine: arguments and results of
// calls, constructor arguments, lists of actors. "name value unit" lines, or one JSON object.
//
//   bench_large [--json] [--mib N] [--actors N] [--listed N]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "actors/head_directory.h"
#include "runtime/base/json.h"
#include "runtime/process/executable.h"
#include "scheduler/client/head_client.h"
#include "troupe/actor.h"
#include "troupe/cluster.h"
#include "actors/client.h"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

using Bytes = std::vector<std::byte>;

constexpr Duration kPatience = 300s;
constexpr const char* kSlot = "slot";

class Store {
 public:
  explicit Store(Bytes bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t kept() const { return bytes_.size(); }
  std::uint64_t take(troupe::BytesView bytes) const { return bytes.size(); }
  Bytes give(std::uint64_t count) const { return Bytes(count, std::byte{1}); }
  static constexpr auto constructor = troupe::constructor<Bytes>;
  static constexpr auto methods = troupe::methods<&Store::kept, &Store::take, &Store::give>;

 private:
  const Bytes bytes_;
};

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_large: %s\n", status.to_string().c_str());
  std::exit(exit_code(status.code()));
}
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}
void must_be(bool right, const char* what) {
  if (!right) must(error(Code::kDataLoss, "{} came back wrong", what));
}

double seconds_of(const std::function<void()>& work) {
  const TimePoint start = SystemClock().now();
  work();
  return std::chrono::duration<double>(SystemClock().now() - start).count();
}

class Report {
 public:
  explicit Report(bool as_json) : as_json_(as_json) {}
  ~Report() {
    if (as_json_) std::printf("%s\n", json::write(json::Value(std::move(figures_))).c_str());
  }
  void add(const std::string& name, double value, const char* unit) {
    if (as_json_) {
      figures_.emplace(name, json::Object{{"value", value}, {"unit", unit}});
      return;
    }
    std::printf("%-58s %10.3f %s\n", name.c_str(), value, unit);
    std::fflush(stdout);
  }

 private:
  const bool as_json_;
  json::Object figures_;
};

struct Options {
  std::uint64_t mib = 1024;  // of an argument, and of a result
  int actors = 1000;
  int listed = 100'000;
  bool json = false;
};

// A driver of the cluster on this node, or as if on another machine.
class Driver {
 public:
  Driver(Cluster& cluster, bool near) : thread_("bench-driver") {
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
    if (near) environment->node_id = cluster.node_id();
    environment->directory = std::make_shared<detail::HeadDirectory>(head_);
    detail::ClientOptions options;
    options.environment = std::move(environment);
    options.job_id = hello.job_id;
    options.client_id = hello.client_id;
    options.image = []() -> Result<wire::Image> {
      const auto program = TROUPE_TRY(process::Executable::self());
      return wire::Image{program->path(), TROUPE_TRY(program->xxh3())};
    };
    options.random = random_;
    client_ = std::make_shared<detail::ActorClient>(std::move(options));
  }
  ~Driver() {
    client_->close();
    head_->close();
  }
  ActorHandle<Store> spawn(Bytes bytes, ActorOptions options = {.num_cpus = 0}) {
    return must(detail::spawn<Store>(client_, options, std::move(bytes)))
        .with({.timeout = kPatience});
  }
  void end(const ActorHandle<Store>& handle) { must(detail::kill_actor(client_, handle.id(), {})); }
  // Of those in the list of all actors.
  std::size_t count_waiting() {
    Promise<std::size_t> counted;
    auto future = counted.future();
    head_->list_actors(false, [&counted](Result<std::vector<wire::ActorInfo>> actors) {
      if (!actors.ok()) return (void)counted.set(actors.status());
      counted.set(static_cast<std::size_t>(std::count_if(
          actors->begin(), actors->end(),
          [](const wire::ActorInfo& actor) { return actor.state == wire::ActorState::kPending; })));
    });
    return must(future.get(kPatience));
  }

 private:
  const std::shared_ptr<SystemRandom> random_ = std::make_shared<SystemRandom>();
  net::LoopThread thread_;
  std::shared_ptr<scheduler::HeadClient> head_;
  std::shared_ptr<detail::ActorClient> client_;
};

void calls(const std::string& way, Driver& driver, const Options& options, Report& report) {
  const std::uint64_t bytes = options.mib << 20;
  const double gib = static_cast<double>(bytes) / (1u << 30);
  auto store = driver.spawn(Bytes(1));
  for (int i = 0; i < 100; ++i) must(store.call<&Store::kept>().get(kPatience));  // its ring, too
  const Bytes argument(bytes, std::byte{2});
  const double there = seconds_of([&] {
    must_be(must(store.call<&Store::take>(argument).get(kPatience)) == bytes, "an argument");
  });
  report.add(fmt::format("{}: an argument of {} MiB", way, options.mib), there, "s");
  report.add(way + ": its rate", gib / there, "GiB/s");
  const double back = seconds_of([&] {
    must_be(must(store.call<&Store::give>(bytes).get(kPatience)).size() == bytes, "a result");
  });
  report.add(fmt::format("{}: a result of {} MiB", way, options.mib), back, "s");
  driver.end(store);
  constexpr std::size_t kConstructor = 200u << 20;
  const double made = seconds_of([&] {
    auto large = driver.spawn(Bytes(kConstructor, std::byte{3}));
    must_be(must(large.call<&Store::kept>().get(kPatience)) == kConstructor, "an argument");
    driver.end(large);
  });
  report.add(way + ": 200 MiB for a constructor, to the first answer", made, "s");
}

void many(Driver& driver, const Options& options, Report& report) {
  constexpr std::size_t kEach = 2u << 20;
  std::vector<ActorHandle<Store>> stores;
  const double made = seconds_of([&] {
    for (int i = 0; i < options.actors; ++i) stores.push_back(driver.spawn(Bytes(kEach)));
    std::vector<Future<std::uint64_t>> kept;
    for (const auto& store : stores) kept.push_back(store.call<&Store::kept>());
    for (auto& one : kept) must_be(must(one.get(kPatience)) == kEach, "an argument");
  });
  report.add(fmt::format("2 MiB for each of {} constructors, to all answers", options.actors), made,
             "s");
  for (const auto& store : stores) driver.end(store);
}

// So many actors: one has the only slot that there is, the others wait for it.
class Waiting {
 public:
  Waiting(const std::string& way, Driver& driver, const Options& options, Report& report)
      : waiting_(static_cast<std::size_t>(options.listed) - 1),
        holder_(driver.spawn(Bytes(1), kWaiting)) {
    must(holder_.call<&Store::kept>().get(kPatience));
    const double made = seconds_of([&] {
      for (std::size_t i = 0; i < waiting_; ++i)
        stores_.push_back(driver.spawn(Bytes(1), kWaiting));
      const Deadline patience = Deadline::after(kPatience);
      while (driver.count_waiting() != waiting_) {
        must_be(!patience.passed(), "a list of all actors");
      }
    });
    report.add(fmt::format("{}: {} actors created, to a list with all of them", way, waiting_ + 1),
               made, "s");
  }
  void list(const std::string& way, Driver& driver, Report& report) const {
    const double took =
        seconds_of([&] { must_be(driver.count_waiting() == waiting_, "a list of all actors"); });
    report.add(fmt::format("{}: a list of {} actors", way, waiting_ + 1), took, "s");
  }

 private:
  static inline const ActorOptions kWaiting{.num_cpus = 0, .resources = {{kSlot, 1}}};
  const std::size_t waiting_;
  ActorHandle<Store> holder_;
  std::vector<ActorHandle<Store>> stores_;
};

}  // namespace

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Store>)) return *code;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc && std::atoi(argv[i + 1]) > 0;
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--mib" && has_value) {
      options.mib = std::strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--actors" && has_value) {
      options.actors = std::atoi(argv[++i]);
    } else if (argument == "--listed" && has_value) {
      options.listed = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: bench_large [--json] [--mib N (1024)] [--actors N (1000)] "
                   "[--listed N (100000)]\n");
      return 2;
    }
  }
  Report report(options.json);
  {
    auto cluster = must(Cluster::start_embedded({.resources = {{kSlot, 1}}}));
    Driver near(cluster, true), far(cluster, false);
    calls("same node", near, options, report);
    calls("TCP", far, options, report);
    many(near, options, report);
    const Waiting waiting("same node", near, options, report);
    waiting.list("same node", near, report);
    waiting.list("TCP", far, report);
  }
  Bytes secret(32);
  SystemRandom().fill(secret);
  auto cluster = must(
      Cluster::start_embedded({.resources = {{kSlot, 1}},
                               .token = net::Token(std::move(secret), net::Security::kTlsAlways)}));
  Driver far(cluster, false);
  calls("TLS", far, options, report);
  Waiting("TLS", far, options, report).list("TLS", far, report);
  return 0;
}
