#include "tools/commands/loopback_cluster.h"

#include <signal.h>

#include <future>
#include <thread>

#include "runtime/base/json.h"
#include "runtime/base/suggest.h"
#include "tools/commands/free_port.h"
#include "tools/commands/marked_processes.h"

namespace troupe::tools {
namespace {

constexpr auto kLookForOutput = std::chrono::milliseconds(10);
constexpr auto kLeaveTimeout = std::chrono::seconds(5);
constexpr std::uint64_t kLogBytesMax = 64u << 20;

// Waits until the program's output has a whole line with `text`; that line.
Result<std::string> line_with(FileSystem& files, ChildProgram& program, const std::string& path,
                              std::string_view text, Deadline deadline) {
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

}  // namespace

Status LoopbackCluster::start_head(FileSystem& files, const LoopbackOptions& options,
                                   Deadline deadline) {
  const auto port = TROUPE_TRY(free_port());
  address_ = fmt::format("127.0.0.1:{}", port);
  ChildOptions child{
      .arguments = {"head", "--watch", "--address", "127.0.0.1", "--port", std::to_string(port)},
      .environment = own_environment(home_),
      .output_path = join_path(options.folder, "head.log")};
  child.environment[kChaosMark] = options.mark;
  head_ = TROUPE_TRY(ChildProgram::start(child));
  auto ready = line_with(files, *head_, child.output_path, "The head listens on", deadline);
  return ready.status().prefixed("the head");
}

Status LoopbackCluster::start_node(FileSystem& files, const LoopbackOptions& options, int number,
                                   Deadline deadline) {
  const auto port = TROUPE_TRY(free_port());
  std::promise<Result<std::uint16_t>> promise;
  net::EventLoop& loop = proxies_thread_.loop();
  loop.post([&] {
    auto proxy = net::make_fault_proxy(
        loop, {.target = {.host = "127.0.0.1", .port = port, .local_name = {}},
               .seed = static_cast<std::uint64_t>(number)});
    if (!proxy.ok()) return promise.set_value(proxy.status());
    const auto at = (*proxy)->address().port;
    proxies_.push_back(std::move(*proxy));
    promise.set_value(at);
  });
  const auto proxy_port = TROUPE_TRY(promise.get_future().get());
  ChildOptions child{
      .arguments = {"worker", "--watch", "--address", address_, "--port", std::to_string(port),
                    "--advertise", fmt::format("127.0.0.1:{}", proxy_port), "--num-cpus",
                    fmt::format("{}", options.cpus_per_node)},
      .environment = own_environment(home_),
      .output_path = join_path(options.folder, fmt::format("node-{}.log", number))};
  child.environment[kChaosMark] = options.mark;
  child.environment[kChaosNodeMark] = std::to_string(number);
  nodes_.push_back(TROUPE_TRY(ChildProgram::start(child)));
  auto joined = line_with(files, *nodes_.back(), child.output_path, "joined the cluster", deadline);
  return joined.status().prefixed(fmt::format("worker node {}", number));
}

Result<std::unique_ptr<LoopbackCluster>> LoopbackCluster::start(FileSystem& files,
                                                                const LoopbackOptions& options,
                                                                Deadline deadline) {
  auto cluster = std::unique_ptr<LoopbackCluster>(new LoopbackCluster());
  cluster->home_ = join_path(options.folder, "home");
  TROUPE_RETURN_IF_ERROR(files.create_directories(cluster->home_, 0700));
  TROUPE_RETURN_IF_ERROR(cluster->start_head(files, options, deadline));
  for (int number = 0; number < options.nodes; ++number) {
    TROUPE_RETURN_IF_ERROR(cluster->start_node(files, options, number, deadline));
  }
  return cluster;
}

LoopbackCluster::~LoopbackCluster() {
  // Nodes leave in order where they can; a stopped or stuck one is killed with its group.
  const Deadline deadline = Deadline::after(kLeaveTimeout);
  for (const auto& node : nodes_) node->signal(SIGTERM);
  for (const auto& node : nodes_) static_cast<void>(node->wait(deadline));
  if (head_) {
    head_->signal(SIGTERM);
    static_cast<void>(head_->wait(Deadline::after(kLeaveTimeout)));
  }
  nodes_.clear();
  head_.reset();
  std::promise<void> closed;
  proxies_thread_.loop().post([&] {
    proxies_.clear();
    closed.set_value();
  });
  closed.get_future().wait();
}

void LoopbackCluster::on_proxies(int node, const std::function<void(net::FaultProxy&)>& work) {
  std::promise<void> done;
  proxies_thread_.loop().post([&] {
    for (std::size_t i = 0; i < proxies_.size(); ++i) {
      if (node < 0 || static_cast<std::size_t>(node) == i) work(*proxies_[i]);
    }
    done.set_value();
  });
  done.get_future().wait();
}

void LoopbackCluster::set_link(int node, const net::LinkConditions& conditions) {
  on_proxies(node, [&](net::FaultProxy& proxy) { proxy.set_both(conditions); });
}

void LoopbackCluster::cut(int node) {
  on_proxies(node, [](net::FaultProxy& proxy) { proxy.cut(); });
}

}  // namespace troupe::tools
