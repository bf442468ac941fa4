#include "actors/pipelines/stage_host.h"

#include <utility>

#include "troupe/serialize.h"

namespace troupe::detail {
namespace {

constexpr std::size_t kPipelineLinesMax = 256;

}  // namespace

void StageHost::accept(UniqueFd socket) {
  if (!host_page_ || lines_.size() >= kPipelineLinesMax) return;
  const std::uint64_t number = ++next_line_;
  const int fd = socket.get();
  lines_[number].socket = std::move(socket);
  loop_.watch_readable(fd, [weak = weak_from_this(), number] {
    if (const auto self = weak.lock()) self->on_readable(number);
  });
}

void StageHost::on_readable(std::uint64_t number) {
  const auto found = lines_.find(number);
  if (found == lines_.end()) return;
  auto arrived = receive_stage_message(found->second.socket.get());
  if (!arrived.ok() || !take(found->second, std::move(*arrived)).ok()) end_line(number);
}

Status StageHost::take(Line& line, ArrivedStageMessage arrived) {
  const StageMessage& message = arrived.message;
  if (message.kind == StageMessage::Kind::kPage && line.end) {
    return line.end->set_page(message.stage, message.actor, std::move(arrived.fd));
  }
  if (message.kind != StageMessage::Kind::kBind || line.end) {
    return error(Code::kProtocol, "a pipeline's owner said something out of turn");
  }
  const Status bound = bind(line, message.bytes, [this, &arrived](StageBinding binding) {
    return StageEnd::create(std::move(binding), std::move(arrived.fd), keeps_answers_,
                            loop_.clock());
  });
  const StageMessage answer{
      .kind = bound.ok() ? StageMessage::Kind::kBound : StageMessage::Kind::kRefused,
      .bytes = bound.ok() ? wire::Bytes() : encode_value(bound)};
  TROUPE_RETURN_IF_ERROR(send_stage_message(line.socket.get(), answer, host_page_->fd()));
  return bound;
}

Status StageHost::bind(Line& line, std::span<const std::byte> bytes,
                       const std::function<Result<std::shared_ptr<StageEnd>>(StageBinding)>& make) {
  StageBinding binding = TROUPE_TRY(decode_value<StageBinding>(bytes));
  const auto message = TROUPE_TRY(wire::decode_call(binding.bind));
  const auto* const bind = std::get_if<wire::Bind>(&message);
  if (bind == nullptr || bind->caller != binding.caller || bind->methods.size() != 1) {
    return error(Code::kProtocol, "a binding without its method");
  }
  auto end = TROUPE_TRY(make(std::move(binding)));
  TROUPE_RETURN_IF_ERROR(server_->bind_items(end, *bind));
  line.end = std::move(end);
  return {};
}

// --- owners on other nodes -----------------------------------------------------------------------

void StageHost::accept_remote(ByteStream stream, std::string peer) {
  if (!host_page_ || lines_.size() >= kPipelineLinesMax) return;
  const std::uint64_t number = ++next_line_;
  const auto connection = make_remote_line(loop_, std::move(stream), std::move(peer));
  lines_[number].connection = connection;
  connection->start({.on_frame = nullptr,
                     .on_attached =
                         [weak = weak_from_this(), number](std::span<const std::byte> frame,
                                                           net::Attachment&& attachment) {
                           const auto self = weak.lock();
                           if (!self) return;
                           const auto found = self->lines_.find(number);
                           if (found == self->lines_.end()) return;
                           const auto kept = found->second.connection;  // until this has returned
                           if (!self->take_frame(number, frame, attachment.bytes).ok()) {
                             self->end_line(number);
                           }
                         },
                     .on_close =
                         [weak = weak_from_this(), number](Status) {
                           if (const auto self = weak.lock()) self->end_line(number);
                         },
                     .on_drained = nullptr});
}

Status StageHost::take_frame(std::uint64_t number, std::span<const std::byte> encoded,
                             std::span<const std::byte> bytes) {
  using Kind = RemoteStageFrame::Kind;
  Line& line = lines_.at(number);
  const RemoteStageFrame frame = TROUPE_TRY(decode_stage_frame(encoded));
  if (frame.kind == Kind::kInput && line.end) {
    TROUPE_RETURN_IF_ERROR(line.end->input(frame.channel, frame.number, frame.failed, bytes));
    (void)waker_.wake();
    return {};
  }
  if (frame.kind == Kind::kGiven && line.end) {
    line.end->given(frame.number);
    return {};
  }
  if (frame.kind != Kind::kBind || line.end) {
    return error(Code::kProtocol, "a pipeline's owner said something out of turn");
  }
  // What cannot be sent is asked for again over the owner's next connection.
  const auto give_far = [weak = weak_from_this(), far = std::weak_ptr(line.connection),
                         &loop = loop_,
                         number](std::uint64_t item, bool failed, std::span<const std::byte> made,
                                 std::uint32_t reference_bytes) {
    const auto connection = far.lock();
    if (!connection) return;
    const Status sent = send_stage_frame(*connection,
                                         {.kind = Kind::kOutput,
                                          .number = item,
                                          .failed = failed,
                                          .reference_bytes = reference_bytes},
                                         made);
    if (sent.ok()) return;
    loop.post([weak, number] {
      if (const auto self = weak.lock()) self->end_line(number);
    });
  };
  const Status bound = bind(line, bytes, [&](StageBinding binding) {
    return StageEnd::create_remote(std::move(binding), give_far, keeps_answers_, loop_.clock());
  });
  TROUPE_RETURN_IF_ERROR(send_stage_frame(
      *line.connection, {.kind = bound.ok() ? Kind::kBound : Kind::kRefused, .number = process_},
      bound.ok() ? wire::Bytes() : encode_value(bound)));
  // One that was refused is told so before its connection ends: the owner closes it.
  return {};
}

void StageHost::end_line(std::uint64_t number) {
  auto line = lines_.extract(number);
  if (!line) return;
  if (line.mapped().socket.valid()) loop_.unwatch(line.mapped().socket.get());
  if (!line.mapped().end) return;
  line.mapped().end->detach();
  server_->unbind_items(line.mapped().end, line.mapped().end->binding().caller);
}

void StageHost::close() {
  while (!lines_.empty()) end_line(lines_.begin()->first);
}

}  // namespace troupe::detail
