#include "scheduler/node/head_link.h"

#include <algorithm>
#include <utility>

namespace troupe::scheduler {
namespace {

constexpr Duration kAttempt = std::chrono::seconds(5);
constexpr Duration kPauseFirst = std::chrono::milliseconds(20);
constexpr Duration kPauseMost = std::chrono::milliseconds(500);
constexpr std::int64_t kFlushMs = 1000;

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

HeadLink::HeadLink(net::EventLoop& loop, HeadLinkOptions options, Logger log, Handlers handlers)
    : loop_(loop),
      options_(std::move(options)),
      log_(std::move(log)),
      handlers_(std::move(handlers)),
      pause_(kPauseFirst) {}

HeadLink::~HeadLink() = default;

void HeadLink::after(Duration delay, std::function<void()> work) {
  loop_.call_after(delay, [this, alive = std::weak_ptr<bool>(alive_), work = std::move(work)] {
    if (!alive.expired() && !ended_) work();
  });
}

void HeadLink::start() {
  away_since_ = loop_.clock().now();
  connect_now();
}

void HeadLink::connect_now() {
  net::connect(loop_, options_.head, "head", options_.token, Deadline::after(kAttempt, loop_.clock()),
               [this, alive = std::weak_ptr<bool>(alive_)](Result<UniqueFd> socket) {
                 if (alive.expired() || ended_) return;
                 if (socket.ok()) {
                   connected(std::move(*socket));
                 } else if (socket.status().code() == Code::kUnauthenticated ||
                            socket.status().code() == Code::kProtocol) {
                   end(socket.status());
                 } else {
                   try_later(socket.status());
                 }
               });
}

void HeadLink::connected(UniqueFd socket) {
  connection_ = net::make_connection(loop_, std::move(socket), options_.head.to_string());
  const std::weak_ptr<bool> alive = alive_;
  connection_->start({.on_frame =
                          [this, alive](std::span<const std::byte> frame) {
                            if (!alive.expired()) received(frame);
                          },
                      .on_close =
                          [this, alive](Status why) {
                            if (!alive.expired()) lost(why);
                          }});
  auto registration = handlers_.make_registration();
  registration.request_id = ++request_;
  node_id_ = registration.node.node_id;
  send(registration);
}

void HeadLink::received(std::span<const std::byte> frame) {
  auto message = wire::decode_control(frame);
  if (!message.ok()) {
    connection_->close();
    lost(message.status());
    return;
  }
  last_heard_ = loop_.clock().now();
  if (std::holds_alternative<wire::Heartbeat>(*message)) return;
  if (const auto* reply = std::get_if<wire::RegisterNodeReply>(&*message)) {
    if (reply->request_id == request_) registered(*reply);
  } else {
    handlers_.on_message(std::move(*message));
  }
}

void HeadLink::registered(const wire::RegisterNodeReply& reply) {
  if (!reply.status.ok()) {
    end(reply.status);
    return;
  }
  const bool first = !std::exchange(ever_registered_, true);
  registered_ = true;
  fenced_ = false;
  pause_ = kPauseFirst;
  heartbeat_interval_ = std::chrono::milliseconds(reply.heartbeat_interval_ms);
  if (reply.heartbeat_timeout_ms > 0) {
    heartbeat_timeout_ = std::chrono::milliseconds(reply.heartbeat_timeout_ms);
  }
  if (heartbeat_interval_ > Duration::zero() && first) beat();
  handlers_.on_registered(reply);
}

void HeadLink::beat() {
  if (registered_ && loop_.clock().now() - last_heard_ > heartbeat_timeout_) {
    // The connection looks alive, but nothing comes over it: a link that is down.
    connection_->close();
    lost(error(Code::kUnavailable, "it has not answered for {:.1f} s",
               seconds(loop_.clock().now() - last_heard_)));
  }
  if (registered_) send(wire::Heartbeat{node_id_, ++beats_});
  after(heartbeat_interval_, [this] { beat(); });
}

void HeadLink::send(const wire::ControlMessage& message) {
  if (!connection_) return;
  if (!connection_->send(wire::encode(message)).ok()) connection_->close();
}

void HeadLink::lost(const Status& why) {
  if (ended_) return;
  connection_.reset();
  if (std::exchange(registered_, false)) {
    away_since_ = loop_.clock().now();
    log_.warning("the head at {} is away: {}", options_.head.to_string(), why.to_string());
    after(heartbeat_timeout_, [this, since = away_since_] {
      if (!registered_ && since == away_since_ && !std::exchange(fenced_, true)) {
        handlers_.on_fenced();
      }
    });
  }
  try_later(why);
}

void HeadLink::try_later(const Status& why) {
  const Duration away = loop_.clock().now() - away_since_;
  const Duration limit = ever_registered_ ? options_.return_timeout : options_.join_timeout;
  if (away >= limit) {
    end(error(Code::kDeadlineExceeded, "no head answered at {} for {:.0f} s; the last attempt: {}",
              options_.head.to_string(), seconds(away), why.to_string()));
    return;
  }
  if (!ever_registered_ && away > std::chrono::seconds(1) && !std::exchange(told_waiting_, true)) {
    log_.info("waiting up to {:.0f} s for the head at {}: {}", seconds(limit),
              options_.head.to_string(), why.to_string());
  }
  after(std::min(pause_, limit - away), [this] { connect_now(); });
  pause_ = std::min(2 * pause_, kPauseMost);
}

void HeadLink::end(Status why) {
  if (std::exchange(ended_, true)) return;
  registered_ = false;
  if (connection_) connection_->close();
  connection_.reset();
  handlers_.on_end(std::move(why));
}

void HeadLink::close() {
  if (std::exchange(ended_, true)) return;
  if (connection_) connection_->close(kFlushMs);
  connection_.reset();
}

}  // namespace troupe::scheduler
