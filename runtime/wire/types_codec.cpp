#include "runtime/wire/types_codec.h"

namespace troupe::wire::codec {
namespace {

using Texts = std::map<std::string, std::string>;

void write(capnp::List<schema::Pair>::Builder out, const Texts& values) {
  capnp::uint i = 0;
  for (const auto& [key, value] : values) {
    out[i].setKey(text(key));
    out[i++].setValue(text(value));
  }
}

void write(capnp::List<schema::Resource>::Builder out, const Resources& values) {
  capnp::uint i = 0;
  for (const auto& [name, amount] : values) {
    out[i].setName(text(name));
    out[i++].setAmount(amount);
  }
}

Texts read_texts(capnp::List<schema::Pair>::Reader in, const char* name) {
  Texts values;
  checked_count(in, name);
  for (const auto& pair : in) {
    if (!values.emplace(text(pair.getKey()), text(pair.getValue())).second) {
      throw Malformed{fmt::format("a key is twice in '{}'", name)};
    }
  }
  return values;
}

Resources read_resources(capnp::List<schema::Resource>::Reader in) {
  Resources values;
  checked_count(in, "resources");
  for (const auto& resource : in) {
    if (!values.emplace(text(resource.getName()), resource.getAmount()).second) {
      throw Malformed{"a name is twice in 'resources'"};
    }
  }
  return values;
}

template <typename Enum>
Enum read_enum(std::uint8_t number, Enum last, const char* name) {
  if (number > static_cast<std::uint8_t>(last)) {
    throw Malformed{fmt::format("'{}' is {}, which this version does not know", name, number)};
  }
  return static_cast<Enum>(number);
}

capnp::uint count(std::size_t size) { return static_cast<capnp::uint>(size); }

void write(schema::RestartPolicy::Builder out, const RestartPolicy& value) {
  out.setMaxRestarts(value.max_restarts);
  out.setWindowMs(value.window_ms);
  out.setBackoffInitialMs(value.backoff_initial_ms);
  out.setBackoffMaxMs(value.backoff_max_ms);
}

RestartPolicy read(schema::RestartPolicy::Reader in) {
  return {.max_restarts = in.getMaxRestarts(),
          .window_ms = in.getWindowMs(),
          .backoff_initial_ms = in.getBackoffInitialMs(),
          .backoff_max_ms = in.getBackoffMaxMs()};
}

}  // namespace

void write(schema::Endpoint::Builder out, const Endpoint& value) {
  out.setHost(text(value.host));
  out.setPort(value.port);
  out.setLocalName(text(value.local_name));
}

Endpoint read(schema::Endpoint::Reader in) {
  return {.host = text(in.getHost()), .port = in.getPort(), .local_name = text(in.getLocalName())};
}

void write(schema::Status::Builder out, const Status& value) {
  out.setCode(static_cast<std::int32_t>(value.code()));
  out.setMessage(text(value.message()));
  auto context = out.initContext(count(value.context().size()));
  capnp::uint i = 0;
  for (const auto& [key, detail] : value.context()) {
    context[i].setKey(text(key));
    context[i++].setValue(text(detail));
  }
}

Status read(schema::Status::Reader in) {
  const Code code = code_from_number(in.getCode());
  if (code == Code::kOk) return {};
  Status status(code, text(in.getMessage()));
  checked_count(in.getContext(), "context");
  for (const auto& pair : in.getContext()) {
    status.with(text(pair.getKey()), text(pair.getValue()));
  }
  return status;
}

void write(schema::ActorSpec::Builder out, const ActorSpec& value) {
  write(out.initActorId(), value.actor_id);
  out.setType(text(value.type));
  out.setName(text(value.name));
  out.setConstructorArguments(data(value.constructor_arguments));
  write(out.initResources(count(value.resources.size())), value.resources);
  write(out.initRestart(), value.restart);
  if (value.node_affinity) write(out.initNodeAffinity(), *value.node_affinity);
  write(out.initJobId(), value.job_id);
  write(out.initOwner(), value.owner);
  out.setDetached(value.detached);
  auto image = out.initImage();
  image.setPath(text(value.image.path));
  image.setXxh3(value.image.xxh3);
  out.setRun(text(value.run));
  out.setRank(value.rank);
  write(out.initEnvironment(count(value.environment.size())), value.environment);
  out.setLogPath(text(value.log_path));
}

ActorSpec read(schema::ActorSpec::Reader in) {
  ActorSpec value;
  value.actor_id = read_id<ActorId>(in.getActorId());
  value.type = text(in.getType());
  value.name = text(in.getName());
  value.constructor_arguments = data(in.getConstructorArguments());
  value.resources = read_resources(in.getResources());
  value.restart = read(in.getRestart());
  if (in.hasNodeAffinity()) value.node_affinity = read_id<NodeId>(in.getNodeAffinity());
  value.job_id = read_id<JobId>(in.getJobId());
  value.owner = read_id<ClientId>(in.getOwner());
  value.detached = in.getDetached();
  const auto image = in.getImage();
  value.image = {.path = text(image.getPath()), .xxh3 = image.getXxh3()};
  value.run = text(in.getRun());
  value.rank = in.getRank();
  value.environment = read_texts(in.getEnvironment(), "environment");
  value.log_path = text(in.getLogPath());
  return value;
}

void write(schema::ActorInfo::Builder out, const ActorInfo& value) {
  write(out.initActorId(), value.actor_id);
  out.setType(text(value.type));
  out.setName(text(value.name));
  out.setState(static_cast<std::uint8_t>(value.state));
  out.setGeneration(value.generation);
  write(out.initNodeId(), value.node_id);
  write(out.initEndpoint(), value.endpoint);
  out.setPid(value.pid);
  out.setRestarts(value.restarts);
  out.setRank(value.rank);
  write(out.initJobId(), value.job_id);
  write(out.initResources(count(value.resources.size())), value.resources);
  if (!value.death.ok()) write(out.initDeath(), value.death);
  out.setPendingWhy(text(value.pending_why));
}

ActorInfo read(schema::ActorInfo::Reader in) {
  ActorInfo value;
  value.actor_id = read_id<ActorId>(in.getActorId());
  value.type = text(in.getType());
  value.name = text(in.getName());
  value.state = read_enum(in.getState(), ActorState::kDead, "actor state");
  value.generation = in.getGeneration();
  value.node_id = read_id<NodeId>(in.getNodeId());
  value.endpoint = read(in.getEndpoint());
  value.pid = in.getPid();
  value.restarts = in.getRestarts();
  value.rank = in.getRank();
  value.job_id = read_id<JobId>(in.getJobId());
  value.resources = read_resources(in.getResources());
  value.death = read(in.getDeath());
  value.pending_why = text(in.getPendingWhy());
  return value;
}

void write(schema::NodeInfo::Builder out, const NodeInfo& value) {
  write(out.initNodeId(), value.node_id);
  out.setName(text(value.name));
  write(out.initEndpoint(), value.endpoint);
  out.setState(static_cast<std::uint8_t>(value.state));
  write(out.initTotal(count(value.total.size())), value.total);
  write(out.initAvailable(count(value.available.size())), value.available);
  write(out.initLabels(count(value.labels.size())), value.labels);
  out.setPid(value.pid);
  out.setJoinedUnixUs(value.joined_unix_us);
}

NodeInfo read(schema::NodeInfo::Reader in) {
  NodeInfo value;
  value.node_id = read_id<NodeId>(in.getNodeId());
  value.name = text(in.getName());
  value.endpoint = read(in.getEndpoint());
  value.state = read_enum(in.getState(), NodeState::kSuspected, "node state");
  value.total = read_resources(in.getTotal());
  value.available = read_resources(in.getAvailable());
  value.labels = read_texts(in.getLabels(), "labels");
  value.pid = in.getPid();
  value.joined_unix_us = in.getJoinedUnixUs();
  return value;
}

void write(schema::ExitStatus::Builder out, const ExitStatus& value) {
  out.setExitCode(value.exit_code);
  out.setSignal(value.signal);
}

ExitStatus read(schema::ExitStatus::Reader in) {
  return {.exit_code = in.getExitCode(), .signal = in.getSignal()};
}

void write(schema::EventRecord::Builder out, const EventRecord& value) {
  out.setSequence(value.sequence);
  out.setUnixTimeUs(value.unix_time_us);
  out.setKind(text(value.kind));
  write(out.initNodeId(), value.node_id);
  write(out.initActorId(), value.actor_id);
  out.setGeneration(value.generation);
  out.setText(text(value.text));
}

EventRecord read(schema::EventRecord::Reader in) {
  return {.sequence = in.getSequence(),
          .unix_time_us = in.getUnixTimeUs(),
          .kind = text(in.getKind()),
          .node_id = read_id<NodeId>(in.getNodeId()),
          .actor_id = read_id<ActorId>(in.getActorId()),
          .generation = in.getGeneration(),
          .text = text(in.getText())};
}

}  // namespace troupe::wire::codec
