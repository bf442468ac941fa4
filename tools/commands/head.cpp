#include "tools/commands/head.h"

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "runtime/base/json.h"
#include "runtime/net/interfaces.h"
#include "runtime/process/descriptor_limit.h"
#include "scheduler/client/cluster_record.h"
#include "scheduler/client/head_client.h"
#include "scheduler/head/head_daemon.h"
#include "scheduler/node/node_daemon.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/head_place.h"
#include "tools/commands/node_flags.h"
#include "tools/commands/repeated_signals.h"
#include "tools/commands/watch.h"
#include "troupe/log.h"

namespace troupe::tools {
namespace {

// How long the nodes may take to end when Ctrl-C stops the cluster; the head itself waits less.
constexpr Duration kStopTimeout = std::chrono::seconds(20);

struct HeadFlags {
  std::string interface;
  std::string address;
  std::optional<std::uint16_t> port;
  std::optional<std::string> state_dir;
  TokenOptions token;
  bool with_worker = false;
  NodeFlags node;
  std::string log_level = "info";
  bool json = false;
  bool watch = false;
  std::string metrics_address = scheduler::HttpServerOptions().host;
  std::optional<std::uint16_t> metrics_port;
  bool no_metrics = false;
};

// A head while it runs. Everything but the stopping thread lives on the loop's thread, which is
// that of run().
class HeadProcess {
 public:
  HeadProcess(CommandContext& context, const HeadFlags& flags)
      : context_(context),
        flags_(flags),
        log_(Logger::to_stderr("head", log_level_from_name(flags.log_level))) {}
  ~HeadProcess() {
    if (stopping_.joinable()) stopping_.join();
  }

  Status run();

 private:
  Status start(const net::AddressChoice& choice);
  Status start_worker();
  void announce(const net::AddressChoice& choice, const std::string& authority);
  void interrupted(int signal);
  void stop_cluster(const std::string& reason);

