#include "tools/commands/worker.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "runtime/base/text.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/parse_address.h"
#include "scheduler/client/cluster_record.h"
#include "scheduler/client/find_cluster.h"
#include "scheduler/node/node_daemon.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/node_flags.h"
#include "tools/commands/repeated_signals.h"
#include "tools/commands/watch.h"
#include "troupe/log.h"

namespace troupe::tools {
namespace {

constexpr Duration kJoinTimeout = std::chrono::seconds(60);
constexpr Duration kFirstReminder = std::chrono::seconds(1);
constexpr Duration kReminderInterval = std::chrono::seconds(10);
constexpr Duration kTokenTime = std::chrono::seconds(10);
constexpr Duration kTellOfToken = std::chrono::seconds(1);
constexpr Duration kLookForToken = std::chrono::milliseconds(50);
constexpr std::string_view kRunEnded = "the run has ended with exit code ";
constexpr std::string_view kDrainedBy = "the node was drained by ";
constexpr const char* kEndedBy = "the worker was ended by ";

struct WorkerFlags {
  std::optional<std::string> address;
  std::string interface;
  std::optional<std::uint16_t> port;
  std::optional<std::string> advertise;
  TokenOptions token;
  NodeFlags node;
  std::optional<double> timeout_s;
  std::optional<double> grace_s;
  std::string log_level = "info";
  bool watch = false;
  bool with_stdin = false;
};

// A worker node while it runs, on the loop of run().
class WorkerProcess {
 public:
  // With `join`, which outlives it: a node of somebody's run.
  WorkerProcess(CommandContext& context, const WorkerFlags& flags,
                const JoinOptions* join = nullptr)
      : context_(context),
        flags_(flags),
        join_(join),
        log_(Logger::to_stderr("worker", log_level_from_name(flags.log_level))) {}

  Status run();
  const std::string& end_reason() const { return end_reason_; }

 private:
  Result<scheduler::NodeOptions> options();
  void remind(Duration delay);
  void on_signal(int signal);
  void terminate();
  void say_joined(const std::string& name);
  void check_fit(const std::string& name);
  void leave(const std::string& cause);
  void follow_stdin();

