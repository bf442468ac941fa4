#include "tests/scheduler/node/fake_head.h"

#include "runtime/base/check.h"

namespace troupe::scheduler::tests {

FakeHead::FakeHead(net::Token token, Options options)
    : token_(std::move(token)), options_(std::move(options)) {
  on_loop(thread_.loop(), [this] {
    net::ListenOptions listen;
    listen.host = "127.0.0.1";
    listen.port = options_.port;
    auto listener =
        net::listen(thread_.loop(), listen, token_, random_, Logger::discard(),
                    [this](net::AcceptedSocket accepted) { accept(std::move(accepted)); });
    TROUPE_CHECK(listener.ok(), "{}", listener.status().to_string());
    listener_ = std::move(*listener);
    port_ = listener_->address().port;
  });
}

FakeHead::~FakeHead() {
  on_loop(thread_.loop(), [this] {
    listener_.reset();
    connection_.reset();
  });
}

void FakeHead::accept(net::AcceptedSocket accepted) {
  connection_ = net::make_connection(thread_.loop(), std::move(accepted.socket), accepted.peer);
  connection_->start({.on_frame =
                          [this](std::span<const std::byte> frame) {
                            auto message = wire::decode_control(frame);
                            TROUPE_CHECK(message.ok());
                            received(std::move(*message));
                          },
                      .on_close = [](Status) {}});
}

void FakeHead::received(wire::ControlMessage message) {
  if (const auto* registration = get_if<wire::RegisterNode>(&message)) {
    wire::RegisterNodeReply reply;
    reply.request_id = registration->request_id;
    reply.status = options_.refusal;
    reply.name = "named";
    reply.heartbeat_interval_ms = options_.heartbeat_interval_ms;
    reply.heartbeat_timeout_ms = options_.heartbeat_timeout_ms;
    if (answers_) (void)connection_->send(wire::encode(reply));
  } else if (const auto* heartbeat = get_if<wire::Heartbeat>(&message)) {
    if (answers_) (void)connection_->send(wire::encode(*heartbeat));
  }
  MutexLock lock(mutex_);
  said_.push_back(std::move(message));
  changed_.notify_all();
}

void FakeHead::send(wire::ControlMessage message) {
  on_loop(thread_.loop(), [&] {
    TROUPE_CHECK(connection_ != nullptr);
    (void)connection_->send(wire::encode(message));
  });
}

}  // namespace troupe::scheduler::tests
