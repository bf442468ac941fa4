// call_messages.h to and from call.capnp.

#include <utility>

#include "runtime/base/large_buffers.h"
#include "runtime/wire/call.capnp.h"
#include "runtime/wire/call_messages.h"
#include "runtime/wire/types_codec.h"

namespace troupe::wire {
namespace codec {
namespace {

using codec::read;
using codec::write;

void write(schema::MethodSignature::Builder out, const MethodSignature& m) {
  out.setName(text(m.name));
  out.setHash(m.hash);
}

constexpr auto kWriteOne = [](auto out, const auto& m) { write(out, m); };

void write(schema::Bind::Builder out, const Bind& m) {
  write(out.initActorId(), m.actor_id);
  out.setType(text(m.type));
  write(out.initCaller(), m.caller);
  write_list([&](auto count) { return out.initMethods(count); }, m.methods, kWriteOne);
  write(out.initCallerActor(), m.caller_actor);
  out.setCallerGeneration(m.caller_generation);
  out.setGeneration(m.generation);
}

void write(schema::BindReply::Builder out, const BindReply& m) {
  if (!m.status.ok()) write(out.initStatus(), m.status);
  out.setGeneration(m.generation);
}

void write(schema::Call::Builder out, const Call& m) {
  out.setSequence(m.sequence);
  out.setMethod(m.method);
  out.setTimeoutUs(m.timeout_us);
  out.setArguments(data(m.arguments));
}

void write(schema::CallReply::Builder out, const CallReply& m) {
  out.setSequence(m.sequence);
  if (!m.status.ok()) write(out.initStatus(), m.status);
  out.setResult(data(m.result));
}

void write(schema::Draining::Builder, const Draining&) {}

void write(schema::CallGivenBack::Builder out, const CallGivenBack& m) {
  out.setSequence(m.sequence);
  out.setArguments(data(m.arguments));
}

void write(schema::CancelCall::Builder out, const CancelCall& m) { out.setSequence(m.sequence); }

void write(schema::StreamItem::Builder out, const StreamItem& m) {
  out.setSequence(m.sequence);
  out.setIndex(m.index);
  out.setItem(data(m.item));
}

void write(schema::StreamCredit::Builder out, const StreamCredit& m) {
  out.setSequence(m.sequence);
  out.setItems(m.items);
}

void write(schema::CallProbe::Builder out, const CallProbe& m) {
  out.setSequence(m.sequence);
  write(out.initInitiator(), m.initiator);
  out.setInitiatorSequence(m.initiator_sequence);
  auto path = out.initPath(static_cast<capnp::uint>(m.path.size()));
  for (capnp::uint i = 0; i < path.size(); ++i) path.set(i, text(m.path[i]));
}

MethodSignature read(schema::MethodSignature::Reader in) {
  return {.name = text(in.getName()), .hash = in.getHash()};
}

constexpr auto kReadOne = [](auto in) { return read(in); };

Bind read(schema::Bind::Reader in) {
  return {.actor_id = read_id<ActorId>(in.getActorId()),
          .type = text(in.getType()),
          .caller = read_id<ClientId>(in.getCaller()),
          .methods = read_list(in.getMethods(), "methods", kReadOne),
          .caller_actor = read_id<ActorId>(in.getCallerActor()),
          .caller_generation = in.getCallerGeneration(),
          .generation = in.getGeneration()};
}

BindReply read(schema::BindReply::Reader in) {
  return {.status = read(in.getStatus()), .generation = in.getGeneration()};
}

Call read(schema::Call::Reader in) {
  return {.sequence = in.getSequence(),
          .method = in.getMethod(),
          .timeout_us = in.getTimeoutUs(),
          .arguments = data(in.getArguments())};
}

CallReply read(schema::CallReply::Reader in) {
  return {
      .sequence = in.getSequence(), .status = read(in.getStatus()), .result = data(in.getResult())};
}

Draining read(schema::Draining::Reader) { return {}; }

CallGivenBack read(schema::CallGivenBack::Reader in) {
  return {.sequence = in.getSequence(), .arguments = data(in.getArguments())};
}

CancelCall read(schema::CancelCall::Reader in) { return {.sequence = in.getSequence()}; }

StreamItem read(schema::StreamItem::Reader in) {
  return {.sequence = in.getSequence(), .index = in.getIndex(), .item = data(in.getItem())};
}

StreamCredit read(schema::StreamCredit::Reader in) {
  return {.sequence = in.getSequence(), .items = in.getItems()};
}

CallProbe read(schema::CallProbe::Reader in) {
  CallProbe probe{.sequence = in.getSequence(),
                  .initiator = read_id<ClientId>(in.getInitiator()),
                  .initiator_sequence = in.getInitiatorSequence(),
                  .path = {}};
  const auto path = in.getPath();
  probe.path.reserve(checked_count(path, "path"));
  for (const auto label : path) probe.path.push_back(text(label));
  return probe;
}

// Every message of the family, once: M(the schema's number, name).
#define TROUPE_CALL_MESSAGES(M)  \
  M(BIND, Bind)                  \
  M(BIND_REPLY, BindReply)       \
  M(CALL, Call)                  \
  M(CALL_REPLY, CallReply)       \
  M(CANCEL_CALL, CancelCall)     \
  M(STREAM_ITEM, StreamItem)     \
  M(STREAM_CREDIT, StreamCredit) \
  M(CALL_PROBE, CallProbe)       \
  M(DRAINING, Draining)          \
  M(CALL_GIVEN_BACK, CallGivenBack)

struct Put {
  schema::CallMessage::Builder root;
#define TROUPE_PUT(number, Name) \
  void operator()(const Name& message) { write(root.init##Name(), message); }
  TROUPE_CALL_MESSAGES(TROUPE_PUT)
#undef TROUPE_PUT
};

CallMessage get(schema::CallMessage::Reader root) {
  switch (root.which()) {
#define TROUPE_GET(number, Name)                     \
  case schema::CallMessage::number:                  \
    if (!root.has##Name()) throw Malformed{"empty"}; \
    return read(root.get##Name());
    TROUPE_CALL_MESSAGES(TROUPE_GET)
#undef TROUPE_GET
  }
  throw Malformed{fmt::format("message number {}, which this version does not know",
                              static_cast<unsigned>(root.which()))};
}

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
}  // namespace codec

Bytes encode(const CallMessage& message) {
  const std::size_t payload_bytes = codec::payload_bytes(message);
  const auto write_into = [&](capnp::MallocMessageBuilder&& builder) {
    std::visit(codec::Put{builder.initRoot<schema::CallMessage>()}, message);
    return codec::to_bytes(builder);
  };
  // Most calls and answers are small: their first segment is on the stack.
  if (payload_bytes > codec::kSmallPayloadBytes) {
    return write_into(capnp::MallocMessageBuilder(codec::segment_words(payload_bytes)));
  }
  capnp::word segment[codec::kSmallSegmentWords] = {};
  return write_into(capnp::MallocMessageBuilder(kj::arrayPtr(segment, codec::kSmallSegmentWords)));
}

EncodedCall encode_attached(CallMessage message) {
  std::shared_ptr<const Bytes> attachment;
  if (codec::payload_bytes(message) >= kAttachedBytesMin) {
    attachment = share_large_buffer(std::exchange(*codec::payload(message), {}));
  }
  return {encode(message), std::move(attachment)};
}

Result<CallMessage> decode_call(std::span<const std::byte> frame, Bytes attachment) {
  CallMessage message;
  TROUPE_RETURN_IF_ERROR(
      codec::decode_frame(frame, "call message", [&](capnp::MessageReader& reader) {
        message = codec::get(reader.getRoot<schema::CallMessage>());
      }));
  if (attachment.empty()) return message;
  Bytes* const bytes = codec::payload(message);
  if (bytes == nullptr || !bytes->empty()) {
    return error(Code::kProtocol, "a call message with {} bytes beside it that are not its own",
                 attachment.size());
  }
  *bytes = std::move(attachment);
  return message;
}

}  // namespace troupe::wire
