#include "actors/channel_link.h"

#include <chrono>
#include <utility>

#include "actors/actor_channel.h"
#include "runtime/base/large_buffers.h"
#include "runtime/base/limits.h"

namespace troupe::detail {
namespace {

// A caller with more calls than these on their way streams them.
constexpr std::size_t kCallsInStream = 8;
// Of small calls, how many go before it is looked at how many bytes wait to be sent.
constexpr std::uint64_t kCallsPerLook = 64;

}  // namespace

ChannelLink::ChannelLink(std::weak_ptr<ActorChannel> channel,
                         std::shared_ptr<const ChannelEnvironment> environment,
                         std::uint64_t attempt, net::Address address, ByteStream socket,
                         const std::string& peer)
    : channel_(std::move(channel)),
      environment_(std::move(environment)),
      attempt_(attempt),
      address_(std::move(address)),
      connection_(net::make_connection(*environment_->loop, std::move(socket), peer,
                                       environment_->connections)) {}

net::EventLoop& ChannelLink::loop() const { return *environment_->loop; }

void ChannelLink::start() {
  const std::weak_ptr<ChannelLink> weak = weak_from_this();
  connection_->start({.on_frame = {},
                      .on_attached =
                          [weak](std::span<const std::byte> frame, net::Attachment&& attachment) {
                            const auto self = weak.lock();
                            const auto channel = self ? self->channel_.lock() : nullptr;
                            if (channel) channel->on_frame(*self, frame, std::move(attachment));
                          },
                      .on_close =
                          [weak](const Status& why) {
                            const auto self = weak.lock();
                            const auto channel = self ? self->channel_.lock() : nullptr;
                            if (channel) channel->on_ended(*self, why);
                          },
                      .on_drained =
                          [weak] {
                            const auto self = weak.lock();
                            const auto channel = self ? self->channel_.lock() : nullptr;
                            if (channel) channel->on_writable(*self);
                          }});
}

Status ChannelLink::send(const wire::CallMessage& message) {
  return connection_->send(wire::encode(message));
}

void ChannelLink::end(const Status& why) {
  connection_->close();
  loop().post([weak = weak_from_this(), why] {
    const auto self = weak.lock();
    const auto channel = self ? self->channel_.lock() : nullptr;
    if (channel) channel->on_ended(*self, why);
  });
}

void ChannelLink::close() {
  connection_->close();
  if (CallerRing* const ring = this->ring()) ring->close();
  loop().post([self = shared_from_this()] {
    if (const CallerRing* const ring = self->ring()) self->loop().unwatch(ring->wake_fd());
    self->slot_.reset();
  });
}

SendOutcome ChannelLink::send_call(std::uint64_t sequence, CallRequest& request,
                                   std::size_t pending_calls) {
  if (auto outcome = send_by_ring(sequence, request, pending_calls)) return std::move(*outcome);
  return send_by_socket(sequence, request, pending_calls);
}

SendOutcome ChannelLink::send_by_socket(std::uint64_t sequence, CallRequest& request,
                                        std::size_t pending_calls) {
  // Many calls, or large ones, fill a connection: the rest waits, in order. Small ones do so
  // slowly, so that not each of them needs to look.
  const bool large = request.argument_bytes().size() >= wire::kAttachedBytesMin;
  if ((large || sequence % kCallsPerLook == 0) &&
      connection_->queued_bytes() > limits::kUnsentArgumentBytesMax) {
    return {Sent::kFull};
  }
  if (request.lent) {
    const auto bytes = request.lent->bytes();
    request.arguments.assign(bytes.begin(), bytes.end());
    request.lent.reset();
  }
  if (request.arguments.size() >= wire::kAttachedBytesMin) {
    request.attached = share_large_buffer(std::exchange(request.arguments, {}));
  }
  wire::Call message;
  message.sequence = sequence;
  message.method = request.method;
  message.timeout_us =
      std::chrono::duration_cast<std::chrono::microseconds>(request.deadline.remaining()).count();
  message.arguments = std::move(request.arguments);
  wire::CallMessage envelope(std::move(message));
  wire::Bytes frame = wire::encode(envelope);
  request.arguments = std::move(std::get<wire::Call>(envelope).arguments);
  Status sent;
  if (request.attached) {
    sent = connection_->send(std::move(frame), request.attached);
  } else if (pending_calls > kCallsInStream) {
    // Who has many calls on their way does not wait for each: they leave together.
    sent = connection_->send_soon(std::move(frame));
  } else {
    sent = connection_->send(std::move(frame));
  }
  if (sent.ok()) {
    ++socket_calls_;
    return {};
  }
  if (sent.code() == Code::kUnavailable) return {Sent::kEnded};
  return {Sent::kRefused, std::move(sent)};
}

}  // namespace troupe::detail
