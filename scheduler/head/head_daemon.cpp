#include "scheduler/head/head_daemon.h"

#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"
#include "runtime/net/connection.h"
#include "runtime/net/presence.h"
#include "runtime/wire/request_id.h"
#include "scheduler/control/journal_bytes.h"
#include "scheduler/head/head_metrics.h"
#include "scheduler/head/journal_writer.h"

namespace troupe::scheduler {
namespace {

using namespace std::chrono_literals;

// How long the last answers of an ending head may take to leave.
constexpr std::int64_t kFlushMs = 1000;
constexpr Duration kFlush = std::chrono::milliseconds(kFlushMs);
constexpr Duration kJournalRetryLeast = 100ms;

ProcessFigures this_process() {
  ProcessFigures figures;
  timespec cpu{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
    figures.cpu_s = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
  }
  PosixFileSystem files;
  if (const auto statm = files.read("/proc/self/statm", 4096); statm.ok()) {
    unsigned long long total = 0;
    unsigned long long resident = 0;
    if (std::sscanf(statm->c_str(), "%llu %llu", &total, &resident) == 2) {
      figures.resident_bytes = resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    }
  }
  return figures;
}

class Daemon final : public HeadDaemon {
 public:
  Daemon(net::EventLoop& loop, HeadOptions options, Journal& journal, Random& random, Logger log,
         std::function<void(std::string)> on_end)
      : loop_(loop),
        options_(std::move(options)),
        journal_(journal),
        random_(random),
        log_(std::move(log)),
        on_end_(std::move(on_end)),
        state_(options_.config),
        metrics_(options_.version) {}

  ~Daemon() override {
    *alive_ = false;
    writer_.reset();
    if (timer_) loop_.cancel(*timer_);
    if (stall_timer_) loop_.cancel(*stall_timer_);
    http_.reset();
    listener_.reset();
    peers_.clear();
  }

  Status start();
  const net::Address& address() const override { return listener_->address(); }
  std::optional<net::Address> metrics_address() const override {
    return http_ ? std::optional(http_->address()) : std::nullopt;
  }
  const HeadState& state() const override { return state_; }

 private:
  Moment now() const { return {loop_.clock().now(), loop_.clock().unix_time_us()}; }
  Status check_target(const std::string& target) const;
  void accept(net::AcceptedSocket accepted);
  void received(PeerId peer, std::span<const std::byte> frame);
  void closed(PeerId peer);
  void apply(Event event);
  void collect(Outcome outcome);
  void post_flush();
  void flush();
  bool keep();
  void forget_deltas();
  void written(const JournalWriter::Written& written);
  void expect_written(Duration limit);
  void journal_failed(const Status& why);
  bool carry_out(std::vector<Command> commands);
  Status start_metrics();
  void answer_http(const std::string& path, HttpServer::Answer answer);
  void carry_out(SendMessage& command);
  void too_large(const SendMessage& command, const Status& why);
  void carry_out(ClosePeer& command);
  void carry_out(EndHead& command);
  void carry_out(ProbeNode& command);
  void arm();