  CommandContext& context_;
  const WorkerFlags& flags_;
  const JoinOptions* const join_;
  Logger log_;
  std::unique_ptr<net::RunnableLoop> loop_ = net::make_event_loop();
  std::unique_ptr<scheduler::NodeDaemon> node_;
  std::string head_;
  std::string offers_;
  Deadline join_by_ = Deadline::after(kJoinTimeout);
  bool joined_ = false;
  RepeatedSignals signals_;
  bool leaving_ = false;
  // Joined before the loop goes.
  std::jthread terminating_;
  std::jthread checking_;
  Status misfit_;  // why this machine is none of the run's
  std::optional<Status> ended_;
  std::string end_reason_;
  std::string stdin_text_;
};

Result<scheduler::NodeOptions> WorkerProcess::options() {
  const Duration timeout = TROUPE_TRY(seconds_option(flags_.timeout_s, kJoinTimeout));
  auto place = TROUPE_TRY(find_cluster(context_, flags_.address, flags_.token));
  head_ = scheduler::format_address(place.address.host, place.address.port);
  join_by_ = Deadline::after(timeout);
  auto options = TROUPE_TRY(node_options(context_, flags_.node));
  const auto choice = TROUPE_TRY(address_towards(context_, place.address, flags_.interface));
  log_.info("{}", choice.notice());
  options.head = place.address;
  options.token = std::move(place.token.token);
  options.token_file = absolute_token_file(place.token);
  options.host = choice.address;
  options.port = flags_.port.value_or(0);
  if (flags_.advertise) {
    options.advertised = TROUPE_TRY(net::parse_address(*flags_.advertise, "--advertise"));
  }
  options.join_timeout = timeout;
  options.shutdown_grace = TROUPE_TRY(seconds_option(flags_.grace_s, options.shutdown_grace));
  if (flags_.timeout_s) options.orphan_timeout = timeout;
  if (join_ != nullptr) {
    options.orphan_timeout = TROUPE_TRY(seconds_option(join_->orphan_timeout_s, timeout));
    options.on_output = join_->on_output;
    options.programs_read_input = true;
  }
  return options;
}

void WorkerProcess::remind(Duration delay) {
  loop_->call_after(delay, [this] {
    if (joined_ || ended_) return;
    log_.info("waiting for the head at {}, for another {:.0f} s", head_,
              std::chrono::duration<double>(join_by_.remaining()).count());
    remind(kReminderInterval);
  });
}

void WorkerProcess::on_signal(int signal) {
  if (signals_.is_repetition(signal, loop_->clock().now())) return;
  const bool waits =
      signal == SIGTERM && join_ != nullptr && join_->on_terminate && !terminating_.joinable();
  if (waits && joined_ && !leaving_) return terminate();
  leave(signal_name(signal));
}

// Other machines may be told to end at the same time: a rank that leaves now would be missing in
// the checkpoint.
void WorkerProcess::terminate() {
  log_.info(
      "SIGTERM: the run is told to do without this machine, or to save and to end; it stays until "
      "then, or until a second signal");
  terminating_ = std::jthread([this, self = node_->info().node_id] {
    const Result<bool> told = join_->on_terminate(self);
    if (told.ok() && !*told) return;
    loop_->post([this, told] {
      if (ended_ || leaving_) return;
      if (!told.ok()) log_.warning("the run could not be told: {}", told.status().to_string());
      leave(signal_name(SIGTERM));
    });
  });
}

void WorkerProcess::say_joined(const std::string& name) {
  context_.out << fmt::format("This machine is part of the run of {}, as {}, with {}.", head_, name,
                              offers_)
               << std::endl;
}

void WorkerProcess::check_fit(const std::string& name) {
  checking_ = std::jthread([this, name] {
    Status fits = join_->on_joined();
    loop_->post([this, name, fits = std::move(fits)]() mutable {
      if (ended_ || leaving_) return;
      if (fits.ok()) return say_joined(name);
      misfit_ = std::move(fits);
      leave("it is not started as the others are");
    });
  });
}

void WorkerProcess::leave(const std::string& cause) {
  if (std::exchange(leaving_, true)) {
    log_.warning("a second signal ({}): ending at once", cause);
    loop_->stop();
    return;
  }
  log_.info("{}: {}", cause,
            join_ != nullptr ? "this machine leaves the run" : "this node leaves the cluster");
  node_->leave((joined_ ? kEndedBy : "the worker, which had not joined yet, was ended by ") +
               cause);
}

// Whoever started this node over a connection writes "signal N" for the programs that run here, and
// goes when the connection does.
void WorkerProcess::follow_stdin() {
  char bytes[256];
  for (;;) {
    const auto count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) break;
    stdin_text_.append(bytes, static_cast<std::size_t>(count));
    for (std::size_t end; (end = stdin_text_.find('\n')) != std::string::npos;) {
      const std::string line = stdin_text_.substr(0, end);
      stdin_text_.erase(0, end + 1);
      const int signal = line.starts_with("signal ") ? std::atoi(line.c_str() + 7) : 0;
      if (signal > 0 && signal < NSIG) node_->signal_programs(signal);
    }
  }
  loop_->unwatch(STDIN_FILENO);
  if (!leaving_) leave("the end of standard input");
}

Status WorkerProcess::run() {
  auto node_options = TROUPE_TRY(options());
  ::signal(SIGPIPE, SIG_IGN);
  offers_ = scheduler::format_resources(node_options.resources);
  // Who runs one of a run's machines is told of the run: of the actors in it at warnings alone.
  node_options.log_level =
      join_ != nullptr ? LogLevel::kWarning : log_level_from_name(flags_.log_level);
  node_options.on_registered = [this](const std::string& name) {
    const bool first = !std::exchange(joined_, true);
    if (join_ != nullptr) return first && join_->on_joined ? check_fit(name) : say_joined(name);
    context_.out << fmt::format("Node {} {} {}; it listens on {} and offers {}.", name,
                                kJoinedWords, head_, node_->info().endpoint.to_string(), offers_)
                 << std::endl;
  };
  node_options.on_stopped = [this](Status why) {
    ended_ = std::move(why);
    loop_->stop();
  };
  node_ = TROUPE_TRY(scheduler::NodeDaemon::start(*loop_, std::move(node_options)));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const bool ignored = signal == SIGTERM && join_ != nullptr && join_->head_gets_signals;
    loop_->on_signal(signal, [this, signal, ignored] {
      if (!ignored) on_signal(signal);
    });
  }
  if (join_ != nullptr) {
    for (const int signal : {SIGUSR1, SIGUSR2}) {
      loop_->on_signal(signal, [this, signal, passed_on = join_->passes_signals_on] {
        if (passed_on) node_->signal_programs(signal);
      });
    }
  }
  if (flags_.with_stdin) loop_->watch_readable(STDIN_FILENO, [this] { follow_stdin(); });
  remind(kFirstReminder);
  loop_->run();
  if (terminating_.joinable()) terminating_.join();
  if (checking_.joinable()) checking_.join();
  if (flags_.with_stdin) loop_->unwatch(STDIN_FILENO);
  end_reason_ = node_->end_reason();
  node_.reset();
  if (ended_ && !ended_->ok()) return *ended_;
  TROUPE_RETURN_IF_ERROR(std::move(misfit_));
  log_.info("{}", join_ != nullptr ? "the run has ended here" : "this node has left the cluster");
  return {};
}

