#include "troupe/chaos_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <thread>
#include <utility>

#include "actors/chaos_cluster/marked_processes.h"
#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "runtime/base/suggest.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/fault_proxy.h"
#include "runtime/net/free_port.h"
#include "runtime/net/token.h"
#include "runtime/process/child_program.h"
#include "troupe/detail/mutex.h"

namespace troupe {
namespace {

constexpr auto kLookForOutput = std::chrono::milliseconds(10);
constexpr auto kLookForEnd = std::chrono::milliseconds(2);
constexpr auto kLeaveTimeout = std::chrono::seconds(5);
constexpr auto kKillTimeout = std::chrono::seconds(10);
constexpr std::uint64_t kLogBytesMax = 64u << 20;
constexpr const char* kHost = "127.0.0.1";
// The label by which actors are placed on a node.
constexpr const char* kNodeLabel = "chaos-node";

// Waits until the program's output has a whole line with `text`; that line.
Result<std::string> line_with(FileSystem& files, process::ChildProgram& program,
                              const std::string& path, std::string_view text, Deadline deadline) {
  for (;;) {
    const auto ended = program.wait(Deadline::after(kLookForOutput));
    const auto output = files.read(path, kLogBytesMax);
    if (output.ok()) {
      const auto at = output->find(text);
      const auto end = at == std::string::npos ? at : output->find('\n', at);
      if (end != std::string::npos) {
        const auto begin = output->rfind('\n', at);
        return output->substr(begin == std::string::npos ? 0 : begin + 1,
                              end - (begin == std::string::npos ? 0 : begin + 1));
      }
    }
    if (ended.ok()) {
      return error(Code::kFailedPrecondition, "it ended with exit code {}: {}", *ended,
                   output.ok() ? std::string(trim(*output)) : "");
    }
    if (deadline.passed()) {
      return error(Code::kDeadlineExceeded, "it did not say '{}': {}", text,
                   output.ok() ? std::string(trim(*output)) : "");
    }
  }
}

// The command that head and nodes run.
Result<std::string> find_program(const Environment& environment) {
  if (auto named = environment.get("TROUPE_PROGRAM"); named && !named->empty()) return *named;
  std::vector<std::string> places;
  std::error_code unreadable;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  if (!unreadable) places.push_back(self.parent_path().string());
  for (auto& folder : split_words(environment.get("PATH").value_or(""), ':'))
    places.push_back(std::move(folder));
  for (const std::string& place : places) {
    std::string path = join_path(place, "troupe");
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return error(Code::kNotFound,
               "the command 'troupe', which head and nodes run, is neither beside this program nor "
               "in PATH: name it by TROUPE_PROGRAM or ChaosClusterOptions::program");
}

// Which node an actor's process is on.
class Place {
 public:
  void changed(const ActorInfo& info);
  Result<NodeId> wait(Deadline deadline);

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<NodeId> node_ TROUPE_GUARDED_BY(mutex_);
  Status dead_ TROUPE_GUARDED_BY(mutex_);  // for good: why
};

}  // namespace

struct ChaosCluster::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();
  Result<Cluster> connect(ConnectOptions options) const;
  bool is_up(int node) const;
  Status kill_node(int node);
  Status leave(int node, Duration patience);
  Status join(int node);
  Status wait_for_node(int node, Deadline deadline);
  void cut(int node);
  void set_link(int node, const LinkConditions& conditions);

  int node_count() const { return static_cast<int>(nodes_.size()); }

  struct Node {
    std::uint16_t port = 0, proxy_port = 0;
    std::unique_ptr<process::ChildProgram> worker;  // null: it is down
    int starts = 0;
    std::string log_path;  // of its last start
  };
  static Result<int> number_of(Cluster& driver, const NodeId& id);
  Status start_head(Deadline deadline);
  // On the proxies' loop; returns when it is done.
  void in_loop(const std::function<void()>& work);
  Status open_proxy(int node);
  void close_proxy(int node);
  Status start_worker(int node);
  Result<Node*> node_that_is(bool up, int node);
  Status signal_all(int node, int signal);
  void on_proxies(int node, const std::function<void(net::FaultProxy&)>& work);