  net::EventLoop& loop_;
  const HeadOptions options_;
  Journal& journal_;
  Random& random_;
  Logger log_;
  std::function<void(std::string)> on_end_;
  HeadState state_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<net::Listener> listener_;
  PeerId next_peer_ = 1;
  std::map<PeerId, std::shared_ptr<net::Connection>> peers_;
  std::map<NodeId, std::unique_ptr<net::PresenceProbe>> probes_;  // of nodes that are away
  // What was decided since the last write of the journal began, and what is to be done then.
  std::vector<Command> commands_;
  std::vector<Delta> deltas_;
  std::uint64_t delta_bytes_ = 0;
  bool rewrite_due_ = false;   // some of it is in no delta any more
  bool written_ = false;       // since the start: the first answers do not wait for a rewrite
  std::vector<Command> held_;  // to be done when the write that is under way has ended
  bool ending_ = false;        // the end of the head is among what is to be done
  std::optional<TimePoint> flush_posted_at_;
  std::optional<net::TimerId> timer_;
  std::optional<TimePoint> timer_at_;
  std::optional<net::TimerId> stall_timer_;
  std::optional<TimePoint> journal_failed_at_;
  std::uint64_t journal_bytes_ = 0;
  std::unique_ptr<JournalWriter> writer_;  // none where nothing is kept
  HeadMetrics metrics_;
  const std::int64_t started_unix_us_ = loop_.clock().unix_time_us();
  std::unique_ptr<HttpServer> http_;
};

Status Daemon::start() {
  TROUPE_RETURN_IF_ERROR(
      journal_.replay([this](Delta delta) { return state_.replay(std::move(delta)); }));
  const bool known = !state_.nodes().empty() || !state_.actors().empty();
  if (known) {
    log_.info("the journal knows {} nodes and {} actors", state_.nodes().size(),
              state_.actors().size());
  }
  // A new journal is begun at once, so that a folder that nobody can write fails the start. One
  // that is there is appended to, or made good beside the loop: those who wait for this head do not
  // wait for all of it to be written.
  Status kept;
  if (!journal_.can_append() && !known) {
    const TimePoint begin = loop_.clock().now();
    kept = journal_.rewrite(state_.snapshot());
    if (!kept.ok() && kept.code() != Code::kResourceExhausted) return kept;
    metrics_.journal(true, kept.ok(), loop_.clock().now() - begin);
  }
  journal_bytes_ = journal_.size_bytes();
  if (journal_.keeps()) writer_ = std::make_unique<JournalWriter>(loop_, journal_);
  net::ListenOptions listen;
  listen.host = options_.host;
  listen.port = options_.port;
  listener_ = TROUPE_TRY(net::listen(
      loop_, listen, options_.token, random_, log_,
      [this](net::AcceptedSocket accepted) { accept(std::move(accepted)); },
      [this](const std::string& target) { return check_target(target); }));
  TROUPE_RETURN_IF_ERROR(start_metrics());
  metrics_.begin(state_, loop_.clock().now());
  collect(state_.resume(now()));
  if (!kept.ok()) journal_failed(kept);
  if (const std::string damage = journal_.damage(); !damage.empty()) {
    log_.error("{}", damage);
    apply(DaemonNoted{"journal_damaged", damage});
  }
  flush();
  return {};
}

// --- metrics -------------------------------------------------------------------------------------

Status Daemon::start_metrics() {
  if (!options_.metrics) return {};
  // The server's thread outlives nothing: it ends before this object.
  const auto handler = [this](const std::string& path, HttpServer::Answer answer) {
    answer_http(path, std::move(answer));
  };
  auto server = HttpServer::start(*options_.metrics, handler);
  if (server.status().code() == Code::kAlreadyExists && options_.metrics_port_is_wish) {
    HttpServerOptions anywhere = *options_.metrics;
    anywhere.port = 0;
    server = HttpServer::start(std::move(anywhere), handler);
  }
  if (!server.ok()) return server.status().prefixed("metrics");
  http_ = std::move(*server);
  return {};
}

// On the server's thread: the loop copies the figures, the server's thread makes the page.
void Daemon::answer_http(const std::string& path, HttpServer::Answer answer) {
  if (path == "/") {
    return answer([] { return HttpPage{.body = "Troupe's head. Prometheus reads /metrics.\n"}; });
  }
  if (path != "/metrics") {
    return answer([] { return HttpPage{.status = 404, .body = "There is only /metrics here.\n"}; });
  }
  loop_.post([this, answer = std::move(answer), asked = loop_.clock().now(),
              alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    const TimePoint time = loop_.clock().now();
    metrics_.loop_waited(time - asked);
    auto figures = std::make_shared<const HeadFigures>(
        metrics_.figures(state_, peers_.size(), journal_bytes_, time));
    answer([figures, started = started_unix_us_] {
      ProcessFigures process = this_process();
      process.start_unix_s = static_cast<double>(started) * 1e-6;
      return HttpPage{.content_type = std::string(kPrometheusContentType),
                      .body = prometheus_page(*figures, process)};
    });
  });
}

Status Daemon::check_target(const std::string& target) const {
  if (target == "head") return {};
  return error(Code::kNotFound, "this is a head; it knows no '{}'", target);
}

void Daemon::accept(net::AcceptedSocket accepted) {
  const PeerId peer = next_peer_++;
  auto connection =
      net::make_connection(loop_, std::move(accepted.socket), accepted.peer, options_.connections);
  peers_[peer] = connection;
  const std::weak_ptr<bool> alive = alive_;
  connection->start({.on_frame =
                         [this, peer, alive](std::span<const std::byte> frame) {
                           if (!alive.expired()) received(peer, frame);
                         },
                     .on_close =
                         [this, peer, alive](Status) {
                           if (!alive.expired()) closed(peer);
                         }});
}

void Daemon::received(PeerId peer, std::span<const std::byte> frame) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  auto message = wire::decode_control(frame);
  if (!message.ok()) {
    log_.warning("{} sent what is no message: {}", found->second->peer(),
                 message.status().to_string());
    found->second->close();
    closed(peer);
    return;
  }
  metrics_.received(*message, frame.size(), state_);
  // The node hears its own words again, but not these.
  if (auto* beat = get_if<wire::Heartbeat>(&*message)) beat->usage.reset();
  // It is there.
  if (auto* node = get_if<wire::RegisterNode>(&*message)) probes_.erase(node->node.node_id);
  apply(MessageArrived{peer, std::move(*message)});
}

void Daemon::closed(PeerId peer) {
  if (peers_.erase(peer) > 0) apply(PeerClosed{peer});
}

void Daemon::apply(Event event) {
  const Moment moment = now();
  Outcome outcome = state_.apply(std::move(event), moment);
  metrics_.decided(outcome.deltas, loop_.clock().now() - moment.steady, moment.steady);
  collect(std::move(outcome));
}

void Daemon::collect(Outcome outcome) {
  std::vector<Command> at_once;
  for (Command& command : outcome.commands) {
    const auto* send = get_if<SendMessage>(&command);
    const bool waits = send == nullptr || !send->at_once;
    const bool ends = holds_alternative<EndHead>(command) && !std::exchange(ending_, true);
    if (ends && writer_ && writer_->busy()) expect_written(kFlush);
    (waits ? commands_ : at_once).push_back(std::move(command));
  }
  if (writer_) {
    for (Delta& delta : outcome.deltas) {
      delta_bytes_ += journal_bytes(delta);
      deltas_.push_back(std::move(delta));
    }
    // A snapshot is less.
    if (delta_bytes_ > limits::kJournalHistoryBytesMax) forget_deltas();
  }
  arm();
  if (!commands_.empty() || !deltas_.empty()) post_flush();
  carry_out(std::move(at_once));
}

void Daemon::post_flush() {
  if (flush_posted_at_) return;
  flush_posted_at_ = loop_.clock().now();
  // Behind what the loop has ready now, so that its decisions share one sync.
  loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    if (flush_posted_at_) metrics_.loop_waited(loop_.clock().now() - *flush_posted_at_);
    flush();
  });
}

