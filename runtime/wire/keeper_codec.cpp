// keeper_messages.h to and from keeper.capnp.

#include "runtime/wire/keeper.capnp.h"
#include "runtime/wire/keeper_messages.h"
#include "runtime/wire/types_codec.h"

namespace troupe::wire {
namespace codec {
namespace {

using codec::read;
using codec::write;

template <typename T>
capnp::uint count_of(const std::vector<T>& values) {
  return static_cast<capnp::uint>(values.size());
}

void write_texts(capnp::List<capnp::Text>::Builder out, const std::vector<std::string>& values) {
  for (capnp::uint i = 0; i < values.size(); ++i) out.set(i, text(values[i]));
}

void write_numbers(capnp::List<std::int32_t>::Builder out,
                   const std::vector<std::int32_t>& values) {
  for (capnp::uint i = 0; i < values.size(); ++i) out.set(i, values[i]);
}

std::vector<std::string> read_texts(capnp::List<capnp::Text>::Reader in, const char* name) {
  std::vector<std::string> values;
  values.reserve(checked_count(in, name));
  for (const auto& value : in) values.push_back(text(value));
  return values;
}

std::vector<std::int32_t> read_numbers(capnp::List<std::int32_t>::Reader in, const char* name) {
  std::vector<std::int32_t> values;
  values.reserve(checked_count(in, name));
  for (const std::int32_t value : in) values.push_back(value);
  return values;
}

void write(schema::KeeperHello::Builder out, const KeeperHello& m) {
  out.setProtocolVersion(m.protocol_version);
}

void write(schema::KeeperSpawn::Builder out, const KeeperSpawn& m) {
  out.setChildId(m.child_id);
  out.setPath(text(m.path));
  write_texts(out.initArgv(count_of(m.argv)), m.argv);
  write_texts(out.initEnvironment(count_of(m.environment)), m.environment);
  write_numbers(out.initDescriptors(count_of(m.descriptors)), m.descriptors);
  out.setByPath(m.by_path);
  out.setWorkingDirectory(text(m.working_directory));
  out.setNewSession(m.new_session);
}

void write(schema::KeeperPut::Builder out, const KeeperPut& m) {
  out.setKey(text(m.key));
  out.setBytes(data(m.bytes));
}

void write(schema::KeeperDrop::Builder out, const KeeperDrop& m) { out.setKey(text(m.key)); }

void write(schema::KeeperForget::Builder out, const KeeperForget& m) { out.setChildId(m.child_id); }

void write(schema::KeeperAlive::Builder out, const KeeperAlive& m) {
  out.setLeaseEndNs(m.lease_end_ns);
}

void write(schema::KeeperQuit::Builder, const KeeperQuit&) {}

void write(schema::KeeperEntry::Builder out, const KeeperEntry& m) {
  out.setKey(text(m.key));
  out.setBytes(data(m.bytes));
}

void write(schema::KeeperChild::Builder out, const KeeperChild& m) {
  out.setChildId(m.child_id);
  out.setPid(m.pid);
  out.setEnded(m.ended);
  write(out.initExit(), m.exit);
}

void write(schema::KeeperWelcome::Builder out, const KeeperWelcome& m) {
  if (!m.status.ok()) write(out.initStatus(), m.status);
}

void write(schema::KeeperSpawned::Builder out, const KeeperSpawned& m) {
  out.setChildId(m.child_id);
  if (!m.status.ok()) write(out.initStatus(), m.status);
  out.setPid(m.pid);
}

void write(schema::KeeperExited::Builder out, const KeeperExited& m) {
  out.setChildId(m.child_id);
  write(out.initExit(), m.exit);
}

void write(schema::KeptActor::Builder out, const KeptActor& m) {
  write(out.initActorId(), m.actor_id);
  out.setGeneration(m.generation);
  out.setHost(m.host);
  out.setReady(m.ready);
  out.setConstructorFailed(m.constructor_failed);
  out.setEndsForGood(m.ends_for_good);
  if (!m.cause.ok()) write(out.initCause(), m.cause);
  write_texts(out.initGpus(count_of(m.gpus)), m.gpus);
}

void write(schema::KeptSegment::Builder out, const KeptSegment& m) {
  write(out.initJobId(), m.job_id);
  out.setName(text(m.name));
  out.setOwner(m.owner);
}

void write(schema::KeptNode::Builder out, const KeptNode& m) {
  write(out.initEndpoint(), m.endpoint);
  out.setName(text(m.name));
  out.setJoined(m.joined);
  out.setContactNs(m.contact_ns);
  out.setHeartbeatTimeoutMs(m.heartbeat_timeout_ms);
}

void write(schema::KeptGpu::Builder out, const KeptGpu& m) {
  out.setName(text(m.name));
  out.setIdleBytes(m.idle_bytes);
  auto pids = out.initIdlePids(count_of(m.idle_pids));
  for (capnp::uint i = 0; i < m.idle_pids.size(); ++i) pids.set(i, m.idle_pids[i]);
  write(out.initLastJob(), m.last_job);
  out.setReleasing(m.releasing);
  out.setLost(m.lost);
  out.setTrouble(text(m.trouble));
}

void write(schema::KeptGpus::Builder out, const KeptGpus& m) {
  write_list([&](auto count) { return out.initGpus(count); }, m.gpus,
             [](auto one, const KeptGpu& gpu) { write(one, gpu); });
}

KeeperHello read(schema::KeeperHello::Reader in) {
  return {.protocol_version = in.getProtocolVersion()};
}

KeeperSpawn read(schema::KeeperSpawn::Reader in) {
  return {.child_id = in.getChildId(),
          .path = text(in.getPath()),
          .argv = read_texts(in.getArgv(), "argv"),
          .environment = read_texts(in.getEnvironment(), "environment"),
          .descriptors = read_numbers(in.getDescriptors(), "descriptors"),
          .by_path = in.getByPath(),
          .working_directory = text(in.getWorkingDirectory()),
          .new_session = in.getNewSession()};
}

KeeperPut read(schema::KeeperPut::Reader in) {
  return {.key = text(in.getKey()), .bytes = data(in.getBytes())};
}

KeeperDrop read(schema::KeeperDrop::Reader in) { return {.key = text(in.getKey())}; }

KeeperForget read(schema::KeeperForget::Reader in) { return {.child_id = in.getChildId()}; }

KeeperAlive read(schema::KeeperAlive::Reader in) { return {in.getLeaseEndNs()}; }

KeeperQuit read(schema::KeeperQuit::Reader) { return {}; }

KeeperEntry read(schema::KeeperEntry::Reader in) {
  return {.key = text(in.getKey()), .bytes = data(in.getBytes())};
}

KeeperChild read(schema::KeeperChild::Reader in) {
  return {.child_id = in.getChildId(),
          .pid = in.getPid(),
          .ended = in.getEnded(),
          .exit = read(in.getExit())};
}

KeeperWelcome read(schema::KeeperWelcome::Reader in) { return {.status = read(in.getStatus())}; }

KeeperSpawned read(schema::KeeperSpawned::Reader in) {
  return {.child_id = in.getChildId(), .status = read(in.getStatus()), .pid = in.getPid()};
}

KeeperExited read(schema::KeeperExited::Reader in) {
  return {.child_id = in.getChildId(), .exit = read(in.getExit())};
}

KeptActor read(schema::KeptActor::Reader in) {
  return {.actor_id = read_id<ActorId>(in.getActorId()),
          .generation = in.getGeneration(),
          .host = in.getHost(),
          .ready = in.getReady(),
          .constructor_failed = in.getConstructorFailed(),
          .ends_for_good = in.getEndsForGood(),
          .cause = read(in.getCause()),
          .gpus = read_texts(in.getGpus(), "gpus")};
}

KeptSegment read(schema::KeptSegment::Reader in) {
  return {
      .job_id = read_id<JobId>(in.getJobId()), .name = text(in.getName()), .owner = in.getOwner()};
}

KeptNode read(schema::KeptNode::Reader in) {
  return {.endpoint = read(in.getEndpoint()),
          .name = text(in.getName()),
          .joined = in.getJoined(),
          .contact_ns = in.getContactNs(),
          .heartbeat_timeout_ms = in.getHeartbeatTimeoutMs()};
}

KeptGpu read(schema::KeptGpu::Reader in) {
  KeptGpu gpu;
  gpu.name = text(in.getName());
  gpu.idle_bytes = in.getIdleBytes();
  gpu.idle_pids.reserve(checked_count(in.getIdlePids(), "pids"));
  for (const std::int64_t pid : in.getIdlePids()) gpu.idle_pids.push_back(pid);
  gpu.last_job = read_id<JobId>(in.getLastJob());
  gpu.releasing = in.getReleasing();
  gpu.lost = in.getLost();
  gpu.trouble = text(in.getTrouble());
  return gpu;
}

KeptGpus read(schema::KeptGpus::Reader in) {
  return {.gpus = read_list(in.getGpus(), "gpus",
                            [](schema::KeptGpu::Reader one) { return read(one); })};
}

// Every message of the family, once: M(the schema's number, name).
#define TROUPE_KEEPER_MESSAGES(M)  \
  M(KEEPER_HELLO, KeeperHello)     \
  M(KEEPER_SPAWN, KeeperSpawn)     \
  M(KEEPER_PUT, KeeperPut)         \
  M(KEEPER_DROP, KeeperDrop)       \
  M(KEEPER_FORGET, KeeperForget)   \
  M(KEEPER_ALIVE, KeeperAlive)     \
  M(KEEPER_QUIT, KeeperQuit)       \
  M(KEEPER_ENTRY, KeeperEntry)     \
  M(KEEPER_CHILD, KeeperChild)     \
  M(KEEPER_WELCOME, KeeperWelcome) \
  M(KEEPER_SPAWNED, KeeperSpawned) \
  M(KEEPER_EXITED, KeeperExited)   \
  M(KEPT_ACTOR, KeptActor)         \
  M(KEPT_SEGMENT, KeptSegment)     \
  M(KEPT_NODE, KeptNode)           \
  M(KEPT_GPUS, KeptGpus)

struct Put {
  schema::KeeperMessage::Builder root;
#define TROUPE_PUT(number, Name) \
  void operator()(const Name& message) { write(root.init##Name(), message); }
  TROUPE_KEEPER_MESSAGES(TROUPE_PUT)
#undef TROUPE_PUT
};

KeeperMessage get(schema::KeeperMessage::Reader root) {
  switch (root.which()) {
#define TROUPE_GET(number, Name)                     \
  case schema::KeeperMessage::number:                \
    if (!root.has##Name()) throw Malformed{"empty"}; \
    return read(root.get##Name());
    TROUPE_KEEPER_MESSAGES(TROUPE_GET)
#undef TROUPE_GET
  }
  throw Malformed{fmt::format("message number {}, which this version does not know",
                              static_cast<unsigned>(root.which()))};
}

}  // namespace
}  // namespace codec

Bytes encode(const KeeperMessage& message) {
  capnp::MallocMessageBuilder builder(codec::segment_words(0));
  visit(codec::Put{builder.initRoot<schema::KeeperMessage>()}, message);
  return codec::to_bytes(builder);
}

Result<KeeperMessage> decode_keeper(std::span<const std::byte> packet) {
  KeeperMessage message;
  TROUPE_RETURN_IF_ERROR(
      codec::decode_frame(packet, "keeper message", [&](capnp::MessageReader& reader) {
        message = codec::get(reader.getRoot<schema::KeeperMessage>());
      }));
  return message;
}

}  // namespace troupe::wire

namespace troupe {
template class Variant<wire::KeeperMessages>;
}  // namespace troupe