  CommandContext& context_;
  const HeadFlags& flags_;
  Logger log_;
  TokenSource token_;
  std::unique_ptr<net::RunnableLoop> loop_;
  std::optional<HeadPlace> place_;
  std::unique_ptr<scheduler::FileJournal> journal_;
  std::unique_ptr<scheduler::HeadDaemon> daemon_;
  std::unique_ptr<scheduler::NodeDaemon> node_;
  scheduler::ClusterRecord record_;
  bool stopped_ = false;  // the cluster has ended, as opposed to this head alone
  RepeatedSignals signals_;
  bool interrupted_ = false;
  std::thread stopping_;
};

// A head without a port begins a new cluster.
void warn_of_killed_heads(CommandContext& context) {
  constexpr std::size_t kNamed = 3;
  for (const std::uint16_t port : killed_heads(context, kNamed)) {
    context.err << fmt::format(
        "The head at port {0} was killed and left its cluster: this is another one.\n"
        "'troupe head --port {0}' takes that one up again; a head with --watch is started again by "
        "itself.\n",
        port);
  }
}

Status HeadProcess::start(const net::AddressChoice& choice) {
  std::optional<std::uint16_t> port = flags_.port;
  if (!port) port = TROUPE_TRY(master_port(context_.environment));
  place_ = TROUPE_TRY(take_head_place(context_, choice.address, port, flags_.state_dir));
  if (!port) warn_of_killed_heads(context_);
  loop_ = net::make_event_loop();
  journal_ = std::make_unique<scheduler::FileJournal>(context_.files, place_->state.journal_path());
  scheduler::HeadOptions options;
  options.host = choice.address;
  options.port = place_->port;
  options.token = token_.token;
  options.version = TROUPE_VERSION;
  if (!flags_.no_metrics) {
    // Beside the head's own, so that a head that comes back has its metrics where they were.
    const auto beside = static_cast<std::uint16_t>(place_->port < 65535 ? place_->port + 1 : 0);
    options.metrics = scheduler::HttpServerOptions{.host = flags_.metrics_address,
                                                   .port = flags_.metrics_port.value_or(beside),
                                                   .names = {scheduler::host_name()}};
    options.metrics_port_is_wish = !flags_.metrics_port;
  }
  daemon_ = TROUPE_TRY(
      scheduler::HeadDaemon::start(*loop_, std::move(options), *journal_, context_.random, log_,
                                   [this](const std::string& reason) {
                                     log_.info("the cluster has ended: {}", reason);
                                     stopped_ = true;
                                     loop_->stop();
                                   }));
  return {};
}

Status HeadProcess::start_worker() {
  auto options = TROUPE_TRY(node_options(context_, flags_.node));
  options.head = daemon_->address();
  options.host = daemon_->address().host;
  options.token = token_.token;
  options.token_file = absolute_token_file(token_);
  const std::string offers = scheduler::format_resources(options.resources);
  options.log_level = log_level_from_name(flags_.log_level);
  options.on_registered = [this, offers](const std::string& name) {
    log_.info("this machine is a worker node, too: {} with {}", name, offers);
  };
  options.on_stopped = [this](const Status& why) {
    if (!why.ok()) log_.error("the worker node in this head ended: {}", why.to_string());
  };
  node_ = TROUPE_TRY(scheduler::NodeDaemon::start(*loop_, std::move(options)));
  return {};
}

void HeadProcess::announce(const net::AddressChoice& choice, const std::string& authority) {
  const std::string address = scheduler::format_address(record_.host, record_.port);
  std::string metrics;
  if (const auto at = daemon_->metrics_address()) {
    metrics = fmt::format("http://{}/metrics", scheduler::format_address(at->host, at->port));
  }
  if (flags_.json) {
    json::Object line{{"address", record_.host},          {"port", record_.port},
                      {"token_file", record_.token_file}, {"pid", record_.pid},
                      {"insecure", record_.insecure},     {"authority", authority}};
    if (!metrics.empty()) line["metrics_url"] = metrics;
    context_.out << json::write(line) << std::endl;
    return;
  }
  context_.out << fmt::format("The head listens on {}.\n{}\n\n", address, choice.notice());
  if (!metrics.empty()) {
    context_.out << fmt::format("Its metrics, for Prometheus, are at {}\n\n", metrics);
  }
  context_.out << fmt::format("To add a machine, run there:\n    troupe worker --address {}\n",
                              address);
  if (token_.file.empty()) {
    context_.out << "It needs the token that this head was given on standard input: give it there "
                    "the same way,\nwith --token-stdin.\n";
  } else {
    context_.out << fmt::format(
        "It needs this cluster's token first: copy the file {} of this machine\nto "
        "~/.troupe/token of the other one, readable by you alone; for example, run here:\n"
        "    ssh OTHER mkdir -p -m 700 .troupe && scp -p {} OTHER:.troupe/token\n"
        "Whoever has the token may run programs on every node of the cluster.\n",
        token_.file, token_.file);
  }
  if (record_.insecure) {
    context_.out << "Connections are not encrypted: start every worker and driver with --insecure, "
                    "too.\n";
  } else {
    context_.out << fmt::format(
        "Connections between machines are encrypted; the cluster's certificate authority, made "
        "from "
        "the token, is\n    {}\n",
        authority);
  }
  if (choice.loopback) {
    context_.out << "This address is loopback: only workers on this machine can join.\n";
  }
  context_.out << "\nCtrl-C or 'troupe stop' ends the cluster." << std::endl;
}

// The way of `troupe stop`, for Ctrl-C; not on the loop's thread, which must answer it.
void HeadProcess::stop_cluster(const std::string& reason) {
  stopping_ = std::thread([this, reason, address = daemon_->address(), token = token_.token] {
    net::LoopThread thread("troupe-stop");
    wire::ClientHello hello;
    hello.client_id = ClientId::make(context_.random);
    hello.name = "troupe head";
    hello.kind = "tool";
    const Deadline deadline = Deadline::after(kStopTimeout);
    auto client = scheduler::HeadClient::connect(thread.loop(), address, token, hello, deadline);
    Status asked = client.status();
    if (client.ok()) {
      asked = (*client)->stop(reason, deadline);
      (*client)->close();
    }
    // Otherwise the head has ended meanwhile, or ends now, its nodes after their own time-outs.
    if (!asked.ok()) loop_->stop();
  });
}

void HeadProcess::interrupted(int signal) {
  if (signals_.is_repetition(signal, loop_->clock().now())) return;
  const std::string name = signal_name(signal);
  if (std::exchange(interrupted_, true)) {
    log_.warning("a second signal ({}): ending at once", name);
    loop_->stop();
    return;
  }
  log_.info("{}: the cluster ends", name);
  stop_cluster(fmt::format("the head was ended by {}", name));
}

Status HeadProcess::run() {
  net::SystemNetwork network(context_.files);
  const auto choice = TROUPE_TRY(net::choose_address(
      TROUPE_TRY(network.read()), {.interface = flags_.interface, .address = flags_.address}));
  token_ = TROUPE_TRY(load_or_make_token(context_, flags_.token));
  const std::string authority = TROUPE_TRY(token_.token.authority_fingerprint());
  process::allow_descriptors();
  ::signal(SIGPIPE, SIG_IGN);  // an output that nobody reads any more does not end the cluster
  TROUPE_RETURN_IF_ERROR(start(choice));
  if (flags_.with_worker || flags_.node.any()) TROUPE_RETURN_IF_ERROR(start_worker());
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    loop_->on_signal(signal, [this, signal] { interrupted(signal); });
  }

