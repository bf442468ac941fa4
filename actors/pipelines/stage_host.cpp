#include "actors/pipelines/stage_host.h"

#include <algorithm>
#include <utility>

#include "troupe/serialize.h"

namespace troupe::detail {
namespace {

constexpr std::size_t kPipelineLinesMax = 256;
// Of bindings without a connection: owners that come and die leave no more than this.
constexpr std::size_t kAwayMax = 256;
constexpr std::uint64_t kAwayBytesMax = std::uint64_t{1} << 30;

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
  StageBinding binding = TROUPE_TRY(decode_value<StageBinding>(message.bytes));
  const Status bound = bind(line, std::move(binding), [this, &arrived](StageBinding to) {
    return StageEnd::create(std::move(to), std::move(arrived.fd), keeps_answers_, loop_.clock());
  });
  const StageMessage answer{
      .kind = bound.ok() ? StageMessage::Kind::kBound : StageMessage::Kind::kRefused,
      .bytes = bound.ok() ? wire::Bytes() : encode_value(bound)};
  TROUPE_RETURN_IF_ERROR(send_stage_message(line.socket.get(), answer, host_page_->fd()));
  return bound;
}

Status StageHost::bind(Line& line, StageBinding binding,
                       const std::function<Result<std::shared_ptr<StageEnd>>(StageBinding)>& make) {
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
  if (frame.kind == Kind::kOver && line.end) {
    unbind(std::exchange(line.end, nullptr));
    return {};
  }
  if (frame.kind != Kind::kBind || line.end) {
    return error(Code::kProtocol, "a pipeline's owner said something out of turn");
  }
  return bind_remote(number, bytes);
}

Status StageHost::bind_remote(std::uint64_t number, std::span<const std::byte> bytes) {
  using Kind = RemoteStageFrame::Kind;
  Line& line = lines_.at(number);
  StageBinding binding = TROUPE_TRY(decode_value<StageBinding>(bytes));
  // That its earlier connection has broken may not be known here yet.
  const auto earlier = std::find_if(lines_.begin(), lines_.end(), [&](const auto& one) {
    const Line& other = one.second;
    return other.connection && other.end && other.end->binding().caller == binding.caller;
  });
  if (earlier != lines_.end()) end_line(earlier->first);
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
  const std::uint64_t first = binding.first;
  Status bound;
  const auto known = away_.extract(binding.caller);
  if (known) {
    line.end = std::move(known.mapped().end);
    line.end_number = known.mapped().end_number;
  } else {
    line.end_number = SystemRandom().next_u64() | 1;
    bound = bind(line, std::move(binding), [&](StageBinding to) {
      return StageEnd::create_remote(std::move(to), give_far, keeps_answers_, loop_.clock());
    });
  }
  // One that was refused is told so before its connection ends: the owner closes it.
  TROUPE_RETURN_IF_ERROR(send_stage_frame(*line.connection,
                                          {.kind = bound.ok() ? Kind::kBound : Kind::kRefused,
                                           .number = line.end_number,
                                           .process = process_},
                                          bound.ok() ? wire::Bytes() : encode_value(bound)));
  if (known) {
    line.end->go_on(give_far, first);
    (void)waker_.wake();
  }
  return {};
}

void StageHost::end_line(std::uint64_t number) {
  auto line = lines_.extract(number);
  if (!line) return;
  if (line.mapped().socket.valid()) loop_.unwatch(line.mapped().socket.get());
  if (!line.mapped().end) return;
  if (line.mapped().connection) return wait_for_owner(std::move(line.mapped()));
  unbind(line.mapped().end);
}

// The actor goes on with what it was passed.
void StageHost::wait_for_owner(Line line) {
  line.connection = nullptr;
  const ClientId owner = line.end->binding().caller;
  line.absence = ++absences_;
  const std::chrono::milliseconds patience(line.end->binding().reconnect_timeout_ms);
  loop_.call_after(patience, [weak = weak_from_this(), owner, absence = line.absence] {
    const auto self = weak.lock();
    if (!self) return;
    const auto found = self->away_.find(owner);
    if (found == self->away_.end() || found->second.absence != absence) return;
    self->unbind(self->away_.extract(found).mapped().end);
  });
  away_.insert_or_assign(owner, std::move(line));
  forget_too_many();
}

// Those that have been away for longest; never the last one.
void StageHost::forget_too_many() {
  const auto too_many = [this] {
    std::uint64_t bytes = 0;
    for (const auto& [owner, line] : away_) bytes += line.end->memory_bytes();
    return away_.size() > 1 && (away_.size() > kAwayMax || bytes > kAwayBytesMax);
  };
  while (too_many()) {
    const auto oldest = std::min_element(
        away_.begin(), away_.end(),
        [](const auto& a, const auto& b) { return a.second.absence < b.second.absence; });
    unbind(away_.extract(oldest).mapped().end);
  }
}

void StageHost::unbind(const std::shared_ptr<StageEnd>& end) {
  end->detach();
  server_->unbind_items(end, end->binding().caller);
}

void StageHost::close() {
  while (!lines_.empty()) end_line(lines_.begin()->first);
  for (const auto& [owner, line] : std::exchange(away_, {})) unbind(line.end);
}

}  // namespace troupe::detail
