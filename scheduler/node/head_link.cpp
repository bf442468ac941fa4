#include "scheduler/node/head_link.h"

#include <utility>

#include "runtime/base/timing.h"

namespace troupe::scheduler {
struct HeadLink::State : std::enable_shared_from_this<HeadLink::State> {
  State(net::EventLoop& l, net::Address a, net::Token t, Handlers h)
      : loop(l), address(std::move(a)), token(std::move(t)), handlers(std::move(h)) {}

  void connected(Result<ByteStream> socket);
  void received(std::span<const std::byte> frame);
  void down(Status why) {
    connection.reset();
    handlers.on_down(std::move(why).with("head", address.to_string()));
  }

  net::EventLoop& loop;
  const net::Address address;
  const net::Token token;
  const Handlers handlers;
  std::shared_ptr<net::Connection> connection;
  std::uint64_t attempt = 0;  // what belongs to an earlier one is ignored
};

void HeadLink::State::connected(Result<ByteStream> socket) {
  if (!socket.ok()) return down(socket.status());
  connection = net::make_connection(loop, std::move(*socket), address.to_string());
  const std::weak_ptr<State> weak = weak_from_this();
  connection->start({.on_frame =
                         [weak, now = attempt](std::span<const std::byte> frame) {
                           auto self = weak.lock();
                           if (self && self->attempt == now) self->received(frame);
                         },
                     .on_close =
                         [weak, now = attempt](Status why) {
                           auto self = weak.lock();
                           if (self && self->attempt == now) self->down(std::move(why));
                         }});
  handlers.on_up();
}

void HeadLink::State::received(std::span<const std::byte> frame) {
  auto message = wire::decode_control(frame);
  if (message.ok()) return handlers.on_message(std::move(*message));
  ++attempt;
  auto damaged = std::exchange(connection, nullptr);
  if (damaged) damaged->close();
  down(error(Code::kUnavailable, "the head sent what is no message: {}",
             message.status().to_string()));
}

HeadLink::HeadLink(net::EventLoop& loop, net::Address address, net::Token token, Handlers handlers)
    : state_(std::make_shared<State>(loop, std::move(address), std::move(token),
                                     std::move(handlers))) {}

HeadLink::~HeadLink() { drop(); }

void HeadLink::connect() {
  drop();
  net::connect(
      state_->loop, state_->address, "head", state_->token,
      Deadline::after(kTiming.node_attempt_timeout, state_->loop.clock()),
      [weak = std::weak_ptr<State>(state_), now = state_->attempt](Result<ByteStream> socket) {
        auto self = weak.lock();
        if (self && self->attempt == now) self->connected(std::move(socket));
      });
}

void HeadLink::drop() {
  ++state_->attempt;
  if (auto connection = std::exchange(state_->connection, nullptr)) connection->close();
}

Status HeadLink::send(const wire::ControlMessage& message) {
  if (!state_->connection) return Status(Code::kUnavailable, "there is no connection to the head");
  return state_->connection->send(wire::encode(message));
}

void HeadLink::flush_and_close(std::int64_t flush_ms) {
  ++state_->attempt;
  if (auto connection = std::exchange(state_->connection, nullptr)) connection->close(flush_ms);
}

}  // namespace troupe::scheduler