  record_ = {daemon_->address().host,
             daemon_->address().port,
             token_.file,
             ::getpid(),
             scheduler::host_name(),
             token_.token.security() == net::Security::kInsecure};
  // Without a home directory there is nowhere to note it down: tools are given --address then.
  const auto record_path = scheduler::cluster_record_path(context_.environment);
  if (record_path.ok()) {
    TROUPE_RETURN_IF_ERROR(scheduler::write_cluster_record(context_.files, *record_path, record_));
  }
  announce(choice, authority);
  loop_->run();
  if (record_path.ok()) {
    TROUPE_RETURN_IF_ERROR(scheduler::remove_cluster_record(context_.files, *record_path, record_));
  }
  node_.reset();
  if (stopped_) {
    journal_.reset();
    place_->state.remove(context_.files);
  }
  daemon_.reset();
  return {};
}

// With the same port and state directory each head goes on where the one before was killed, and
// with the same id its own worker node too.
Status watch_head(CommandContext& context, const HeadFlags& flags) {
  WatchOptions options{.what = "head", .more = {}, .token_from_stdin = flags.token.from_stdin};
  std::optional<std::uint16_t> port = flags.port;
  if (!port) port = TROUPE_TRY(master_port(context.environment));
  if (flags.port && *flags.port == 0) {
    return error(Code::kInvalidArgument,
                 "--port 0 with --watch: leave --port out to have a free one found");
  }
  if (!port || *port == 0) {
    net::SystemNetwork network(context.files);
    const auto choice = TROUPE_TRY(net::choose_address(
        TROUPE_TRY(network.read()), {.interface = flags.interface, .address = flags.address}));
    warn_of_killed_heads(context);
    const auto place =
        TROUPE_TRY(take_head_place(context, choice.address, std::nullopt, flags.state_dir));
    options.more = {"--port", std::to_string(place.port)};
  }
  if (!flags.node.node_id) {
    options.more.insert(options.more.end(),
                        {"--node-id", NodeId::make(context.random).to_string()});
  }
  return watch_daemon(context, options);
}

}  // namespace

void add_head_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<HeadFlags>();
  Command command(app, context, "head", "Starts the head of a cluster on this machine.");
  command
      .option("--interface", flags->interface, "NAME",
              "the network interface to listen on (default: that of the default route)")
      .option("--address", flags->address, "IP",
              "the address of this machine to listen on (default: that of the interface)")
      .option("--port", flags->port, "PORT",
              "the port to listen on (default: MASTER_PORT, else a free one)")
      .option("--state-dir", flags->state_dir, "DIR",
              "where the head keeps its journal (default ~/.troupe/head-PORT)");
  declare_token_options(command, flags->token);
  command.flag("--with-worker", flags->with_worker, "make this machine a worker node, too");
  declare_node_flags(command, flags->node);
  command
      .option("--log-level", flags->log_level, "LEVEL",
              "what is logged: debug, info (default), warning, error or off")
      .option("--metrics-port", flags->metrics_port, "PORT",
              "where Prometheus reads the head's metrics (default: the head's port + 1, or a free "
              "one)")
      .option("--metrics-address", flags->metrics_address, "IP",
              "the address of the metrics (default 127.0.0.1: this machine only). They need no "
              "token: whoever reaches the address can read them")
      .flag("--no-metrics", flags->no_metrics, "serve no metrics")
      .flag("--json", flags->json,
            "one line of JSON: address, port, token_file, pid, insecure, authority, metrics_url")
      .flag("--watch", flags->watch,
            "start this head again when it is killed; nodes and actors run on meanwhile")
      .example("troupe head")
      .example("troupe head --interface eth1 --port 6379")
      .example("troupe head --with-worker --num-cpus 8      also a worker node")
      .example("troupe head --address 127.0.0.1 --json      for scripts")
      .run([flags, &context] {
        return flags->watch ? watch_head(context, *flags) : HeadProcess(context, *flags).run();
      });
}

}  // namespace troupe::tools
