// The families of messages that are a Variant, as bytes. Apart from the headers that describe them,
// so that the codec is made for each described struct once.

#include "runtime/wire/codec.h"
#include "runtime/wire/control_messages.h"
#include "runtime/wire/host_messages.h"
#include "runtime/wire/keeper_messages.h"
#include "runtime/wire/object_messages.h"
#include "runtime/wire/package_manifest.h"

namespace troupe::wire {
namespace {

template <typename Family>
Bytes encode_family(const Family& message) {
  capnp::MallocMessageBuilder builder(codec::segment_words(0));
  return codec::encode(message, builder);
}

template <typename Family>
Result<Family> decode_family(std::span<const std::byte> frame, const char* what) {
  Family message;
  TROUPE_RETURN_IF_ERROR(codec::decode(frame, what, message));
  return message;
}

}  // namespace

Bytes encode(const ControlMessage& message) { return encode_family(message); }
Bytes encode(const HostMessage& message) { return encode_family(message); }
Bytes encode(const KeeperMessage& message) { return encode_family(message); }
Bytes encode(const ObjectMessage& message) { return encode_family(message); }

Bytes encode(const PackageManifest& manifest) {
  capnp::MallocMessageBuilder builder(codec::segment_words(0));
  codec::write_new_struct(capnp::_::PointerHelpers<capnp::AnyPointer>::getInternalBuilder(
                              builder.getRoot<capnp::AnyPointer>()),
                          manifest);
  return codec::to_bytes(builder);
}
Result<PackageManifest> decode_package_manifest(std::span<const std::byte> bytes) {
  PackageManifest manifest;
  TROUPE_RETURN_IF_ERROR(
      codec::decode_frame(bytes, "package manifest",
                          [&](codec::StructReader root) { codec::read_struct(root, manifest); }));
  return manifest;
}

Result<ControlMessage> decode_control(std::span<const std::byte> frame) {
  return decode_family<ControlMessage>(frame, "control message");
}
Result<HostMessage> decode_host(std::span<const std::byte> frame) {
  return decode_family<HostMessage>(frame, "host message");
}
Result<KeeperMessage> decode_keeper(std::span<const std::byte> packet) {
  return decode_family<KeeperMessage>(packet, "keeper message");
}
Result<ObjectMessage> decode_object(std::span<const std::byte> packet) {
  return decode_family<ObjectMessage>(packet, "object message");
}

}  // namespace troupe::wire

namespace troupe {
template class Variant<wire::ControlMessages>;
template class Variant<wire::HostMessages>;
template class Variant<wire::KeeperMessages>;
template class Variant<wire::ObjectMessages>;
}  // namespace troupe