// --- the journal ---------------------------------------------------------------------------------

// One batch at a time: what is decided while it is written is the next one.
void Daemon::flush() {
  flush_posted_at_.reset();
  const bool waits = writer_ && !journal_failed_at_;
  if (waits && writer_->busy()) return;  // its end comes here again
  auto commands = std::exchange(commands_, {});
  if (keep()) {
    held_ = std::move(commands);
  } else {
    carry_out(std::move(commands));
  }
}

// Begins to write what was decided, where that is to be kept. Whether commands wait for its end:
// not while the journal cannot be written, since the cluster goes on.
bool Daemon::keep() {
  const bool failing = journal_failed_at_.has_value();
  if (!writer_ || writer_->busy() || (deltas_.empty() && !rewrite_due_ && !failing)) return false;
  const TimePoint time = loop_.clock().now();
  if (failing && time - *journal_failed_at_ < options_.journal_retry) {
    forget_deltas();
    return false;
  }
  const bool rewrite =
      rewrite_due_ || !writer_->can_append() || (written_ && writer_->wants_rewrite(delta_bytes_));
  auto deltas = std::exchange(deltas_, {});
  if (rewrite) deltas = state_.snapshot();
  delta_bytes_ = 0;
  rewrite_due_ = false;
  if (!failing) expect_written(ending_ ? kFlush : options_.config.journal_stall);
  writer_->write(rewrite, std::move(deltas),
                 [this](const JournalWriter::Written& result) { written(result); });
  return !failing;
}

