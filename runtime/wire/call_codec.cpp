// call_messages.h as bytes: what is encoded and decoded for each call.

#include <utility>

#include "runtime/base/large_buffers.h"
#include "runtime/wire/call_messages.h"
#include "runtime/wire/codec.h"

namespace troupe::wire {
namespace {

constexpr std::size_t kSmallPayloadBytes = 256;
// With what else a call or an answer holds; whatever needs more goes on in segments on the heap.
constexpr std::size_t kSmallSegmentWords = 24 + kSmallPayloadBytes / sizeof(capnp::word);

// The one field that may be large; null where the message has none.
template <typename AnyMessage>
auto payload(AnyMessage& message) -> decltype(&std::get_if<Call>(&message)->arguments) {
  if (auto* call = std::get_if<Call>(&message)) return &call->arguments;
  if (auto* reply = std::get_if<CallReply>(&message)) return &reply->result;
  if (auto* item = std::get_if<StreamItem>(&message)) return &item->item;
  if (auto* back = std::get_if<CallGivenBack>(&message)) return &back->arguments;
  return nullptr;
}
std::size_t payload_bytes(const CallMessage& message) {
  const Bytes* const bytes = payload(message);
  return bytes != nullptr ? bytes->size() : 0;
}

}  // namespace

Bytes encode(const CallMessage& message) {
  const std::size_t bytes = payload_bytes(message);
  const auto write_into = [&](capnp::MallocMessageBuilder&& builder) {
    return codec::encode(message, builder);
  };
  // Most calls and answers are small: their first segment is on the stack.
  if (bytes > kSmallPayloadBytes) {
    return write_into(capnp::MallocMessageBuilder(codec::segment_words(bytes)));
  }
  capnp::word segment[kSmallSegmentWords] = {};
  return write_into(capnp::MallocMessageBuilder(kj::arrayPtr(segment, kSmallSegmentWords)));
}

EncodedCall encode_attached(CallMessage message) {
  std::shared_ptr<const Bytes> attachment;
  if (payload_bytes(message) >= kAttachedBytesMin) {
    attachment = share_large_buffer(std::exchange(*payload(message), {}));
  }
  return {encode(message), std::move(attachment)};
}

Result<CallMessage> decode_call(std::span<const std::byte> frame, Bytes attachment) {
  CallMessage message;
  TROUPE_RETURN_IF_ERROR(codec::decode(frame, "call message", message));
  if (attachment.empty()) return message;
  Bytes* const bytes = payload(message);
  if (bytes == nullptr || !bytes->empty()) {
    return error(Code::kProtocol, "a call message with {} bytes beside it that are not its own",
                 attachment.size());
  }
  *bytes = std::move(attachment);
  return message;
}

}  // namespace troupe::wire
