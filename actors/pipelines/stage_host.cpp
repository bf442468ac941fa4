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
  const Status bound = bind(line, std::move(arrived));
  const StageMessage answer{
      .kind = bound.ok() ? StageMessage::Kind::kBound : StageMessage::Kind::kRefused,
      .bytes = bound.ok() ? wire::Bytes() : encode_value(bound)};
  TROUPE_RETURN_IF_ERROR(send_stage_message(line.socket.get(), answer, host_page_->fd()));
  return bound;
}

Status StageHost::bind(Line& line, ArrivedStageMessage arrived) {
  StageBinding binding = TROUPE_TRY(decode_value<StageBinding>(arrived.message.bytes));
  const auto message = TROUPE_TRY(wire::decode_call(binding.bind));
  const auto* const bind = std::get_if<wire::Bind>(&message);
  if (bind == nullptr || bind->caller != binding.caller || bind->methods.size() != 1) {
    return error(Code::kProtocol, "a binding without its method");
  }
  auto end = TROUPE_TRY(
      StageEnd::create(std::move(binding), std::move(arrived.fd), keeps_answers_, loop_.clock()));
  TROUPE_RETURN_IF_ERROR(server_->bind_items(end, *bind));
  line.end = std::move(end);
  return {};
}

void StageHost::end_line(std::uint64_t number) {
  auto line = lines_.extract(number);
  if (!line) return;
  loop_.unwatch(line.mapped().socket.get());
  if (!line.mapped().end) return;
  line.mapped().end->detach();
  server_->unbind_items(line.mapped().end, line.mapped().end->binding().caller);
}

void StageHost::close() {
  while (!lines_.empty()) end_line(lines_.begin()->first);
}

}  // namespace troupe::detail