  PosixFileSystem files_;
  std::string program_, folder_, home_, mark_;
  std::uint16_t port_ = 0;  // of the head
  std::string address_;     // of it, HOST:PORT
  bool own_folder_ = false;
  double cpus_per_node_ = 1;
  net::LoopThread proxies_thread_{"proxies"};
  std::vector<std::unique_ptr<net::FaultProxy>> proxies_;  // loop thread
  std::unique_ptr<process::ChildProgram> head_;
  std::vector<Node> nodes_;
};

std::map<std::string, std::string> on_node(int node) {
  return {{kNodeLabel, std::to_string(node)}};
}

Result<std::unique_ptr<ChaosCluster>> ChaosCluster::start(const ChaosClusterOptions& options,
                                                          Deadline deadline) {
  if (options.nodes < 1)
    return error(Code::kInvalidArgument, "ChaosClusterOptions::nodes is {}", options.nodes);
  const SystemEnvironment own;
  const Environment& environment = options.environment ? *options.environment : own;
  auto cluster = std::make_unique<State>();
  cluster->program_ =
      options.program.empty() ? TROUPE_TRY(find_program(environment)) : options.program;
  cluster->cpus_per_node_ = options.cpus_per_node;
  cluster->folder_ = options.folder;
  if (options.folder.empty()) {
    cluster->folder_ = TROUPE_TRY(
        process::make_folder(environment.get("TMPDIR").value_or("/tmp"), "troupe-chaos-"));
    cluster->own_folder_ = true;
  }
  cluster->mark_ = cluster->folder_;
  cluster->home_ = join_path(cluster->folder_, "home");
  TROUPE_RETURN_IF_ERROR(cluster->files_.create_directories(cluster->home_, 0700));
  TROUPE_RETURN_IF_ERROR(cluster->start_head(deadline));
  for (int node = 0; node < options.nodes; ++node) {
    cluster->nodes_.emplace_back().port = TROUPE_TRY(net::free_port());
    TROUPE_RETURN_IF_ERROR(cluster->start_worker(node));
  }
  for (int node = 0; node < options.nodes; ++node)
    TROUPE_RETURN_IF_ERROR(cluster->wait_for_node(node, deadline));
  return std::unique_ptr<ChaosCluster>(new ChaosCluster(std::move(cluster)));
}

Status ChaosCluster::State::start_head(Deadline deadline) {
  port_ = TROUPE_TRY(net::free_port());
  address_ = fmt::format("{}:{}", kHost, port_);
  process::ChildOptions child{
      .program = program_,
      .arguments = {"head", "--watch", "--address", kHost, "--port", std::to_string(port_)},
      .environment = process::own_environment(home_),
      .output_path = join_path(folder_, "head.log")};
  child.environment[chaos::kChaosMark] = mark_;
  head_ = TROUPE_TRY(process::ChildProgram::start(child));
  auto ready = line_with(files_, *head_, child.output_path, "The head listens on", deadline);
  return ready.status().prefixed("the head");
}

void ChaosCluster::State::in_loop(const std::function<void()>& work) {
  std::promise<void> done;
  proxies_thread_.loop().post([&] {
    work();
    done.set_value();
  });
  done.get_future().wait();
}

// Where a node is down nobody listens.
Status ChaosCluster::State::open_proxy(int number) {
  Node& node = nodes_[static_cast<std::size_t>(number)];
  Status opened;
  in_loop([&] {
    proxies_.resize(nodes_.size());
    auto proxy = net::make_fault_proxy(
        proxies_thread_.loop(), {.port = node.proxy_port,
                                 .target = {.host = kHost, .port = node.port, .local_name = {}},
                                 .seed = static_cast<std::uint64_t>(number)});
    opened = proxy.status();
    if (!proxy.ok()) return;
    node.proxy_port = (*proxy)->address().port;
    proxies_[static_cast<std::size_t>(number)] = std::move(*proxy);
  });
  return opened;
}

void ChaosCluster::State::close_proxy(int number) {
  in_loop([&] { proxies_[static_cast<std::size_t>(number)].reset(); });
}

Status ChaosCluster::State::start_worker(int number) {
  TROUPE_RETURN_IF_ERROR(open_proxy(number));
  Node& node = nodes_[static_cast<std::size_t>(number)];
  ++node.starts;
  node.log_path =
      join_path(folder_, node.starts == 1 ? fmt::format("node-{}.log", number)
                                          : fmt::format("node-{}-{}.log", number, node.starts));
  process::ChildOptions child{
      .program = program_,
      .arguments = {"worker", "--watch", "--address", address_, "--port", std::to_string(node.port),
                    "--advertise", fmt::format("{}:{}", kHost, node.proxy_port), "--num-cpus",
                    fmt::format("{}", cpus_per_node_), "--labels",
                    fmt::format("{}={}", kNodeLabel, number)},
      .environment = process::own_environment(home_),
      .output_path = node.log_path};
  child.environment[chaos::kChaosMark] = mark_;
  child.environment[chaos::kChaosNodeMark] = std::to_string(number);
  node.worker = TROUPE_TRY(process::ChildProgram::start(child));
  return {};
}

ChaosCluster::State::~State() {
  // Nodes leave in order where they can; a stopped or stuck one is killed with its group.
  const Deadline deadline = Deadline::after(kLeaveTimeout);
  for (const Node& node : nodes_) {
    if (node.worker) node.worker->signal(SIGTERM);
  }
  for (const Node& node : nodes_) {
    if (node.worker) static_cast<void>(node.worker->wait(deadline));
  }
  if (head_) {
    head_->signal(SIGTERM);
    static_cast<void>(head_->wait(Deadline::after(kLeaveTimeout)));
  }
  nodes_.clear();
  head_.reset();
  in_loop([&] { proxies_.clear(); });
  for (const auto& left : chaos::marked_processes(mark_)) ::kill(left.pid, SIGKILL);
  if (own_folder_) static_cast<void>(files_.remove_tree(folder_));
}

Result<Cluster> ChaosCluster::State::connect(ConnectOptions options) const {
  options.host = kHost;
  options.port = port_;
  PosixFileSystem files;
  options.token = TROUPE_TRY(net::read_token_file(files, join_path(home_, ".troupe/token")));
  return Cluster::connect(options);
}

// --- nodes

bool ChaosCluster::State::is_up(int node) const {
  return node >= 0 && node < node_count() && nodes_[static_cast<std::size_t>(node)].worker;
}

Result<ChaosCluster::State::Node*> ChaosCluster::State::node_that_is(bool up, int node) {
  if (node < 0 || node >= node_count())
    return error(Code::kInvalidArgument, "there is no node {}: they are 0 to {}", node,
                 node_count() - 1);
  if (is_up(node) != up)
    return error(Code::kFailedPrecondition, "node {} is {} already", node, up ? "down" : "up");
  return &nodes_[static_cast<std::size_t>(node)];
}

// The watcher stands still meanwhile, so that it starts none again; and it ends last, for its end
// would tell the daemon to leave in order.
Status ChaosCluster::State::signal_all(int number, int signal) {
  Node* node = TROUPE_TRY(node_that_is(true, number));
  node->worker->signal(SIGSTOP);
  for (const auto& process : chaos::marked_processes(mark_)) {
    if (process.node == number && process.pid != node->worker->pid()) ::kill(process.pid, signal);
  }
  if (signal != SIGSTOP) node->worker->signal(signal);
  return {};
}

Status ChaosCluster::State::kill_node(int number) {
  TROUPE_RETURN_IF_ERROR(signal_all(number, SIGKILL));
  close_proxy(number);
  nodes_[static_cast<std::size_t>(number)].worker.reset();
  // Also what was on its way to be started when the others were looked for.
  for (const Deadline deadline = Deadline::after(kKillTimeout);;) {
    auto left = chaos::marked_processes(mark_);
    std::erase_if(left, [&](const auto& p) { return p.node != number || p.state == 'Z'; });
    if (left.empty()) return {};
    if (deadline.passed())
      return error(Code::kDeadlineExceeded, "node {}: process {} does not end", number,
                   left.front().pid);
    for (const auto& process : left) ::kill(process.pid, SIGKILL);
    std::this_thread::sleep_for(kLookForEnd);
  }
}

Status ChaosCluster::State::leave(int number, Duration patience) {
  Node* node = TROUPE_TRY(node_that_is(true, number));
  node->worker->signal(SIGTERM);
  if (const auto ended = node->worker->wait(Deadline::after(patience)); !ended.ok())
    return ended.status().prefixed(
        fmt::format("node {} did not leave (kill_node() takes it away, its output is {})", number,
                    node->log_path));
  node->worker.reset();
  close_proxy(number);
  return {};
}

Status ChaosCluster::State::join(int number) {
  TROUPE_RETURN_IF_ERROR(node_that_is(false, number).status());
  return start_worker(number);
}

Status ChaosCluster::State::wait_for_node(int number, Deadline deadline) {
  Node* node = TROUPE_TRY(node_that_is(true, number));
  return line_with(files_, *node->worker, node->log_path, "joined the cluster", deadline)
      .status()
      .prefixed(fmt::format("worker node {}", number));
}

void Place::changed(const ActorInfo& info) {
  MutexLock lock(mutex_);
  node_.reset();
  if (info.state == ActorState::kAlive) node_ = info.node_id;
  if (info.state == ActorState::kDead) dead_ = info.death;
  changed_.notify_all();
}

Result<NodeId> Place::wait(Deadline deadline) {
  MutexLock lock(mutex_);
  const auto known = [this]() TROUPE_NO_ANALYSIS { return node_ || !dead_.ok(); };
  static_cast<void>(changed_.wait_until(mutex_, deadline, known));
  if (node_) return *node_;
  if (!dead_.ok()) return dead_;
  return error(Code::kDeadlineExceeded, "the actor has no process");
}

Result<int> ChaosCluster::State::number_of(Cluster& driver, const NodeId& id) {
  for (const auto& node : TROUPE_TRY(driver.nodes())) {
    const auto label = node.labels.find(kNodeLabel);
    if (node.node_id == id && label != node.labels.end()) return std::stoi(label->second);
  }
  return error(Code::kNotFound, "node {} is none of this cluster's", id.brief());
}

// --- connections

void ChaosCluster::State::on_proxies(int node, const std::function<void(net::FaultProxy&)>& work) {
  in_loop([&] {
    for (std::size_t i = 0; i < proxies_.size(); ++i) {
      if (proxies_[i] && (node < 0 || static_cast<std::size_t>(node) == i)) work(*proxies_[i]);
    }
  });
}

void ChaosCluster::State::set_link(int node, const LinkConditions& conditions) {
  on_proxies(node, [&](net::FaultProxy& proxy) { proxy.set_both(conditions); });
}

void ChaosCluster::State::cut(int node) {
  on_proxies(node, [](net::FaultProxy& proxy) { proxy.cut(); });
}

// --- what users see

ChaosCluster::ChaosCluster(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChaosCluster::~ChaosCluster() = default;

Result<Cluster> ChaosCluster::connect(ConnectOptions options) const {
  return state_->connect(std::move(options));
}
const std::string& ChaosCluster::address() const { return state_->address_; }
const std::string& ChaosCluster::home() const { return state_->home_; }
const std::string& ChaosCluster::mark() const { return state_->mark_; }
int ChaosCluster::node_count() const { return state_->node_count(); }
bool ChaosCluster::is_up(int node) const { return state_->is_up(node); }
Status ChaosCluster::kill_node(int node) { return state_->kill_node(node); }
Status ChaosCluster::stop_node(int node) { return state_->signal_all(node, SIGSTOP); }
Status ChaosCluster::continue_node(int node) { return state_->signal_all(node, SIGCONT); }
Status ChaosCluster::leave(int node, Duration patience) { return state_->leave(node, patience); }
Status ChaosCluster::join(int node) { return state_->join(node); }
Status ChaosCluster::wait_for_node(int node, Deadline deadline) {
  return state_->wait_for_node(node, deadline);
}
void ChaosCluster::cut(int node) { state_->cut(node); }
void ChaosCluster::set_link(int node, const LinkConditions& conditions) {
  state_->set_link(node, conditions);
}

Result<int> ChaosCluster::node_of_actor(
    Cluster& driver, const std::function<ActorWatch(detail::OnActorChange)>& watch,
    Deadline deadline) const {
  const auto place = std::make_shared<Place>();
  const ActorWatch watching = watch([place](const ActorInfo& info) { place->changed(info); });
  return State::number_of(driver, TROUPE_TRY(place->wait(deadline)));
}

}  // namespace troupe
