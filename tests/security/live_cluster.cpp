#include "tests/security/live_cluster.h"

#include <future>

#include "actors/head_directory.h"
#include "tests/support/on_loop.h"
#include "tests/support/test_data.h"
#include "troupe/spawn.h"

namespace troupe::tests {
namespace {

std::string cluster_host_program() { return bin_dir() + "/test_security_host"; }

}  // namespace

LiveCluster::LiveCluster(const net::Token& token) : token_(token) {
  start_head();
  start_node();
  connect();
}

LiveCluster::~LiveCluster() {
  if (client_) client_->close();
  if (head_client_) head_client_->close();
  client_.reset();
  head_client_.reset();
  on_loop(node_thread_.loop(), [this] {
    node_.reset();
    return 0;
  });
  on_loop(head_thread_.loop(), [this] {
    head_.reset();
    return 0;
  });
}

void LiveCluster::start_head() {
  on_loop(head_thread_.loop(), [this] {
    scheduler::HeadOptions options;
    options.token = token_;
    // However slow this machine is today, nobody counts as dead.
    options.config.heartbeats = false;
    head_ = scheduler::HeadDaemon::start(head_thread_.loop(), options, journal_, random_,
                                         Logger::discard(), [](std::string) {})
                .value();
    head_address_ = head_->address();
    return 0;
  });
}

void LiveCluster::start_node() {
  std::promise<void> joined;
  on_loop(node_thread_.loop(), [&] {
    scheduler::NodeOptions options;
    options.node_id = node_id_;
    options.name = "node";
    options.head = head_address_;
    options.token = token_;
    options.resources = {{"CPU", 8 * wire::kResourceUnit}};
    options.parent = scheduler::Parent::kKeeper;
    options.keeper_program = cluster_host_program();
    options.log_sink = [](LogLevel, std::string_view) {};
    options.on_output = [](const wire::OutputLine&) {};
    options.on_registered = [&joined](const std::string&) { joined.set_value(); };
    options.on_stopped = [](const Status&) {};
    node_ = scheduler::NodeDaemon::start(node_thread_.loop(), std::move(options)).value();
    return 0;
  });
  REQUIRE(joined.get_future().wait_for(kClusterPatience) == std::future_status::ready);
}

void LiveCluster::connect() {
  const wire::ClientHello hello{
      .client_id = client_id_, .job_id = job_id_, .name = "driver", .kind = "driver"};
  auto connected = scheduler::HeadClient::connect(clients_.loop(), head_address_, token_, hello,
                                                  Deadline::after(kClusterPatience));
  REQUIRE_MESSAGE(connected.ok(), connected.status().to_string());
  head_client_ = std::move(*connected);
  auto environment = std::make_shared<detail::ChannelEnvironment>();
  environment->loop = &clients_.loop();
  environment->token = token_;
  environment->directory = std::make_shared<detail::HeadDirectory>(head_client_);
  detail::ClientOptions options;
  options.environment = std::move(environment);
  options.job_id = job_id_;
  options.client_id = client_id_;
  options.image = []() -> Result<wire::Image> { return wire::Image{cluster_host_program(), 0}; };
  options.random = std::make_shared<SystemRandom>();
  client_ = std::make_shared<detail::ActorClient>(std::move(options));
}

net::Address LiveCluster::node() const {
  const auto& endpoint = node_->info().endpoint;
  return {endpoint.host, endpoint.port, {}};
}

net::Address LiveCluster::node_local() const { return {{}, 0, node_->info().endpoint.local_name}; }

ActorHandle<Purse> LiveCluster::spawn(const std::string& name) {
  ActorOptions options;
  options.name = name;
  options.max_restarts = 2;
  auto purse = detail::spawn<Purse>(client_, options);
  REQUIRE_MESSAGE(purse.ok(), purse.status().to_string());
  REQUIRE(purse->call<&Purse::count>().get(kClusterPatience).ok());
  return std::move(*purse);
}

std::int64_t LiveCluster::pid_of(ActorId actor_id) {
  return on_loop(head_thread_.loop(),
                 [&] { return head_->state().actors().at(actor_id).info.pid; });
}

ClusterState LiveCluster::state(const ActorHandle<Purse>& purse) {
  ClusterState state;
  const auto coins = purse.call<&Purse::count>().get(kClusterPatience);
  REQUIRE_MESSAGE(coins.ok(), coins.status().to_string());
  state.coins = *coins;
  on_loop(node_thread_.loop(), [&] {
    state.node_processes = node_->state().process_count();
    return 0;
  });
  state.head = on_loop(head_thread_.loop(), [&] { return head_->state().snapshot(); });
  return state;
}

}  // namespace troupe::tests
