#include "scheduler/node/embedded.h"

#include <unistd.h>

#include <cmath>
#include <future>

#include "runtime/base/environment.h"
#include "scheduler/head/head_daemon.h"
#include "scheduler/node/resources_detect.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kStartTimeout = std::chrono::seconds(20);
constexpr Duration kStopTimeout = std::chrono::seconds(20);

std::int64_t fixed(double amount) {
  return static_cast<std::int64_t>(std::llround(amount * static_cast<double>(wire::kResourceUnit)));
}

}  // namespace

struct EmbeddedCluster::State {
  PosixFileSystem files;
  SystemEnvironment environment;
  SystemRandom random;
  MemoryJournal journal;
  net::LoopThread thread{"troupe-cluster"};
  net::Address head_address;
  net::Token token;
  NodeId node_id;
  // Loop thread.
  std::unique_ptr<HeadDaemon> head;
  std::unique_ptr<NodeDaemon> node;
  std::promise<Status> registered;
  bool answered = false;

  Status start(const EmbeddedOptions& options);
  void answer(Status status) {
    if (!std::exchange(answered, true)) registered.set_value(std::move(status));
  }
};

Status EmbeddedCluster::State::start(const EmbeddedOptions& options) {
  const Logger log = Logger::to_stderr("cluster", options.log_level);
  net::EventLoop& loop = thread.loop();
  HeadOptions head_options{.host = options.host, .port = options.port, .token = token};
  // The node shares this process: its death is the head's. Nodes of other machines beat.
  head_options.config.heartbeats = options.host != "127.0.0.1";
  head = TROUPE_TRY(
      HeadDaemon::start(loop, std::move(head_options), journal, random, log.named("head"), {}));
  head_address = head->address();
  NodeOptions node_options;
  node_options.node_id = node_id;
  node_options.name = "embedded";
  node_options.host = options.host;
  node_options.head = head_address;
  node_options.token = token;
  node_options.resources = TROUPE_TRY(detect_resources(files, environment));
  if (options.num_cpus > 0) node_options.resources[std::string(kCpu)] = fixed(options.num_cpus);
  for (const auto& [name, amount] : options.resources) {
    node_options.resources[name] = fixed(amount);
  }
  node_options.log_dir = options.log_dir;
  node_options.on_output = options.on_output;
  node = TROUPE_TRY(NodeDaemon::start(
      loop, std::move(node_options), files, random, log.named("node"),
      {.on_registered = [this](const std::string&) { answer({}); },
       .on_stopped = [this](Status why) { answer(std::move(why)); }}));
  return {};
}

EmbeddedCluster::EmbeddedCluster(std::unique_ptr<State> state) : state_(std::move(state)) {}
EmbeddedCluster::~EmbeddedCluster() { stop(); }

Result<std::unique_ptr<EmbeddedCluster>> EmbeddedCluster::start(const EmbeddedOptions& options) {
  auto state = std::make_unique<State>();
  state->token = options.token;
  if (state->token.empty()) {
    state->token.resize(32);
    state->random.fill(state->token);
  }
  state->node_id = NodeId::make(state->random);
  auto registered = state->registered.get_future();
  State* raw = state.get();
  // From here on the destructor takes head and node down on their loop.
  std::unique_ptr<EmbeddedCluster> cluster(new EmbeddedCluster(std::move(state)));
  raw->thread.loop().post([raw, options] {
    if (Status started = raw->start(options); !started.ok()) raw->answer(std::move(started));
  });
  if (registered.wait_for(kStartTimeout) != std::future_status::ready) {
    return error(Code::kDeadlineExceeded, "the embedded cluster did not come up in time");
  }
  TROUPE_RETURN_IF_ERROR(registered.get());
  return cluster;
}

void EmbeddedCluster::stop() {
  auto done = std::make_shared<std::promise<void>>();
  auto stopped = done->get_future();
  state_->thread.loop().post([state = state_.get(), done] {
    state->node.reset();
    state->head.reset();
    done->set_value();
  });
  stopped.wait_for(kStopTimeout);
}

const net::Address& EmbeddedCluster::head_address() const { return state_->head_address; }
const net::Token& EmbeddedCluster::token() const { return state_->token; }
const NodeId& EmbeddedCluster::node_id() const { return state_->node_id; }

}  // namespace troupe::scheduler