// They are part of the next snapshot.
void Daemon::forget_deltas() {
  deltas_.clear();
  delta_bytes_ = 0;
  rewrite_due_ = true;
}

void Daemon::written(const JournalWriter::Written& written) {
  if (stall_timer_) loop_.cancel(*std::exchange(stall_timer_, std::nullopt));
  written_ = true;
  metrics_.journal(written.rewrite, written.status.ok(), written.took);
  journal_bytes_ = written.size_bytes;
  // A snapshot takes more memory than all that the head holds; the allocator would keep it.
  if (written.rewrite) ::malloc_trim(0);
  auto commands = std::exchange(held_, {});
  if (!written.status.ok()) {
    journal_failed(written.status);
  } else if (journal_failed_at_) {
    journal_failed_at_.reset();
    log_.info("the journal is written again");
    apply(DaemonNoted{"journal_written", "the head's journal is whole again"});
  }
  if (carry_out(std::move(commands))) flush();
}

// A disk that does not come back within this time fails the journal, as one that is full does.
void Daemon::expect_written(Duration limit) {
  if (stall_timer_) loop_.cancel(*stall_timer_);
  stall_timer_ = loop_.call_after(limit, [this, limit, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    stall_timer_.reset();
    if (!writer_->busy() || journal_failed_at_) return;
    journal_failed(
        error(Code::kDeadlineExceeded, "the disk has not answered for {} ms", limit / 1ms));
    if (carry_out(std::exchange(held_, {}))) flush();
  });
}

// The cluster goes on; only a restart of the head meanwhile would forget.
void Daemon::journal_failed(const Status& why) {
  log_.error("the journal cannot be written: {}", why.to_string());
  const bool first = !journal_failed_at_;
  journal_failed_at_ = loop_.clock().now();
  rewrite_due_ = true;
  if (first) {
    apply(DaemonNoted{"journal_failed",
                      fmt::format("the head's journal cannot be written: {}; the cluster runs on, "
                                  "and the head tries again every {} ms",
                                  why.to_string(), options_.journal_retry / 1ms)});
  }
  // However quiet the cluster is.
  loop_.call_after(std::max<Duration>(options_.journal_retry, kJournalRetryLeast),
                   [this, alive = std::weak_ptr<bool>(alive_)] {
                     if (!alive.expired() && journal_failed_at_) post_flush();
                   });
}

// --- what is done --------------------------------------------------------------------------------

// False where that was the end of this head.
bool Daemon::carry_out(std::vector<Command> commands) {
  const std::weak_ptr<bool> alive = alive_;
  for (Command& command : commands) {
    visit([this](auto& c) { carry_out(c); }, command);
    if (alive.expired()) return false;
  }
  return true;
}