// The first machine makes the token at its first run ever: where its home is shared, or the machine
// is the same, it is there in a moment.
Status await_token(CommandContext& context) {
  const auto file = TROUPE_TRY(scheduler::default_token_file(context.environment));
  const Deadline deadline = Deadline::after(kTokenTime);
  for (bool told = false; !context.files.exists(file);) {
    if (deadline.passed()) {
      return error(Code::kNotFound,
                   "there is no token file {}: copy it here from the machine that leads the run "
                   "and names it in its first lines (scp -p), or name another one with "
                   "TROUPE_TOKEN_FILE",
                   file);
    }
    if (!told && kTokenTime - deadline.remaining() >= kTellOfToken) {
      told = true;
      context.out << fmt::format(
                         "waiting for {}, for {} s: the first machine makes it, where this "
                         "home is shared\n",
                         file, std::chrono::duration_cast<std::chrono::seconds>(kTokenTime).count())
                  << std::flush;
    }
    std::this_thread::sleep_for(kLookForToken);
  }
  return {};
}

// With the same id each daemon goes on where the one before was killed.
Status watch_worker(CommandContext& context, const WorkerFlags& flags) {
  WatchOptions options{.what = "worker", .more = {}, .token_from_stdin = flags.token.from_stdin};
  if (!flags.node.node_id) {
    options.more = {"--node-id", NodeId::make(context.random).to_string()};
  }
  return watch_daemon(context, options);
}

}  // namespace

std::string run_end_text(int exit_code) { return fmt::format("{}{}", kRunEnded, exit_code); }

std::optional<int> exit_code_of_run(std::string_view reason) {
  if (!reason.starts_with(kRunEnded)) return std::nullopt;
  return parse_integer<int>(reason.substr(kRunEnded.size()));
}

std::string drained_text(std::string_view by) { return fmt::format("{}{}", kDrainedBy, by); }

std::optional<std::string> drained_by(std::string_view reason) {
  if (!reason.starts_with(kDrainedBy)) return std::nullopt;
  return std::string(reason.substr(kDrainedBy.size()));
}

std::optional<int> signal_that_ended(std::string_view reason) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (reason == kEndedBy + signal_name(signal)) return signal;
  }
  return std::nullopt;
}

Result<std::string> run_worker(CommandContext& context, const JoinOptions& join) {
  WorkerFlags flags;
  flags.node.labels = join.labels;
  flags.address = join.address;
  flags.timeout_s = join.join_timeout_s;
  flags.grace_s = std::chrono::duration<double>(join.stop_grace).count();
  TROUPE_RETURN_IF_ERROR(await_token(context));
  WorkerProcess process(context, flags, &join);
  TROUPE_RETURN_IF_ERROR(process.run());
  return process.end_reason();
}

void add_worker_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<WorkerFlags>();
  Command command(app, context, "worker", "Makes this machine a worker node of a cluster.");
  command
      .option("--address", flags->address, "HOST:PORT",
              "the head (default: TROUPE_ADDRESS, else the head started last on this machine)")
      .option("--interface", flags->interface, "NAME",
              "the network interface to listen on (default: the one that leads to the head)")
      .option("--port", flags->port, "PORT", "the port to listen on (default: a free one)")
      .option("--advertise", flags->advertise, "HOST:PORT",
              "the address at which other machines reach this node (default: where it listens)");
  declare_token_options(command, flags->token);
  declare_node_flags(command, flags->node);
  command
      .option("--timeout", flags->timeout_s, "SECONDS",
              "how long to wait for a head that is not up yet (default 60) or has gone away "
              "(default 600)")
      .option("--grace", flags->grace_s, "SECONDS",
              "how long actors may take to finish what is queued when this worker is ended by "
              "SIGTERM (default 2); those that may be started again go to other nodes")
      .option("--log-level", flags->log_level, "LEVEL",
              "what is logged: debug, info (default), warning, error or off")
      .flag("--watch", flags->watch,
            "start this daemon again when it is killed; its actors run on meanwhile")
      .flag("--with-stdin", flags->with_stdin,
            "leave when standard input closes: for whoever starts a worker over a connection")
      .example("troupe worker --address 10.0.0.2:6379")
      .example(
          "troupe worker --address 10.0.0.2:6379 --num-cpus 4 --resources ssd=2 --labels rack=7")
      .example("troupe worker --address head:6379 --timeout 600      a head that comes up later")
      .run([flags, &context] {
        return flags->watch ? watch_worker(context, *flags) : WorkerProcess(context, *flags).run();
      });
}

}  // namespace troupe::tools
