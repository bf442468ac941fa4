#include "troupe/detail/object_core.h"

#include <utility>

#include "actors/client.h"
#include "actors/objects/object_client.h"
#include "troupe/detail/actor_class.h"
#include "troupe/detail/method_call.h"
#include "troupe/detail/method_table.h"
#include "troupe/detail/running_call.h"
#include "troupe/serialize.h"

namespace troupe::detail {
namespace {

// What a reference is in arguments and results. Empty: no object.
void encode_record(Encoder& out, const wire::ObjectRecord& record) {
  Codec<ObjectId>::encode(out, record.object_id);
  Codec<NodeId>::encode(out, record.home);
  Codec<std::string>::encode(out, record.home_endpoint.host);
  out.put(record.home_endpoint.port);
  out.put(record.bytes);
  out.put(record.type_hash);
  // In a result: the call's number, under which the actor keeps the object until it is taken.
  const RunningCall* const call = RunningCall::current();
  out.put(call != nullptr ? call->sequence() : std::uint64_t{0});
}

bool decode_record(Decoder& in, wire::ObjectRecord& record, std::uint64_t& lent_with) {
  return Codec<ObjectId>::decode(in, record.object_id) && Codec<NodeId>::decode(in, record.home) &&
         Codec<std::string>::decode(in, record.home_endpoint.host) &&
         in.get(record.home_endpoint.port) && in.get(record.bytes) && in.get(record.type_hash) &&
         in.get(lent_with);
}

}  // namespace

ObjectId object_id_of(const HeldObject& object) { return object.record.object_id; }
std::uint64_t object_bytes_of(const HeldObject& object) { return object.record.bytes; }

Status empty_object_error(const char* what) {
  return error(Code::kFailedPrecondition, "{} an empty ObjectRef", what);
}

Result<std::unique_ptr<ObjectRoom>> make_object_room(const std::shared_ptr<ActorClient>& client,
                                                     std::size_t bytes, Duration timeout) {
  return client->objects()->make_room(bytes, Deadline::after(timeout));
}

Result<ObjectBytes> read_object(const HeldObjectPtr& object, Duration timeout) {
  const auto client = object->client();
  if (!client) {
    return Status(Code::kFailedPrecondition, "the connection that the reference came by is closed");
  }
  return client->read(*object, Deadline::after(timeout));
}

Result<std::vector<std::size_t>> wait_for_objects(std::span<const HeldObjectPtr> objects,
                                                  std::size_t count, Duration timeout) {
  if (objects.empty()) return std::vector<std::size_t>{};
  for (const HeldObjectPtr& object : objects) {
    if (!object) return empty_object_error("wait() for");
  }
  const auto client = objects.front()->client();
  if (!client) {
    return Status(Code::kFailedPrecondition, "the connection that the reference came by is closed");
  }
  return client->wait(objects, std::min(count, objects.size()), Deadline::after(timeout));
}

Result<ObjectStoreInfo> object_store_info(const std::shared_ptr<ActorClient>& client,
                                          Duration timeout) {
  const auto totals = TROUPE_TRY(client->objects()->totals(Deadline::after(timeout)));
  return ObjectStoreInfo{.objects = totals.objects,
                         .memory_bytes = totals.memory_bytes,
                         .memory_max_bytes = totals.memory_max_bytes,
                         .spilled_bytes = totals.spilled_bytes,
                         .spilled_bytes_total = totals.spilled_bytes_total,
                         .restored_bytes_total = totals.restored_bytes_total,
                         .fetched_bytes_total = totals.fetched_bytes_total,
                         .node_id = client->objects()->node_id()};
}

void encode_object(Encoder& out, const HeldObjectPtr& object) {
  out.put(object != nullptr);
  if (!object) return;
  if (const auto client = object->client()) client->share(*object);
  encode_record(out, object->record);
  out.keep(object);
}

bool decode_object(Decoder& in, std::uint64_t type_hash, HeldObjectPtr& object) {
  bool is_there = false;
  if (!in.get(is_there)) return false;
  object = nullptr;
  if (!is_there) return true;
  wire::ObjectRecord record;
  std::uint64_t lent_with = 0;
  if (!decode_record(in, record, lent_with)) return false;
  if (record.type_hash != type_hash) {
    return in.fail("an ObjectRef to an object of another type than the parameter's");
  }
  const DecodeContext& context = in.context();
  if (!context.client || !context.takes_references) {
    return in.fail("an ObjectRef where none can be used: in an object, in saved state");
  }
  if (!context.intake) context.intake = std::make_shared<ObjectIntake>();
  context.intake->lent_with = lent_with;
  object = context.client->objects()->arrived(record, *context.intake);
  return true;
}

bool decode_and_read_object(Decoder& in, std::uint64_t type_hash, HeldObjectPtr& object,
                            ObjectBytes& bytes) {
  if (!decode_object(in, type_hash, object)) return false;
  if (!object) return in.fail(empty_object_error("an argument that is"));
  const RunningCall* const call = RunningCall::current();
  const Deadline deadline = call != nullptr ? call->deadline() : Deadline::after(kObjectTimeout);
  const auto client = object->client();
  // Its store must know of it first.
  if (const Status held = client->hold_all({.objects = {object}}, deadline); !held.ok()) {
    return in.fail(held);
  }
  auto read = client->read(*object, deadline);
  if (!read.ok()) return in.fail(read.status());
  bytes = std::move(*read);
  return true;
}

Status hold_decoded(const DecodeContext& context) {
  const RunningCall* const call = RunningCall::current();
  const Deadline deadline = call != nullptr ? call->deadline() : Deadline::after(kObjectTimeout);
  return context.client->objects()->hold_all(*context.intake, deadline);
}

void hold_decoded_later(const DecodeContext& context) {
  context.client->objects()->hold_all_later(std::move(*context.intake), [] {});
}

void lend(std::vector<std::shared_ptr<const void>> kept) {
  RunningCall* const call = RunningCall::current();
  if (call == nullptr) return;
  for (auto& one : kept) call->lent().push_back(std::move(one));
}

}  // namespace troupe::detail
