// host_messages.h to and from host.capnp.

#include "runtime/wire/host.capnp.h"
#include "runtime/wire/host_messages.h"
#include "runtime/wire/types_codec.h"

namespace troupe::wire {
namespace codec {
namespace {

using codec::read;
using codec::write;

void write(schema::HostStart::Builder out, const HostStart& m) {
  write(out.initSpec(), m.spec);
  out.setGeneration(m.generation);
  write(out.initNodeId(), m.node_id);
  write(out.initNodeEndpoint(), m.node_endpoint);
  write(out.initHeadEndpoint(), m.head_endpoint);
  out.setToken(data(m.token));
  out.setHasSavedState(m.has_saved_state);
  out.setSecurity(m.security);
  out.setProtocolVersion(m.protocol_version);
  out.setStateLostWith(text(m.state_lost_with));
}

void write(schema::HostConnection::Builder out, const HostConnection& m) {
  out.setTarget(text(m.target));
  out.setPeer(text(m.peer));
  out.setSameNode(m.same_node);
  out.setUntouched(m.untouched);
}

void write(schema::HostStop::Builder out, const HostStop& m) {
  out.setGraceMs(m.grace_ms);
  out.setReason(text(m.reason));
  out.setDrain(m.drain);
  out.setComesBack(m.comes_back);
}

void write(schema::HostReady::Builder out, const HostReady& m) {
  out.setProtocolVersion(m.protocol_version);
}

void write(schema::HostFailed::Builder out, const HostFailed& m) {
  if (!m.status.ok()) write(out.initStatus(), m.status);
}

void write(schema::HostSavedState::Builder out, const HostSavedState& m) {
  out.setGeneration(m.generation);
}

void write(schema::HostKeepSegment::Builder out, const HostKeepSegment& m) {
  out.setName(text(m.name));
  out.setDrop(m.drop);
}

void write(schema::HostAttachSegment::Builder out, const HostAttachSegment& m) {
  out.setRequestId(m.request_id);
  out.setName(text(m.name));
  out.setTimeoutMs(m.timeout_ms);
}

void write(schema::HostAttachReply::Builder out, const HostAttachReply& m) {
  out.setRequestId(m.request_id);
  if (!m.status.ok()) write(out.initStatus(), m.status);
}

void write(schema::HostDrained::Builder out, const HostDrained& m) {
  out.setCallsDropped(m.calls_dropped);
}

void write(schema::HostHealth::Builder out, const HostHealth& m) {
  if (!m.status.ok()) write(out.initStatus(), m.status);
}

HostStart read(schema::HostStart::Reader in) {
  return {.spec = read(in.getSpec()),
          .generation = in.getGeneration(),
          .node_id = read_id<NodeId>(in.getNodeId()),
          .node_endpoint = read(in.getNodeEndpoint()),
          .head_endpoint = read(in.getHeadEndpoint()),
          .token = data(in.getToken()),
          .has_saved_state = in.getHasSavedState(),
          .security = in.getSecurity(),
          .protocol_version = in.getProtocolVersion(),
          .state_lost_with = text(in.getStateLostWith())};
}

HostConnection read(schema::HostConnection::Reader in) {
  return {.target = text(in.getTarget()),
          .peer = text(in.getPeer()),
          .same_node = in.getSameNode(),
          .untouched = in.getUntouched()};
}

HostStop read(schema::HostStop::Reader in) {
  return {.grace_ms = in.getGraceMs(),
          .reason = text(in.getReason()),
          .drain = in.getDrain(),
          .comes_back = in.getComesBack()};
}

HostReady read(schema::HostReady::Reader in) {
  return {.protocol_version = in.getProtocolVersion()};
}

HostFailed read(schema::HostFailed::Reader in) { return {.status = read(in.getStatus())}; }

HostSavedState read(schema::HostSavedState::Reader in) {
  return {.generation = in.getGeneration()};
}

HostKeepSegment read(schema::HostKeepSegment::Reader in) {
  return {.name = text(in.getName()), .drop = in.getDrop()};
}

HostAttachSegment read(schema::HostAttachSegment::Reader in) {
  return {
      .request_id = in.getRequestId(), .name = text(in.getName()), .timeout_ms = in.getTimeoutMs()};
}

HostAttachReply read(schema::HostAttachReply::Reader in) {
  return {.request_id = in.getRequestId(), .status = read(in.getStatus())};
}

HostDrained read(schema::HostDrained::Reader in) { return {.calls_dropped = in.getCallsDropped()}; }

HostHealth read(schema::HostHealth::Reader in) { return {.status = read(in.getStatus())}; }

// Every message of the family, once: M(the schema's number, name).
#define TROUPE_HOST_MESSAGES(M)             \
  M(HOST_START, HostStart)                  \
  M(HOST_CONNECTION, HostConnection)        \
  M(HOST_STOP, HostStop)                    \
  M(HOST_READY, HostReady)                  \
  M(HOST_FAILED, HostFailed)                \
  M(HOST_SAVED_STATE, HostSavedState)       \
  M(HOST_KEEP_SEGMENT, HostKeepSegment)     \
  M(HOST_ATTACH_SEGMENT, HostAttachSegment) \
  M(HOST_ATTACH_REPLY, HostAttachReply)     \
  M(HOST_DRAINED, HostDrained)              \
  M(HOST_HEALTH, HostHealth)

struct Put {
  schema::HostMessage::Builder root;
#define TROUPE_PUT(number, Name) \
  void operator()(const Name& message) { write(root.init##Name(), message); }
  TROUPE_HOST_MESSAGES(TROUPE_PUT)
#undef TROUPE_PUT
};

HostMessage get(schema::HostMessage::Reader root) {
  switch (root.which()) {
#define TROUPE_GET(number, Name)                     \
  case schema::HostMessage::number:                  \
    if (!root.has##Name()) throw Malformed{"empty"}; \
    return read(root.get##Name());
    TROUPE_HOST_MESSAGES(TROUPE_GET)
#undef TROUPE_GET
  }
  throw Malformed{fmt::format("message number {}, which this version does not know",
                              static_cast<unsigned>(root.which()))};
}

}  // namespace
}  // namespace codec

Bytes encode(const HostMessage& message) {
  capnp::MallocMessageBuilder builder(codec::segment_words(0));
  visit(codec::Put{builder.initRoot<schema::HostMessage>()}, message);
  return codec::to_bytes(builder);
}

Result<HostMessage> decode_host(std::span<const std::byte> frame) {
  HostMessage message;
  TROUPE_RETURN_IF_ERROR(
      codec::decode_frame(frame, "host message", [&](capnp::MessageReader& reader) {
        message = codec::get(reader.getRoot<schema::HostMessage>());
      }));
  return message;
}

}  // namespace troupe::wire

namespace troupe {
template class Variant<wire::HostMessages>;
}  // namespace troupe
