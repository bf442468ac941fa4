#include "scheduler/control/delta.h"

#include <type_traits>

#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {
namespace {

constexpr std::uint8_t kVersion = 1;
// Part of the journal's format: append only.
enum class Kind : std::uint8_t {
  kNodeKnown = 1,
  kNodeForgotten = 2,
  kActorCreated = 3,
  kActorChanged = 4,
  kActorForgotten = 5,
  kEventLogged = 6,
  kGroupCreated = 7,
  kGroupChanged = 8,
  kGroupForgotten = 9,
  kJobKnown = 10,
  kJobForgotten = 11,
  kSupervisorCreated = 12,
  kSupervisorChanged = 13,
  kSupervisorForgotten = 14,
};

class Writer {
 public:
  explicit Writer(Kind kind) {
    u8(kVersion);
    u8(static_cast<std::uint8_t>(kind));
  }
  void u8(std::uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void u64(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) u8(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  template <typename Tag>
  void id(const Id<Tag>& value) {
    u64(value.high);
    u64(value.low);
  }
  void times(const std::vector<std::int64_t>& values) {
    u64(values.size());
    for (std::int64_t time : values) u64(static_cast<std::uint64_t>(time));
  }
  // The rest of the record.
  std::vector<std::byte> finish(const wire::ControlMessage& message) {
    const wire::Bytes nested = wire::encode(message);
    bytes_.insert(bytes_.end(), nested.begin(), nested.end());
    return std::move(bytes_);
  }
  std::vector<std::byte> finish() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  bool failed() const { return failed_; }
  std::size_t left() const { return rest_.size(); }
  std::uint8_t u8() {
    if (rest_.empty()) {
      failed_ = true;
      return 0;
    }
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_ = rest_.subspan(1);
    return value;
  }
  // Empty, and failed, where there are fewer than it says.
  std::vector<std::int64_t> times() {
    std::vector<std::int64_t> values;
    const std::uint64_t count = u64();
    failed_ = failed_ || count > left() / 8;
    for (std::uint64_t i = 0; i < count && !failed_; ++i) {
      values.push_back(static_cast<std::int64_t>(u64()));
    }
    return values;
  }
  std::uint64_t u64() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(u8()) << (8 * i);
    return value;
  }
  template <typename IdType>
  IdType id() {
    const std::uint64_t high = u64();
    return IdType{high, u64()};
  }
  // What is left, as a message of the given kind.
  template <typename Message>
  Result<Message> message() {
    auto decoded = wire::decode_control(rest_);
    if (decoded.ok()) {
      if (auto* message = get_if<Message>(&*decoded)) return std::move(*message);
    }
    return Status(Code::kDataLoss, "a journal record holds something else than its kind says");
  }

 private:
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

std::vector<std::byte> encode_one(const NodeKnown& delta) {
  return Writer(Kind::kNodeKnown).finish(wire::NodeUpdate{delta.node});
}
std::vector<std::byte> encode_one(const NodeForgotten& delta) {
  Writer writer(Kind::kNodeForgotten);
  writer.id(delta.node_id);
  return writer.finish();
}
std::vector<std::byte> encode_one(const ActorCreated& delta) {
  Writer writer(Kind::kActorCreated);
  writer.u64(delta.gang);
  wire::CreateActors message;
  message.specs.push_back(delta.spec);
  return writer.finish(message);
}
std::vector<std::byte> encode_one(const ActorChanged& delta) {
  Writer writer(Kind::kActorChanged);
  writer.u64(delta.lease_generation);
  writer.u64(delta.queue_order);
  writer.u8(static_cast<std::uint8_t>(
      (delta.started ? 1 : 0) | (delta.stopping ? 2 : 0) | (delta.restart_after_stop ? 4 : 0) |
      (delta.barrier.empty() ? 0 : 8) | (delta.moving ? 16 : 0) | (delta.state_lost ? 32 : 0)));
  writer.times(delta.restarts_unix_us);
  if (!delta.barrier.empty()) writer.id(delta.barrier);
  return writer.finish(wire::ActorUpdate{delta.info});
}
std::vector<std::byte> encode_one(const ActorForgotten& delta) {
  Writer writer(Kind::kActorForgotten);
  writer.id(delta.actor_id);
  return writer.finish();
}
std::vector<std::byte> encode_one(const EventLogged& delta) {
  wire::EventList list;
  list.events.push_back(delta.event);
  return Writer(Kind::kEventLogged).finish(list);
}

std::vector<std::byte> encode_one(const GroupCreated& delta) {
  wire::CreatePlacementGroup message;
  message.spec = delta.spec;
  return Writer(Kind::kGroupCreated).finish(message);
}
std::vector<std::byte> encode_one(const GroupChanged& delta) {
  Writer writer(Kind::kGroupChanged);
  writer.u64(delta.queue_order);
  writer.u8(delta.was_created ? 1 : 0);
  return writer.finish(wire::PlacementGroupUpdate{delta.info});
}
std::vector<std::byte> encode_one(const GroupForgotten& delta) {
  Writer writer(Kind::kGroupForgotten);
  writer.id(delta.group_id);
  return writer.finish();
}

std::vector<std::byte> encode_one(const JobKnown& delta) {
  wire::JobList list;
  list.jobs.push_back(delta.job);
  return Writer(Kind::kJobKnown).finish(list);
}
std::vector<std::byte> encode_one(const JobForgotten& delta) {
  Writer writer(Kind::kJobForgotten);
  writer.id(delta.job_id);
  return writer.finish();
}
std::vector<std::byte> encode_one(const SupervisorCreated& delta) {
  wire::CreateSupervisor message;
  message.spec = delta.spec;
  return Writer(Kind::kSupervisorCreated).finish(message);
}
std::vector<std::byte> encode_one(const SupervisorChanged& delta) {
  Writer writer(Kind::kSupervisorChanged);
  writer.times(delta.restarts_unix_us);
  return writer.finish(wire::SupervisorUpdate{delta.info});
}
std::vector<std::byte> encode_one(const SupervisorForgotten& delta) {
  Writer writer(Kind::kSupervisorForgotten);
  writer.id(delta.supervisor_id);
  return writer.finish();
}

Result<Delta> decode_created(Reader& reader) {
  ActorCreated delta;
  delta.gang = reader.u64();
  auto message = TROUPE_TRY(reader.message<wire::CreateActors>());
  if (message.specs.size() != 1) {
    return Status(Code::kDataLoss, "a journal record of an actor does not hold one actor");
  }
  delta.spec = std::move(message.specs.front());
  return Delta(std::move(delta));
}

Result<Delta> decode_changed(Reader& reader) {
  ActorChanged delta;
  delta.lease_generation = reader.u64();
  delta.queue_order = reader.u64();
  const std::uint8_t flags = reader.u8();
  delta.started = (flags & 1) != 0;
  delta.stopping = (flags & 2) != 0;
  delta.restart_after_stop = (flags & 4) != 0;
  delta.moving = (flags & 16) != 0;
  delta.state_lost = (flags & 32) != 0;
  delta.restarts_unix_us = reader.times();
  if ((flags & 8) != 0) delta.barrier = reader.id<SupervisorId>();
  if (reader.failed()) return Status(Code::kDataLoss, "a journal record of an actor is cut");
  delta.info = TROUPE_TRY(reader.message<wire::ActorUpdate>()).actor;
  return Delta(std::move(delta));
}

Result<Delta> decode_group_changed(Reader& reader) {
  GroupChanged delta;
  delta.queue_order = reader.u64();
  delta.was_created = (reader.u8() & 1) != 0;
  delta.info = TROUPE_TRY(reader.message<wire::PlacementGroupUpdate>()).group;
  return Delta(std::move(delta));
}

Result<Delta> decode_supervisor_changed(Reader& reader) {
  SupervisorChanged delta;
  delta.restarts_unix_us = reader.times();
  if (reader.failed()) return Status(Code::kDataLoss, "a journal record of a supervisor is cut");
  delta.info = TROUPE_TRY(reader.message<wire::SupervisorUpdate>()).supervisor;
  return Delta(std::move(delta));
}

Result<Delta> decode_event(Reader& reader) {
  auto message = TROUPE_TRY(reader.message<wire::EventList>());
  if (message.events.size() != 1) {
    return Status(Code::kDataLoss, "a journal record of an event does not hold one event");
  }
  return Delta(EventLogged{std::move(message.events.front())});
}

Result<Delta> decode_job(Reader& reader) {
  auto message = TROUPE_TRY(reader.message<wire::JobList>());
  if (message.jobs.size() != 1) {
    return Status(Code::kDataLoss, "a journal record of a job does not hold one job");
  }
  return Delta(JobKnown{std::move(message.jobs.front())});
}

Result<Delta> decode_kind(std::uint8_t kind, Reader& reader) {
  switch (static_cast<Kind>(kind)) {
    case Kind::kNodeKnown:
      return Delta(NodeKnown{TROUPE_TRY(reader.message<wire::NodeUpdate>()).node});
    case Kind::kNodeForgotten:
      return Delta(NodeForgotten{reader.id<NodeId>()});
    case Kind::kActorCreated:
      return decode_created(reader);
    case Kind::kActorChanged:
      return decode_changed(reader);
    case Kind::kActorForgotten:
      return Delta(ActorForgotten{reader.id<ActorId>()});
    case Kind::kEventLogged:
      return decode_event(reader);
    case Kind::kGroupCreated:
      return Delta(GroupCreated{TROUPE_TRY(reader.message<wire::CreatePlacementGroup>()).spec});
    case Kind::kGroupChanged:
      return decode_group_changed(reader);
    case Kind::kGroupForgotten:
      return Delta(GroupForgotten{reader.id<GroupId>()});
    case Kind::kJobKnown:
      return decode_job(reader);
    case Kind::kJobForgotten:
      return Delta(JobForgotten{reader.id<JobId>()});
    case Kind::kSupervisorCreated:
      return Delta(SupervisorCreated{TROUPE_TRY(reader.message<wire::CreateSupervisor>()).spec});
    case Kind::kSupervisorChanged:
      return decode_supervisor_changed(reader);
    case Kind::kSupervisorForgotten:
      return Delta(SupervisorForgotten{reader.id<SupervisorId>()});
  }
  return error(Code::kUnsupported,
               "the journal has a record of kind {}, which a later version wrote", kind);
}

}  // namespace

std::vector<std::byte> encode_delta(const Delta& delta) {
  return visit([](const auto& d) { return encode_one(d); }, delta);
}

Result<Delta> decode_delta(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const std::uint8_t version = reader.u8();
  const std::uint8_t kind = reader.u8();
  if (reader.failed()) return Status(Code::kDataLoss, "a journal record is empty");
  if (version != kVersion) {
    return error(Code::kUnsupported, "the journal has a record of version {}; this one reads {}",
                 version, kVersion);
  }
  auto delta = decode_kind(kind, reader);
  if (delta.ok() && reader.failed()) return Status(Code::kDataLoss, "a journal record is cut");
  return delta;
}

}  // namespace troupe::scheduler

namespace troupe {
template class Variant<scheduler::Deltas>;
}  // namespace troupe
