#include "actors/light_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "troupe/serialize.h"

namespace troupe::detail {
namespace {

constexpr RecordKind kLightLog{
    .magic = "TRPLIGH2",
    .name = "log of light actors",
    .of_another_version = "run the cluster and its programs with one version"};
constexpr std::size_t kLogBytesMin = 16u << 10;

}  // namespace

Status LightLog::open(UniqueFd fd) {
  records_ = TROUPE_TRY(memory::RecordMemory::open(kLightLog, 1, std::move(fd)));
  for (const Payload record : TROUPE_TRY(records_.newest())) {
    if (record.size() < sizeof(RecordHead)) {
      return Status(Code::kDataLoss, "the log of light actors holds a record that is none of it");
    }
    note(record);
  }
  return {};
}

LightLog::RecordHead LightLog::head_of(Payload record) {
  RecordHead head;
  std::memcpy(&head, record.data(), sizeof head);
  return head;
}

void LightLog::forget(Key key) {
  const auto found = live_.find(key);
  if (found == live_.end()) return;
  live_bytes_ -= memory::RecordMemory::bytes_of(found->second.size());
  live_.erase(found);
}

void LightLog::note(Payload record) {
  const RecordHead head = head_of(record);
  const auto kind = static_cast<Kind>(head.kind);
  if (kind == Kind::kEnded) {
    forget(key_of(head.number, Kind::kCreated));
    forget(key_of(head.number, Kind::kSaved));
  }
  const Key key = key_of(head.number, kind);
  forget(key);
  live_.emplace(key, record);
  live_bytes_ += memory::RecordMemory::bytes_of(record.size());
}

Status LightLog::renew(std::size_t extra) {
  // Populated: a full memory is an error here instead of a fault in mid-write.
  auto records = TROUPE_TRY(memory::RecordMemory::create(
      kLightLog, "troupe-light-actors", 1, std::max(kLogBytesMin, 2 * (live_bytes_ + extra)),
      memory::Populate::kNow));
  std::unordered_map<Key, Payload> moved;
  moved.reserve(live_.size());
  for (const auto& [key, record] : live_) moved.emplace(key, *records.append({record}));
  TROUPE_RETURN_IF_ERROR(keep_(records.fd()));
  records_ = std::move(records);
  live_ = std::move(moved);
  return {};
}

Status LightLog::append(const RecordHead& head, std::span<const std::byte> bytes) {
  const auto front = std::as_bytes(std::span(&head, 1));
  auto record = records_.append({front, bytes});
  if (!record) {
    TROUPE_RETURN_IF_ERROR(renew(memory::RecordMemory::bytes_of(front.size() + bytes.size())));
    record = records_.append({front, bytes});
  }
  note(*record);
  return {};
}

Status LightLog::created(std::uint32_t number, std::span<const std::byte> arguments) {
  return append({.number = number, .kind = static_cast<std::uint32_t>(Kind::kCreated)}, arguments);
}

Status LightLog::saved(std::uint32_t number, const SavedState& state) {
  return append({.type_hash = state.type_hash,
                 .version = state.version,
                 .number = number,
                 .kind = static_cast<std::uint32_t>(Kind::kSaved)},
                state.bytes);
}

Status LightLog::ended(std::uint32_t number, const Status& why) {
  return append({.number = number, .kind = static_cast<std::uint32_t>(Kind::kEnded)},
                encode_value(why));
}

LightLog::Entry LightLog::find(std::uint32_t number) const {
  Entry entry;
  const auto bytes_of = [&](Kind kind) -> std::optional<Payload> {
    const auto found = live_.find(key_of(number, kind));
    if (found == live_.end()) return std::nullopt;
    return found->second.subspan(sizeof(RecordHead));
  };
  if (const auto bytes = bytes_of(Kind::kEnded)) {
    const DecodeContext context;
    Decoder in(*bytes, context);
    Status why;
    entry.end = Codec<Status>::decode(in, why) ? why : in.status();
  }
  entry.arguments = bytes_of(Kind::kCreated);
  if (const auto bytes = bytes_of(Kind::kSaved)) {
    const RecordHead head = head_of(live_.at(key_of(number, Kind::kSaved)));
    entry.state =
        SavedState{head.version, head.type_hash, wire::Bytes(bytes->begin(), bytes->end())};
  }
  return entry;
}

}  // namespace troupe::detail
