#include "scheduler/head/head_daemon.h"

#include <map>
#include <optional>
#include <utility>

#include "runtime/net/connection.h"

namespace troupe::scheduler {
namespace {

// How long the last answers of an ending head may take to leave.
constexpr std::int64_t kFlushMs = 1000;

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
        state_(options_.config) {}

  ~Daemon() override {
    *alive_ = false;
    if (timer_) loop_.cancel(*timer_);
    listener_.reset();
    peers_.clear();
  }

  Status start();
  const net::Address& address() const override { return listener_->address(); }
  const HeadState& state() const override { return state_; }

 private:
  Moment now() const { return {loop_.clock().now(), loop_.clock().unix_time_us()}; }
  Status check_target(const std::string& target) const;
  void accept(net::AcceptedSocket accepted);
  void received(PeerId peer, std::span<const std::byte> frame);
  void closed(PeerId peer);
  void apply(Event event);
  void collect(Outcome outcome);
  void flush();
  void keep();
  void carry_out(SendMessage& command);
  void carry_out(ClosePeer& command);
  void carry_out(EndHead& command);
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
  std::vector<Command> commands_;
  std::vector<Delta> deltas_;
  bool flush_posted_ = false;
  std::optional<net::TimerId> timer_;
  std::optional<TimePoint> timer_at_;
  std::optional<TimePoint> journal_failed_at_;
};

Status Daemon::start() {
  for (const Delta& delta : TROUPE_TRY(journal_.replay())) {
    TROUPE_RETURN_IF_ERROR(state_.replay(delta));
  }
  const bool known = !state_.nodes().empty() || !state_.actors().empty();
  if (known) {
    log_.info("the journal knows {} nodes and {} actors", state_.nodes().size(),
              state_.actors().size());
  }
  TROUPE_RETURN_IF_ERROR(journal_.rewrite(state_.snapshot()));
  net::ListenOptions listen;
  listen.host = options_.host;
  listen.port = options_.port;
  listener_ = TROUPE_TRY(net::listen(
      loop_, listen, options_.token, random_, log_,
      [this](net::AcceptedSocket accepted) { accept(std::move(accepted)); },
      [this](const std::string& target) { return check_target(target); }));
  collect(state_.resume(now()));
  flush();
  return {};
}

Status Daemon::check_target(const std::string& target) const {
  if (target == "head") return {};
  return error(Code::kNotFound, "this is a head; it knows no '{}'", target);
}

void Daemon::accept(net::AcceptedSocket accepted) {
  const PeerId peer = next_peer_++;
  auto connection = net::make_connection(loop_, std::move(accepted.socket), accepted.peer);
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
  apply(MessageArrived{peer, std::move(*message)});
}

void Daemon::closed(PeerId peer) {
  if (peers_.erase(peer) > 0) apply(PeerClosed{peer});
}

void Daemon::apply(Event event) { collect(state_.apply(std::move(event), now())); }

void Daemon::collect(Outcome outcome) {
  std::move(outcome.commands.begin(), outcome.commands.end(), std::back_inserter(commands_));
  std::move(outcome.deltas.begin(), outcome.deltas.end(), std::back_inserter(deltas_));
  arm();
  if (!std::exchange(flush_posted_, true)) {
    // Behind what the loop has ready now, so that its decisions share one sync.
    loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) flush();
    });
  }
}

void Daemon::keep() {
  if (deltas_.empty() && !journal_failed_at_) return;
  const auto time = loop_.clock().now();
  if (journal_failed_at_ && time - *journal_failed_at_ < options_.journal_retry) {
    deltas_.clear();  // they are part of the next rewrite
    return;
  }
  Status kept = journal_failed_at_ || journal_.wants_rewrite() ? journal_.rewrite(state_.snapshot())
                                                               : journal_.append(deltas_);
  deltas_.clear();
  if (kept.ok()) {
    if (journal_failed_at_) log_.info("the journal is written again");
    journal_failed_at_.reset();
  } else {
    // The cluster goes on; only a restart of the head meanwhile would forget.
    log_.error("the journal cannot be written: {}", kept.to_string());
    journal_failed_at_ = time;
  }
}

void Daemon::flush() {
  flush_posted_ = false;
  keep();
  auto commands = std::exchange(commands_, {});
  const std::weak_ptr<bool> alive = alive_;
  for (Command& command : commands) {
    std::visit([this](auto& c) { carry_out(c); }, command);
    if (alive.expired()) return;
  }
}

void Daemon::carry_out(SendMessage& command) {
  const auto found = peers_.find(command.peer);
  if (found == peers_.end()) return;
  const Status sent = found->second->send(wire::encode(command.message));
  if (sent.ok()) return;
  // A peer that does not read is cut off; it comes back and is told the present state.
  if (sent.code() == Code::kOverloaded) {
    log_.warning("{} does not read: closed", found->second->peer());
    found->second->close();
    closed(command.peer);
  }
}

void Daemon::carry_out(ClosePeer& command) {
  const auto found = peers_.find(command.peer);
  if (found == peers_.end()) return;
  auto connection = found->second;
  peers_.erase(found);
  connection->close(kFlushMs);
  apply(PeerClosed{command.peer});
}

void Daemon::carry_out(EndHead& command) {
  for (auto& [id, connection] : peers_) connection->close(kFlushMs);
  if (on_end_) std::exchange(on_end_, nullptr)(command.reason);
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
  auto daemon = std::make_unique<Daemon>(loop, std::move(options), journal, random, std::move(log),
                                         std::move(on_end));
  TROUPE_RETURN_IF_ERROR(daemon->start());
  return std::unique_ptr<HeadDaemon>(std::move(daemon));
}

}  // namespace troupe::scheduler
