// Troupe's part of `tools/bench compare-rpc`: calls from a driver to an actor's process, measured
// by the loops that measure its peers (tools/peers/rpc_measure.h, where the arguments are).

#include <dirent.h>

#include <cstdlib>
#include <deque>
#include <string>
#include <utility>

#include "actors/head_directory.h"
#include "scheduler/client/head_client.h"
#include "tools/peers/rpc_measure.h"
#include "troupe/actor.h"
#include "troupe/cluster.h"
#include "actors/client.h"

namespace {

using namespace troupe;
using namespace rpc_measure;
using namespace std::chrono_literals;

// All threads of this process.
void pin_process(int cpu) {
  DIR* tasks = cpu < 0 ? nullptr : ::opendir("/proc/self/task");
  if (tasks == nullptr) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  while (const dirent* entry = ::readdir(tasks)) {
    if (const int thread = std::atoi(entry->d_name); thread > 0) {
      (void)::sched_setaffinity(thread, sizeof set, &set);
    }
  }
  ::closedir(tasks);
}

class Calls {
 public:
  void pin(int cpu) { pin_process(cpu); }
  int add(int n) const { return n + 1; }
  std::uint64_t look(troupe::BytesView bytes) const {
    return rpc_measure::look(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  static constexpr auto methods = troupe::methods<&Calls::pin, &Calls::add, &Calls::look>;
};

void must(const Status& status) {
  if (!status.ok()) fail(status.to_string());
}
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

// What calls go by. kTcp: as from another machine.
enum class Way { kRing, kSocket, kTcp };

// A driver of the cluster, whose callers reach actors in one way only.
class Driver {
 public:
  Driver(Cluster& cluster, Way way) : cluster_(cluster), way_(way), thread_("bench-caller") {
    wire::ClientHello hello;
    hello.client_id = ClientId::make(*random_);
    hello.job_id = cluster.job_id();
    hello.name = "bench";
    hello.kind = "tool";
    head_ = must(scheduler::HeadClient::connect(thread_.loop(), cluster.head_address(),
                                                cluster.token(), hello, Deadline::after(10s)));
  }
  ~Driver() {
    for (const auto& client : clients_) client->close();
    head_->close();
  }
  // Of a caller that has never called the actor.
  ActorHandle<Calls> fresh(ActorId id) {
    auto environment = std::make_shared<detail::ChannelEnvironment>();
    environment->loop = &thread_.loop();
    environment->token = cluster_.token();
    if (way_ != Way::kTcp) environment->node_id = cluster_.node_id();
    if (way_ == Way::kSocket) environment->rings_max = 0;
    environment->directory = std::make_shared<detail::HeadDirectory>(head_);
    detail::ClientOptions options;
    options.environment = std::move(environment);
    options.client_id = ClientId::make(*random_);
    options.random = random_;
    clients_.push_back(std::make_shared<detail::ActorClient>(std::move(options)));
    return detail::handle_to<Calls>(clients_.back(), id);
  }
  // Until calls go the way they are to go.
  ActorHandle<Calls> warm(ActorId id) {
    const auto handle = fresh(id);
    const auto channel = clients_.back()->channel(id, detail::kActorInterface<Calls>);
    const Deadline patience = Deadline::after(60s);
    for (int i = 0; i < 100 || (way_ == Way::kRing && !channel->has_ring()); ++i) {
      must(handle.call<&Calls::add>(i).get(10s).status());
      if (patience.passed()) fail("no shared memory was set up for the calls");
    }
    return handle;
  }

 private:
  Cluster& cluster_;
  const Way way_;
  const std::shared_ptr<SystemRandom> random_ = std::make_shared<SystemRandom>();
  net::LoopThread thread_;
  std::shared_ptr<scheduler::HeadClient> head_;
  std::vector<std::shared_ptr<detail::ActorClient>> clients_;
};

void add(const ActorHandle<Calls>& handle) {
  if (must(handle.call<&Calls::add>(1).get(10s)) != 2) fail("another answer");
}

double async_rate(const Plan& plan, const ActorHandle<Calls>& handle) {
  std::deque<Future<int>> open;
  for (Rate rate(plan);;) {
    while (open.size() < plan.window) open.push_back(handle.call<&Calls::add>(1));
    must(open.front().get(10s).status());
    open.pop_front();
    if (rate.go_on()) continue;
    for (auto& future : open) must(future.get(10s).status());
    return rate.rate();
  }
}

void measure(const Plan& plan, const std::string& way, const ActorHandle<Calls>& handle) {
  sync_calls(plan, way + "sync", [&] { add(handle); });
  row(way + "async", async_rate(plan, handle), "1/s");
  for (const auto& [name, bytes] : {std::pair{"1 MiB", kMiB}, std::pair{"64 MiB", 64 * kMiB}}) {
    const std::vector<std::byte> argument(bytes, std::byte{1});
    large_calls(plan, way + name, bytes, [&] {
      check_look(must(handle.call<&Calls::look>(argument).get(10s)), argument.size());
    });
  }
}

void call(const Plan& plan) {
  EmbeddedOptions options;
  if (plan.way == "tls") {
    std::vector<std::byte> secret(32);
    SystemRandom().fill(secret);
    options.token = net::Token(std::move(secret), net::Security::kTlsAlways);
  }
  auto cluster = must(Cluster::start_embedded(options));
  auto actor = must(cluster.spawn<Calls>({.num_cpus = 0}));
  must(actor.call<&Calls::pin>(plan.callee_cpu).get(20s));
  if (plan.way == "unix") {
    Driver ring(cluster, Way::kRing), socket(cluster, Way::kSocket);
    pin_process(plan.caller_cpu);
    // The driver of these has no other caller's ring beside it, which the actor would look at.
    first_calls(plan, "first",
                [&] { return [handle = socket.fresh(actor.id())] { add(handle); }; });
    measure(plan, "", socket.warm(actor.id()));
    measure(plan, "ring ", ring.warm(actor.id()));
  } else {
    Driver tcp(cluster, Way::kTcp);
    pin_process(plan.caller_cpu);
    first_calls(plan, "first", [&] { return [handle = tcp.fresh(actor.id())] { add(handle); }; });
    measure(plan, "", tcp.warm(actor.id()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Calls>)) return *code;
  Plan plan;
  if (!plan_of(argc, argv, plan)) return 2;
  call(plan);
  return 0;
}
