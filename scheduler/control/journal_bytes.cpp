#include "scheduler/control/journal_bytes.h"

#include <map>
#include <vector>

namespace troupe::scheduler {
namespace {

// What delta_batch.h makes of a message's numbers, all of them large, and of its pointers, with
// what stands before delta and record: above the largest of them, an actor's.
constexpr std::uint64_t kMessageBytes = 264;
constexpr std::uint64_t kIdBytes = 24;
// A thing in a list: its numbers, ids and pointers, without its texts.
constexpr std::uint64_t kElementBytes = 96;
// A pointer, and what fills the last word.
constexpr std::uint64_t kTextBytes = 16;
constexpr std::uint64_t kNumberBytes = 10;

template <typename Tag>
std::uint64_t bytes_in(const Id<Tag>& id) {
  return id.empty() ? 0 : kIdBytes;
}
// Some words take more in the journal than they have.
std::uint64_t bytes_in_text(std::size_t size) {
  return size == 0 ? 0 : size + size / 8 + kTextBytes;
}
std::uint64_t bytes_in(const std::string& text) { return bytes_in_text(text.size()); }
std::uint64_t bytes_in(const wire::Bytes& bytes) { return bytes_in_text(bytes.size()); }
std::uint64_t bytes_in(const std::vector<std::string>& texts) {
  std::uint64_t bytes = kTextBytes;
  for (const std::string& text : texts) bytes += kNumberBytes + bytes_in(text);
  return bytes;
}
std::uint64_t bytes_in(const wire::Resources& resources) {
  std::uint64_t bytes = kTextBytes;
  for (const auto& [name, amount] : resources) bytes += kNumberBytes + bytes_in(name);
  return bytes;
}
std::uint64_t bytes_in(const std::map<std::string, std::string>& pairs) {
  std::uint64_t bytes = kTextBytes;
  for (const auto& [name, value] : pairs) {
    bytes += 2 * kNumberBytes + bytes_in(name) + bytes_in(value);
  }
  return bytes;
}
std::uint64_t bytes_in(const wire::LabelSelector& selector) {
  std::uint64_t bytes = kTextBytes;
  for (const wire::LabelTerm& term : selector) {
    bytes += kTextBytes + bytes_in(term.key) + bytes_in(term.values);
  }
  return bytes;
}
std::uint64_t bytes_in(const wire::Endpoint& endpoint) {
  return bytes_in(endpoint.host) + bytes_in(endpoint.local_name);
}
std::uint64_t bytes_in(const Status& status) {
  std::uint64_t bytes = bytes_in(status.message()) + kTextBytes;
  for (const auto& [key, value] : status.context()) {
    bytes += 2 * kNumberBytes + bytes_in(key) + bytes_in(value);
  }
  return bytes;
}
std::uint64_t bytes_in(const std::vector<std::int64_t>& times) {
  return kNumberBytes * times.size();
}

std::uint64_t bytes_of(const NodeKnown& delta) { return journal_bytes(delta.node); }
std::uint64_t bytes_of(const ActorCreated& delta) { return journal_bytes(delta.spec); }
std::uint64_t bytes_of(const ActorChanged& delta) {
  return journal_bytes(delta.info) + bytes_in(delta.restarts_unix_us) + bytes_in(delta.barrier);
}
std::uint64_t bytes_of(const EventLogged& delta) { return journal_bytes(delta.event); }
std::uint64_t bytes_of(const GroupCreated& delta) { return journal_bytes(delta.spec); }
std::uint64_t bytes_of(const GroupChanged& delta) { return journal_bytes(delta.info); }
std::uint64_t bytes_of(const JobKnown& delta) { return journal_bytes(delta.job); }
std::uint64_t bytes_of(const SupervisorCreated& delta) { return journal_bytes(delta.spec); }
std::uint64_t bytes_of(const SupervisorChanged& delta) {
  return journal_bytes(delta.info) + bytes_in(delta.restarts_unix_us);
}
// What says only that something is forgotten.
template <typename Forgotten>
std::uint64_t bytes_of(const Forgotten&) {
  return kElementBytes;
}

// The first bytes, without a character that would be cut in two.
std::size_t cut_at(const std::string& text, std::size_t bytes_max) {
  std::size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return end;
}

}  // namespace

std::uint64_t journal_bytes(const Delta& delta) {
  return visit([](const auto& d) { return bytes_of(d); }, delta);
}

std::uint64_t journal_bytes(std::span<const Delta> deltas) {
  std::uint64_t bytes = 0;
  for (const Delta& delta : deltas) bytes += journal_bytes(delta);
  return bytes;
}

std::uint64_t journal_bytes(const wire::ActorSpec& spec) {
  return kMessageBytes + bytes_in(spec.actor_id) + bytes_in(spec.job_id) + bytes_in(spec.owner) +
         bytes_in(spec.placement_group) + bytes_in(spec.owner_actor) + bytes_in(spec.supervisor) +
         (spec.node_affinity ? kIdBytes : 0) + bytes_in(spec.type) + bytes_in(spec.name) +
         bytes_in(spec.constructor_arguments) + bytes_in(spec.resources) +
         bytes_in(spec.image.path) + bytes_in(spec.run) + bytes_in(spec.environment) +
         bytes_in(spec.log_path) + bytes_in(spec.label_selector) + bytes_in(spec.label_preference) +
         bytes_in(spec.program.argv) + bytes_in(spec.program.working_directory) +
         bytes_in(spec.program.stdout_path) + bytes_in(spec.program.stderr_path) +
         bytes_in(spec.namespace_name) +
         (spec.package.empty() ? 0 : kIdBytes + bytes_in(spec.package.sha256));
}

std::uint64_t journal_bytes(const wire::ActorInfo& info) {
  return kMessageBytes + bytes_in(info.actor_id) + bytes_in(info.node_id) + bytes_in(info.job_id) +
         bytes_in(info.placement_group) + bytes_in(info.owner_actor) + bytes_in(info.supervisor) +
         bytes_in(info.saved_state_node) + bytes_in(info.type) + bytes_in(info.name) +
         bytes_in(info.endpoint) + bytes_in(info.resources) + bytes_in(info.death) +
         bytes_in(info.pending_why) + bytes_in(info.namespace_name) + bytes_in(info.owner_name);
}

std::uint64_t journal_bytes(const wire::PlacementGroupSpec& spec) {
  std::uint64_t bytes = kMessageBytes + bytes_in(spec.name);
  for (const wire::BundleSpec& bundle : spec.bundles) {
    bytes += kElementBytes + bytes_in(bundle.resources) + bytes_in(bundle.label_selector);
  }
  return bytes;
}

std::uint64_t journal_bytes(const wire::PlacementGroupInfo& info) {
  std::uint64_t bytes = kMessageBytes + bytes_in(info.name) + bytes_in(info.why);
  for (const wire::BundleInfo& bundle : info.bundles) {
    bytes += kElementBytes + bytes_in(bundle.resources) + bytes_in(bundle.available) +
             bytes_in(bundle.label_selector);
  }
  return bytes;
}

std::uint64_t journal_bytes(const wire::SupervisorSpec& spec) {
  return kMessageBytes + bytes_in(spec.name);
}

std::uint64_t journal_bytes(const wire::SupervisorInfo& info) {
  return kMessageBytes + kElementBytes * info.members.size() + bytes_in(info.name) +
         bytes_in(info.why) + bytes_in(info.owner_name);
}

std::uint64_t journal_bytes(const wire::JobInfo& info) {
  return kMessageBytes + bytes_in(info.name) + bytes_in(info.command) + bytes_in(info.why);
}

std::uint64_t journal_bytes(const wire::NodeInfo& info) {
  return kMessageBytes + bytes_in(info.name) + bytes_in(info.endpoint) + bytes_in(info.total) +
         bytes_in(info.available) + bytes_in(info.labels);
}

std::uint64_t journal_bytes(const wire::EventRecord& event) {
  return kElementBytes + bytes_in(event.kind) + bytes_in(event.text) + kElementBytes;
}

std::string clipped(std::string text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  text.resize(cut_at(text, bytes_max));
  return text + "...";
}

Status clipped(Status status, std::size_t bytes_max) {
  if (status.message().size() <= bytes_max) return status;
  return Status(status.code(), clipped(status.message(), bytes_max));
}

}  // namespace troupe::scheduler
