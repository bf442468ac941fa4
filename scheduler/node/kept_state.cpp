#include "scheduler/node/kept_state.h"

#include <cstdlib>
#include <string_view>

#include "runtime/base/check.h"
#include "scheduler/node/kept_keys.h"

namespace troupe::scheduler {
namespace {

using Entry = process::KeeperClient::Entry;

template <typename Record>
std::optional<Record> record_of(const Entry& entry) {
  auto message = wire::decode_keeper(entry.bytes);
  if (!message.ok()) return std::nullopt;
  auto* record = get_if<Record>(&*message);
  if (record == nullptr) return std::nullopt;
  return std::move(*record);
}

constexpr RecordKind kStart{
    .magic = "TRPSTRT1",
    .name = "start of an actor",
    .of_another_version = "the daemons of a node and their keeper must be of one version"};

Result<wire::StartActor> decode_start(UniqueFd fd) {
  const auto memory = TROUPE_TRY(memory::RecordMemory::open(kStart, 1, std::move(fd)));
  const auto record = memory.first();
  if (!record) return Status(Code::kDataLoss, "an actor's start is damaged");
  auto message = TROUPE_TRY(wire::decode_control(*record));
  auto* start = get_if<wire::StartActor>(&message);
  if (start == nullptr) return Status(Code::kProtocol, "an actor's start is none");
  return std::move(*start);
}

HostId host_of(std::string_view key) {
  return std::strtoull(key.data() + key.find('/') + 1, nullptr, 10);
}

// Fills `kept` from one entry; false where it is none of ours.
bool take(Entry& entry, KeptState& kept, std::map<ActorId, UniqueFd>& saved) {
  const std::string_view key = entry.key;
  if (key == kNodeKey) {
    kept.node = record_of<wire::KeptNode>(entry);
    return kept.node.has_value();
  }
  if (key == kListenerKey) return true;
  if (key == kGpusKey) {
    kept.gpus = record_of<wire::KeptGpus>(entry);
    return kept.gpus.has_value();
  }
  if (key.starts_with(kActorKeys)) {
    auto record = record_of<wire::KeptActor>(entry);
    auto start = record && entry.descriptor.valid()
                     ? decode_start(std::move(entry.descriptor))
                     : Result<wire::StartActor>(Status(Code::kProtocol, "it is damaged"));
    if (!start.ok()) {
      kept.problems.push_back(
          fmt::format("the keeper's entry {}: {}", key, start.status().to_string()));
      return false;
    }
    kept.actors[record->actor_id] = {
        *record, std::move(start->spec), {}, std::move(start->state_lost_with)};
    return true;
  }
  if (key.starts_with(kSavedStateKeys)) {
    const auto id = ActorId::parse(key.substr(std::string_view(kSavedStateKeys).size()));
    if (id.ok()) saved[*id] = std::move(entry.descriptor);
    return id.ok();
  }
  if (key.starts_with(kOutputKeys)) {
    const auto id = ActorId::parse(key.substr(std::string_view(kOutputKeys).size()));
    if (!id.ok() || !entry.descriptor.valid()) return false;
    kept.outputs[*id] = std::move(entry.descriptor);
    return true;
  }
  if (key.starts_with(kSegmentKeys)) {
    auto record = record_of<wire::KeptSegment>(entry);
    if (record && entry.descriptor.valid()) {
      kept.segments.emplace_back(std::move(*record), std::move(entry.descriptor));
    }
    return record.has_value();
  }
  const HostId host = host_of(key);
  if (key == channel_key(host))
    kept.ends[host].channel = std::move(entry.descriptor);
  else if (key == out_key(host))
    kept.ends[host].out = std::move(entry.descriptor);
  else if (key == err_key(host))
    kept.ends[host].err = std::move(entry.descriptor);
  else
    return false;
  return true;
}

}  // namespace

KeptState decode_kept(process::KeeperClient::Contents contents) {
  KeptState kept;
  std::map<ActorId, UniqueFd> saved;
  for (Entry& entry : contents.entries) {
    if (!take(entry, kept, saved)) kept.strays.push_back(entry.key);
  }
  for (auto& [id, fd] : saved) {
    const auto actor = kept.actors.find(id);
    if (actor != kept.actors.end()) {
      actor->second.saved_state = std::move(fd);
    } else {
      kept.strays.push_back(saved_state_key(id));
    }
  }
  for (const wire::KeeperChild& child : contents.children) kept.children[child.child_id] = child;
  // Sockets and pipes of a process that was not started any more, or of no actor.
  std::map<HostId, bool> known;
  for (const auto& [id, actor] : kept.actors) known[actor.record.host] = true;
  for (auto ends = kept.ends.begin(); ends != kept.ends.end();) {
    const HostId host = ends->first;
    const bool whole =
        ends->second.channel.valid() && ends->second.out.valid() && ends->second.err.valid();
    if (whole && known.contains(host) && kept.children.contains(host)) {
      ++ends;
      continue;
    }
    for (const auto& key : {channel_key(host), out_key(host), err_key(host)}) {
      kept.strays.push_back(key);
    }
    ends = kept.ends.erase(ends);
  }
  return kept;
}

UniqueFd kept_listener(process::KeeperClient::Contents& contents) {
  for (Entry& entry : contents.entries) {
    if (entry.key == kListenerKey) return std::move(entry.descriptor);
  }
  return {};
}

std::optional<wire::Endpoint> kept_endpoint(const process::KeeperClient::Contents& contents) {
  for (const Entry& entry : contents.entries) {
    if (entry.key != kNodeKey) continue;
    if (const auto node = record_of<wire::KeptNode>(entry)) return node->endpoint;
  }
  return std::nullopt;
}

Result<memory::RecordMemory> encode_start(const wire::StartActor& start) {
  const wire::Bytes bytes = wire::encode(start);
  auto memory = TROUPE_TRY(memory::RecordMemory::create(
      kStart, "troupe-start", 1, memory::RecordMemory::bytes_of(bytes.size())));
  TROUPE_CHECK(memory.append({bytes}).has_value());
  return memory;
}

}  // namespace troupe::scheduler