void Daemon::carry_out(SendMessage& command) {
  const auto found = peers_.find(command.peer);
  if (found == peers_.end()) return;
  auto frame = wire::encode(command.message);
  const std::size_t bytes = frame.size();
  const Status sent = found->second->send(std::move(frame));
  if (sent.ok()) return metrics_.sent(command.message, bytes);
  if (sent.code() == Code::kInvalidArgument) return too_large(command, sent);
  // A peer that does not read is cut off; it comes back and is told the present state.
  if (sent.code() == Code::kOverloaded) {
    log_.warning("{} does not read: closed", found->second->peer());
    found->second->close();
    closed(command.peer);
  }
}

// Whoever asked is told so: no answer at all would look like a head that is away.
void Daemon::too_large(const SendMessage& command, const Status& why) {
  log_.error("an answer or update is not sent: {}", why.to_string());
  const std::uint64_t request_id = wire::request_id_of(command.message).value_or(0);
  // The second time: not even the reason fits.
  if (request_id == 0 || holds_alternative<wire::Reply>(command.message)) return;
  SendMessage refusal{
      command.peer,
      wire::Reply{request_id,
                  error(Code::kResourceExhausted,
                        "the head's answer does not fit into one message: {}. Ask for less: "
                        "without what has ended, or for fewer at once",
                        why.message()),
                  {}}};
  carry_out(refusal);
}

void Daemon::carry_out(ClosePeer& command) {
  const auto found = peers_.find(command.peer);
  if (found == peers_.end()) return;
  auto connection = found->second;
  peers_.erase(found);
  connection->close(kFlushMs);
  apply(PeerClosed{command.peer});
}

// One probe a node, which ends by itself; those of nodes that stay away are forgotten here.
void Daemon::carry_out(ProbeNode& command) {
  std::erase_if(probes_, [this](const auto& probe) {
    const auto node = state_.nodes().find(probe.first);
    return node == state_.nodes().end() || node->second.info.state == wire::NodeState::kDead;
  });
  probes_[command.node_id] = std::make_unique<net::PresenceProbe>(
      loop_, net::Address{command.endpoint.host, command.endpoint.port, {}},
      Deadline::after(command.time, loop_.clock()),
      [this, id = command.node_id, endpoint = command.endpoint] {
        apply(NodeGone{id, endpoint});
      });
}

// Whoever asked for it is answered first: on_end stops the loop, by which answers leave.
void Daemon::carry_out(EndHead& command) {
  if (!on_end_) return;
  const std::shared_ptr<void> all_closed(
      nullptr, [this, alive = std::weak_ptr<bool>(alive_), reason = command.reason](void*) {
        if (!alive.expired() && on_end_) std::exchange(on_end_, nullptr)(reason);
      });
  for (auto& [id, connection] : peers_) connection->close(kFlushMs, [all_closed] {});
}

void Daemon::arm() {
  const auto due = state_.next_deadline();
  if (due == timer_at_) return;
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  timer_at_ = due;
  if (!due) return;
  const auto time = loop_.clock().now();
  timer_ = loop_.call_after(*due > time ? *due - time : Duration::zero(),
                            [this, alive = std::weak_ptr<bool>(alive_)] {
                              if (alive.expired()) return;
                              timer_.reset();
                              timer_at_.reset();
                              apply(Tick{});
                            });
}

}  // namespace

Result<std::unique_ptr<HeadDaemon>> HeadDaemon::start(net::EventLoop& loop, HeadOptions options,
                                                      Journal& journal, Random& random, Logger log,
                                                      std::function<void(std::string)> on_end) {
  Timing timing = options.config;
  if (!options.config.heartbeats) timing.heartbeat_timeout = Duration::zero();
  TROUPE_RETURN_IF_ERROR(check(timing));
  auto daemon = std::make_unique<Daemon>(loop, std::move(options), journal, random, std::move(log),
                                         std::move(on_end));
  TROUPE_RETURN_IF_ERROR(daemon->start());
  return std::unique_ptr<HeadDaemon>(std::move(daemon));
}

}  // namespace troupe::scheduler
