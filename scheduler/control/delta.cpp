#include "scheduler/control/delta.h"

#include <initializer_list>
#include <utility>

#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {
namespace {

constexpr std::uint8_t kVersion = 1;

// --- one direction each --------------------------------------------------------------------------

// Both have the same functions, so that the fields of a delta are told once, below.

class Writer {
 public:
  template <typename T>
  using Field = const T&;

  explicit Writer(std::vector<std::byte>& bytes) : bytes_(bytes) {}

  void u8(std::uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void u64(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) u8(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  // In one byte, the first one in its lowest bit.
  void flags(std::initializer_list<const bool*> flags) {
    std::uint8_t byte = 0;
    int bit = 0;
    for (const bool* flag : flags) byte |= static_cast<std::uint8_t>(*flag << bit++);
    u8(byte);
  }
  void times(const std::vector<std::int64_t>& values) {
    u64(values.size());
    for (const std::int64_t time : values) u64(static_cast<std::uint64_t>(time));
  }
  template <typename Tag>
  void id(const Id<Tag>& value) {
    u64(value.high);
    u64(value.low);
  }
  // The rest of the record: a message that holds the value, or a list of it alone.
  template <typename Message, typename T>
  void message(T Message::*field, const T& value) {
    Message message;
    message.*field = value;
    nested(std::move(message));
  }
  template <typename Message, typename T>
  void message(std::vector<T> Message::*field, const T& value) {
    Message message;
    (message.*field).push_back(value);
    nested(std::move(message));
  }

 private:
  void nested(wire::ControlMessage message) {
    const wire::Bytes nested = wire::encode(message);
    bytes_.insert(bytes_.end(), nested.begin(), nested.end());
  }

  std::vector<std::byte>& bytes_;
};

class Reader {
 public:
  template <typename T>
  using Field = T&;

  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  // Why the bytes are no record; what was read is not to be used then.
  const Status& status() const { return status_; }

  void u8(std::uint8_t& value) {
    value = 0;
    if (rest_.empty()) return fail("a journal record is cut");
    value = static_cast<std::uint8_t>(rest_.front());
    rest_ = rest_.subspan(1);
  }
  void u64(std::uint64_t& value) {
    value = 0;
    for (int i = 0; i < 8; ++i) {
      std::uint8_t byte = 0;
      u8(byte);
      value |= static_cast<std::uint64_t>(byte) << (8 * i);
    }
  }
  void flags(std::initializer_list<bool*> flags) {
    std::uint8_t byte = 0;
    u8(byte);
    for (bool* flag : flags) {
      *flag = (byte & 1) != 0;
      byte >>= 1;
    }
  }
  void times(std::vector<std::int64_t>& values) {
    std::uint64_t count = 0;
    u64(count);
    if (count > rest_.size() / 8) return fail("a journal record is cut");
    for (; count > 0; --count) {
      std::uint64_t time = 0;
      u64(time);
      values.push_back(static_cast<std::int64_t>(time));
    }
  }
  template <typename Tag>
  void id(Id<Tag>& value) {
    u64(value.high);
    u64(value.low);
  }
  template <typename Message, typename T>
  void message(T Message::*field, T& value) {
    Message message;
    if (nested(message)) value = std::move(message.*field);
  }
  template <typename Message, typename T>
  void message(std::vector<T> Message::*field, T& value) {
    Message message;
    if (!nested(message)) return;
    if ((message.*field).size() != 1) return fail("a journal record does not hold one thing");
    value = std::move((message.*field).front());
  }

 private:
  void fail(const char* why) {
    if (status_.ok()) status_ = Status(Code::kDataLoss, why);
    rest_ = {};
  }
  template <typename Message>
  bool nested(Message& message) {
    if (!status_.ok()) return false;
    auto decoded = wire::decode_control(rest_);
    auto* const found = decoded.ok() ? get_if<Message>(&*decoded) : nullptr;
    if (found == nullptr) {
      fail("a journal record holds something else than its kind says");
      return false;
    }
    message = std::move(*found);
    return true;
  }

  std::span<const std::byte> rest_;
  Status status_;
};

// --- what a record of each kind holds, in this order ---------------------------------------------

template <typename Archive, typename Delta>
using Fields = typename Archive::template Field<Delta>;

template <typename Archive>
void fields(Archive& record, Fields<Archive, NodeKnown> delta) {
  record.message(&wire::NodeUpdate::node, delta.node);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, NodeForgotten> delta) {
  record.id(delta.node_id);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, ActorCreated> delta) {
  record.u64(delta.gang);
  record.message(&wire::CreateActors::specs, delta.spec);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, ActorChanged> delta) {
  record.u64(delta.lease_generation);
  record.u64(delta.queue_order);
  bool has_barrier = !delta.barrier.empty();
  record.flags({&delta.started, &delta.stopping, &delta.restart_after_stop, &has_barrier,
                &delta.moving, &delta.state_lost});
  record.times(delta.restarts_unix_us);
  if (has_barrier) record.id(delta.barrier);
  record.message(&wire::ActorUpdate::actor, delta.info);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, ActorForgotten> delta) {
  record.id(delta.actor_id);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, EventLogged> delta) {
  record.message(&wire::EventList::events, delta.event);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, GroupCreated> delta) {
  record.message(&wire::CreatePlacementGroup::spec, delta.spec);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, GroupChanged> delta) {
  record.u64(delta.queue_order);
  record.flags({&delta.was_created});
  record.message(&wire::PlacementGroupUpdate::group, delta.info);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, GroupForgotten> delta) {
  record.id(delta.group_id);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, JobKnown> delta) {
  record.message(&wire::JobList::jobs, delta.job);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, JobForgotten> delta) {
  record.id(delta.job_id);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, SupervisorCreated> delta) {
  record.message(&wire::CreateSupervisor::spec, delta.spec);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, SupervisorChanged> delta) {
  record.times(delta.restarts_unix_us);
  record.message(&wire::SupervisorUpdate::supervisor, delta.info);
}
template <typename Archive>
void fields(Archive& record, Fields<Archive, SupervisorForgotten> delta) {
  record.id(delta.supervisor_id);
}

// A kind's number is its place among the alternatives, from 1.
template <std::size_t... I>
void read_kind(std::size_t kind, Reader& reader, Delta& delta, std::index_sequence<I...>) {
  const auto read = [&]<typename T>(T) {
    delta = T();
    fields(reader, *get_if<T>(&delta));
  };
  ((kind == I + 1 ? read(Delta::Alternative<I>()) : void()), ...);
}

}  // namespace

std::vector<std::byte> encode_delta(const Delta& delta) {
  std::vector<std::byte> bytes;
  Writer writer(bytes);
  writer.u8(kVersion);
  writer.u8(static_cast<std::uint8_t>(delta.index() + 1));
  visit([&](const auto& d) { fields(writer, d); }, delta);
  return bytes;
}

Result<Delta> decode_delta(std::span<const std::byte> bytes) {
  if (bytes.size() < 2) return Status(Code::kDataLoss, "a journal record is empty");
  const auto version = static_cast<std::uint8_t>(bytes[0]);
  const auto kind = static_cast<std::uint8_t>(bytes[1]);
  if (version != kVersion) {
    return error(Code::kUnsupported, "the journal has a record of version {}; this one reads {}",
                 version, kVersion);
  }
  if (kind == 0 || kind > Delta::kCount) {
    return error(Code::kUnsupported,
                 "the journal has a record of kind {}, which a later version wrote", kind);
  }
  Reader reader(bytes.subspan(2));
  Delta delta;
  read_kind(kind, reader, delta, std::make_index_sequence<Delta::kCount>());
  if (!reader.status().ok()) return reader.status();
  return delta;
}

}  // namespace troupe::scheduler

namespace troupe {
template class Variant<scheduler::Deltas>;
}  // namespace troupe
