#include "scheduler/embedded/embedded_cluster.h"

#include <cmath>
#include <future>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/process_stamp.h"
#include "runtime/net/token.h"
#include "scheduler/head/head_daemon.h"
#include "scheduler/node/node_daemon.h"
#include "scheduler/node/resources_detect.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kStartTimeout = std::chrono::seconds(10);
// Above every honest amount: memory of 2^49 bytes.
constexpr double kAmountMax = 5.6e14;

Result<std::int64_t> amount(const std::string& name, double units) {
  if (!std::isfinite(units) || units < 0 || units > kAmountMax) {
    return error(Code::kInvalidArgument, "{} {} is not an amount of a resource", units, name);
  }
  return std::llround(units * static_cast<double>(wire::kResourceUnit));
}

Result<wire::Resources> resources_of(const EmbeddedOptions& options, const NodeGpus& gpus) {
  PosixFileSystem files;
  auto resources = TROUPE_TRY(detect_resources(files, SystemMachine(), gpus));
  if (options.num_cpus != 0) resources["CPU"] = TROUPE_TRY(amount("CPU", options.num_cpus));
  for (const auto& [name, units] : options.resources) {
    resources[name] = TROUPE_TRY(amount(name, units));
  }
  return resources;
}

}  // namespace

struct EmbeddedCluster::State {
  explicit State(std::unique_ptr<net::LoopThread> t) : thread(std::move(t)) {}
  // Runs `work` on the loop's thread and waits for it.
  template <typename F>
  auto on_loop(F work) {
    std::packaged_task<decltype(work())()> task(std::move(work));
    auto done = task.get_future();
    thread->loop().post([&task] { task(); });
    return done.get();
  }
  Status start(const EmbeddedOptions& options);

  const ProcessStamp process;
  SystemRandom random;
  MemoryJournal journal;
  net::Token token;
  net::Address head_address;
  wire::NodeInfo node_info;
  std::promise<Status> joined;
  std::promise<void> ended;
  bool stopped = false;
  const std::unique_ptr<net::LoopThread> thread;
  std::unique_ptr<HeadDaemon> head;  // this and the next: loop thread
  std::unique_ptr<NodeDaemon> node;
};

Status EmbeddedCluster::State::start(const EmbeddedOptions& options) {
  HeadOptions head_options;
  head_options.token = token;
  head_options.host = options.host;
  head_options.port = options.port;
  // A node of this process dies with the head; those of others, who were given the token, must be
  // heard.
  head_options.config.heartbeats = options.host != EmbeddedOptions().host || !options.token.empty();
  const Logger log = options.log_sink ? Logger("head", options.log_level, options.log_sink)
                                      : Logger::to_stderr("head", options.log_level);
  head = TROUPE_TRY(HeadDaemon::start(thread->loop(), std::move(head_options), journal, random, log,
                                      [this](const std::string&) { ended.set_value(); }));
  head_address = head->address();
  NodeOptions node_options;
  node_options.name = "local";
  node_options.host = options.host;
  node_options.head = head_address;
  node_options.token = token;
  PosixFileSystem files;
  DetectedGpus gpus = detect_gpus(files, SystemEnvironment(), SystemMachine());
  for (const std::string& problem : gpus.problems) log.warning("{}", problem);
  node_options.resources = TROUPE_TRY(resources_of(options, gpus.gpus));
  node_options.gpus = std::move(gpus.gpus);
  node_options.nvml = std::move(gpus.nvml);
  node_options.labels = options.labels;
  node_options.log_dir = options.log_dir;
  node_options.on_output = whole_lines(options.on_output);
  node_options.output_limits = options.output_limits;
  node_options.object_memory_bytes = options.object_memory_bytes;
  node_options.object_spill_dir = options.object_spill_dir;
  node_options.log_sink = options.log_sink;
  node_options.log_level = options.log_level;
  if (options.ends_descendants) node_options.parent = Parent::kKeeperOfThisDaemon;
  node_options.programs_read_input = options.programs_read_input;
  node_options.join_timeout = kStartTimeout;
  auto answered = std::make_shared<bool>(false);
  node_options.on_registered = [this, answered](const std::string&) {
    if (!std::exchange(*answered, true)) joined.set_value(Status());
  };
  node_options.on_stopped = [this, answered](Status why) {
    if (!std::exchange(*answered, true)) joined.set_value(std::move(why));
  };
  node = TROUPE_TRY(NodeDaemon::start(thread->loop(), std::move(node_options)));
  node_info = node->info();
  return {};
}

EmbeddedCluster::EmbeddedCluster(std::unique_ptr<State> state) : state_(std::move(state)) {}
EmbeddedCluster::~EmbeddedCluster() { stop(); }

Result<std::unique_ptr<EmbeddedCluster>> EmbeddedCluster::start(const EmbeddedOptions& options) {
  auto state = std::make_unique<State>(TROUPE_TRY(net::LoopThread::start("troupe-cluster")));
  state->token = options.token.empty() ? net::make_token(state->random) : options.token;
  auto joined = state->joined.get_future();
  // Its destructor takes down what has been started.
  std::unique_ptr<EmbeddedCluster> cluster(new EmbeddedCluster(std::move(state)));
  State& inner = *cluster->state_;
  TROUPE_RETURN_IF_ERROR(inner.on_loop([&] { return inner.start(options); }));
  if (joined.wait_for(kStartTimeout) != std::future_status::ready) {
    return Status(Code::kDeadlineExceeded, "the embedded node did not join its head");
  }
  TROUPE_RETURN_IF_ERROR(joined.get());
  return cluster;
}

void EmbeddedCluster::wait_for_end(Duration timeout) {
  state_->ended.get_future().wait_for(timeout);
}

void EmbeddedCluster::stop() {
  if (!state_) return;
  if (state_->process.is_forked()) {  // it goes on in the parent
    keep_forked(state_.release());
    return;
  }
  if (std::exchange(state_->stopped, true)) return;
  TROUPE_CHECK(!state_->thread->loop().in_loop_thread());
  state_->on_loop([this] {
    state_->node.reset();
    state_->head.reset();
  });
}

void EmbeddedCluster::signal_programs(int signal) {
  if (state_->stopped) return;
  state_->on_loop([&] { state_->node->signal_programs(signal); });
}

const net::Address& EmbeddedCluster::head_address() const { return state_->head_address; }
const net::Token& EmbeddedCluster::token() const { return state_->token; }
NodeId EmbeddedCluster::node_id() const { return state_->node_info.node_id; }
const wire::NodeInfo& EmbeddedCluster::node() const { return state_->node_info; }
net::EventLoop& EmbeddedCluster::loop() { return state_->thread->loop(); }

}  // namespace troupe::scheduler
