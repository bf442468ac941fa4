#include "runtime/wire/types_codec.h"

#include <algorithm>

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

void write(capnp::List<schema::LabelTerm>::Builder out, const LabelSelector& terms) {
  capnp::uint i = 0;
  for (const LabelTerm& term : terms) {
    auto one = out[i++];
    one.setKey(text(term.key));
    one.setNegated(term.negated);
    auto values = one.initValues(count(term.values.size()));
    capnp::uint j = 0;
    for (const std::string& value : term.values) values.set(j++, text(value));
  }
}

LabelSelector read_selector(capnp::List<schema::LabelTerm>::Reader in) {
  return read_list(in, "label selector", [](schema::LabelTerm::Reader one) {
    LabelTerm term;
    term.key = text(one.getKey());
    term.negated = one.getNegated();
    checked_count(one.getValues(), "label values");
    for (const auto value : one.getValues()) term.values.push_back(text(value));
    return term;
  });
}

void write(schema::Program::Builder out, const Program& value) {
  auto argv = out.initArgv(count(value.argv.size()));
  capnp::uint i = 0;
  for (const std::string& argument : value.argv) argv.set(i++, text(argument));
  out.setWorkingDirectory(text(value.working_directory));
  out.setStdoutPath(text(value.stdout_path));
  out.setStderrPath(text(value.stderr_path));
}

Program read(schema::Program::Reader in) {
  Program value;
  checked_count(in.getArgv(), "argv");
  for (const auto argument : in.getArgv()) value.argv.push_back(text(argument));
  value.working_directory = text(in.getWorkingDirectory());
  value.stdout_path = text(in.getStdoutPath());
  value.stderr_path = text(in.getStderrPath());
  return value;
}

void write(schema::BundleSpec::Builder out, const BundleSpec& value) {
  write(out.initResources(count(value.resources.size())), value.resources);
  write(out.initLabelSelector(count(value.label_selector.size())), value.label_selector);
}

BundleSpec read(schema::BundleSpec::Reader in) {
  return {.resources = read_resources(in.getResources()),
          .label_selector = read_selector(in.getLabelSelector())};
}

void write(schema::BundleInfo::Builder out, const BundleInfo& value) {
  write(out.initResources(count(value.resources.size())), value.resources);
  write(out.initAvailable(count(value.available.size())), value.available);
  write(out.initLabelSelector(count(value.label_selector.size())), value.label_selector);
  codec::write(out.initNodeId(), value.node_id);
}

BundleInfo read(schema::BundleInfo::Reader in) {
  return {.resources = read_resources(in.getResources()),
          .available = read_resources(in.getAvailable()),
          .label_selector = read_selector(in.getLabelSelector()),
          .node_id = read_id<NodeId>(in.getNodeId())};
}

// Pairs of a status's context that travel; ours has five at most.
constexpr std::size_t kStatusContextMax = 64;

// A failure must always fit into a frame: what a user's code throws is as long as it likes.
std::string shortened(const std::string& words) {
  if (words.size() <= limits::kStatusTextBytesMax) return words;
  std::size_t kept = limits::kStatusTextBytesMax;
  while (kept > 0 && (static_cast<unsigned char>(words[kept]) & 0xc0) == 0x80) --kept;  // UTF-8
  return fmt::format("{}... ({} bytes left out)", std::string_view(words).substr(0, kept),
                     words.size() - kept);
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
  out.setMessage(text(shortened(value.message())));
  const auto& pairs = value.context();
  auto context = out.initContext(count(std::min(pairs.size(), kStatusContextMax)));
  for (capnp::uint i = 0; i < context.size(); ++i) {
    context[i].setKey(text(shortened(pairs[i].first)));
    context[i].setValue(text(shortened(pairs[i].second)));
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
  out.setArgumentsBesideBytes(value.arguments_beside_bytes);
  out.setArgumentsBesideHash(value.arguments_beside_hash);
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
  out.setNodeAffinitySoft(value.node_affinity_soft);
  write(out.initLabelSelector(count(value.label_selector.size())), value.label_selector);
  write(out.initLabelPreference(count(value.label_preference.size())), value.label_preference);
  write(out.initPlacementGroup(), value.placement_group);
  out.setBundleIndex(value.bundle_index);
  out.setPriority(value.priority);
  out.setLightCount(value.light_count);
  if (value.program != Program()) write(out.initProgram(), value.program);
  out.setNamespaceName(text(value.namespace_name));
  write(out.initOwnerActor(), value.owner_actor);
  out.setOwnerGeneration(value.owner_generation);
  write(out.initSupervisor(), value.supervisor);
  out.setSupervisorOrder(value.supervisor_order);
  auto health = out.initHealth();
  health.setIntervalMs(value.health.interval_ms);
  health.setTimeoutMs(value.health.timeout_ms);
  out.setOnHeadLoss(static_cast<std::uint8_t>(value.on_head_loss));
  out.setStartEmptyOnStateLoss(value.start_empty_on_state_loss);
}

ActorSpec read(schema::ActorSpec::Reader in) {
  ActorSpec value;
  value.actor_id = read_id<ActorId>(in.getActorId());
  value.type = text(in.getType());
  value.name = text(in.getName());
  value.constructor_arguments = data(in.getConstructorArguments());
  value.arguments_beside_bytes = in.getArgumentsBesideBytes();
  value.arguments_beside_hash = in.getArgumentsBesideHash();
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
  value.node_affinity_soft = in.getNodeAffinitySoft();
  value.label_selector = read_selector(in.getLabelSelector());
  value.label_preference = read_selector(in.getLabelPreference());
  value.placement_group = read_id<GroupId>(in.getPlacementGroup());
  value.bundle_index = in.getBundleIndex();
  value.priority = in.getPriority();
  value.light_count = in.getLightCount();
  value.program = read(in.getProgram());
  value.namespace_name = text(in.getNamespaceName());
  value.owner_actor = read_id<ActorId>(in.getOwnerActor());
  value.owner_generation = in.getOwnerGeneration();
  value.supervisor = read_id<SupervisorId>(in.getSupervisor());
  value.supervisor_order = in.getSupervisorOrder();
  value.health = {.interval_ms = in.getHealth().getIntervalMs(),
                  .timeout_ms = in.getHealth().getTimeoutMs()};
  value.on_head_loss = read_enum(in.getOnHeadLoss(), OnHeadLoss::kFence, "on_head_loss");
  value.start_empty_on_state_loss = in.getStartEmptyOnStateLoss();
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
  write(out.initPlacementGroup(), value.placement_group);
  out.setBundleIndex(value.bundle_index);
  out.setLightCount(value.light_count);
  out.setNamespaceName(text(value.namespace_name));
  out.setOwnerName(text(value.owner_name));
  write(out.initOwnerActor(), value.owner_actor);
  out.setDetached(value.detached);
  write(out.initSupervisor(), value.supervisor);
  out.setCallsDropped(value.calls_dropped);
  write(out.initSavedStateNode(), value.saved_state_node);
  out.setStateLostGeneration(value.state_lost_generation);
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
  value.placement_group = read_id<GroupId>(in.getPlacementGroup());
  value.bundle_index = in.getBundleIndex();
  value.light_count = in.getLightCount();
  value.namespace_name = text(in.getNamespaceName());
  value.owner_name = text(in.getOwnerName());
  value.owner_actor = read_id<ActorId>(in.getOwnerActor());
  value.detached = in.getDetached();
  value.supervisor = read_id<SupervisorId>(in.getSupervisor());
  value.calls_dropped = in.getCallsDropped();
  value.saved_state_node = read_id<NodeId>(in.getSavedStateNode());
  value.state_lost_generation = in.getStateLostGeneration();
  return value;
}

void write(schema::SupervisorSpec::Builder out, const SupervisorSpec& value) {
  write(out.initSupervisorId(), value.supervisor_id);
  out.setName(text(value.name));
  out.setStrategy(static_cast<std::uint8_t>(value.strategy));
  write(out.initRestart(), value.restart);
  out.setGraceMs(value.grace_ms);
  write(out.initParent(), value.parent);
  write(out.initJobId(), value.job_id);
  write(out.initOwner(), value.owner);
  write(out.initOwnerActor(), value.owner_actor);
  out.setOwnerGeneration(value.owner_generation);
  out.setDetached(value.detached);
  out.setOrder(value.order);
}

SupervisorSpec read(schema::SupervisorSpec::Reader in) {
  return {.supervisor_id = read_id<SupervisorId>(in.getSupervisorId()),
          .name = text(in.getName()),
          .strategy = read_enum(in.getStrategy(), RestartStrategy::kRestForOne, "strategy"),
          .restart = read(in.getRestart()),
          .grace_ms = in.getGraceMs(),
          .parent = read_id<SupervisorId>(in.getParent()),
          .job_id = read_id<JobId>(in.getJobId()),
          .owner = read_id<ClientId>(in.getOwner()),
          .owner_actor = read_id<ActorId>(in.getOwnerActor()),
          .owner_generation = in.getOwnerGeneration(),
          .detached = in.getDetached(),
          .order = in.getOrder()};
}

void write(schema::SupervisorInfo::Builder out, const SupervisorInfo& value) {
  write(out.initSupervisorId(), value.supervisor_id);
  out.setName(text(value.name));
  out.setStrategy(static_cast<std::uint8_t>(value.strategy));
  out.setState(static_cast<std::uint8_t>(value.state));
  write(out.initParent(), value.parent);
  write_list([&](auto size) { return out.initMembers(size); }, value.members,
             [](schema::SupervisorMember::Builder one, const SupervisorMember& member) {
               write(one.initActor(), member.actor);
               write(one.initSupervisor(), member.supervisor);
             });
  out.setRestarts(value.restarts);
  if (!value.why.ok()) write(out.initWhy(), value.why);
  write(out.initJobId(), value.job_id);
  out.setOwnerName(text(value.owner_name));
}

SupervisorInfo read(schema::SupervisorInfo::Reader in) {
  SupervisorInfo value;
  value.supervisor_id = read_id<SupervisorId>(in.getSupervisorId());
  value.name = text(in.getName());
  value.strategy = read_enum(in.getStrategy(), RestartStrategy::kRestForOne, "strategy");
  value.state = read_enum(in.getState(), SupervisorState::kEnded, "supervisor state");
  value.parent = read_id<SupervisorId>(in.getParent());
  value.members = read_list(in.getMembers(), "members", [](schema::SupervisorMember::Reader one) {
    return SupervisorMember{read_id<ActorId>(one.getActor()),
                            read_id<SupervisorId>(one.getSupervisor())};
  });
  value.restarts = in.getRestarts();
  value.why = read(in.getWhy());
  value.job_id = read_id<JobId>(in.getJobId());
  value.owner_name = text(in.getOwnerName());
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

void write(schema::PlacementGroupSpec::Builder out, const PlacementGroupSpec& value) {
  write(out.initGroupId(), value.group_id);
  out.setName(text(value.name));
  out.setStrategy(static_cast<std::uint8_t>(value.strategy));
  write_list([&](auto size) { return out.initBundles(size); }, value.bundles,
             [](auto one, const BundleSpec& bundle) { write(one, bundle); });
  write(out.initJobId(), value.job_id);
  write(out.initOwner(), value.owner);
  out.setDetached(value.detached);
  out.setPriority(value.priority);
}

PlacementGroupSpec read(schema::PlacementGroupSpec::Reader in) {
  PlacementGroupSpec value;
  value.group_id = read_id<GroupId>(in.getGroupId());
  value.name = text(in.getName());
  value.strategy = read_enum(in.getStrategy(), PlacementStrategy::kStrictSpread, "strategy");
  value.bundles = read_list(in.getBundles(), "bundles",
                            [](schema::BundleSpec::Reader one) { return read(one); });
  value.job_id = read_id<JobId>(in.getJobId());
  value.owner = read_id<ClientId>(in.getOwner());
  value.detached = in.getDetached();
  value.priority = in.getPriority();
  return value;
}

void write(schema::PlacementGroupInfo::Builder out, const PlacementGroupInfo& value) {
  write(out.initGroupId(), value.group_id);
  out.setName(text(value.name));
  out.setStrategy(static_cast<std::uint8_t>(value.strategy));
  out.setState(static_cast<std::uint8_t>(value.state));
  out.setGeneration(value.generation);
  write_list([&](auto size) { return out.initBundles(size); }, value.bundles,
             [](auto one, const BundleInfo& bundle) { write(one, bundle); });
  write(out.initJobId(), value.job_id);
  out.setPriority(value.priority);
  out.setWhy(text(value.why));
}

PlacementGroupInfo read(schema::PlacementGroupInfo::Reader in) {
  PlacementGroupInfo value;
  value.group_id = read_id<GroupId>(in.getGroupId());
  value.name = text(in.getName());
  value.strategy = read_enum(in.getStrategy(), PlacementStrategy::kStrictSpread, "strategy");
  value.state = read_enum(in.getState(), PlacementGroupState::kRemoved, "placement group state");
  value.generation = in.getGeneration();
  value.bundles = read_list(in.getBundles(), "bundles",
                            [](schema::BundleInfo::Reader one) { return read(one); });
  value.job_id = read_id<JobId>(in.getJobId());
  value.priority = in.getPriority();
  value.why = text(in.getWhy());
  return value;
}

void write(schema::Reservation::Builder out, const Reservation& value) {
  write(out.initGroupId(), value.group_id);
  out.setGeneration(value.generation);
  write(out.initResources(count(value.resources.size())), value.resources);
}

Reservation read(schema::Reservation::Reader in) {
  return {.group_id = read_id<GroupId>(in.getGroupId()),
          .generation = in.getGeneration(),
          .resources = read_resources(in.getResources())};
}

void write(schema::JobInfo::Builder out, const JobInfo& value) {
  write(out.initJobId(), value.job_id);
  out.setName(text(value.name));
  out.setState(static_cast<std::uint8_t>(value.state));
  write(out.initDriver(), value.driver);
  out.setCommand(text(value.command));
  out.setPriority(value.priority);
  out.setSubmittedUnixUs(value.submitted_unix_us);
  out.setStartedUnixUs(value.started_unix_us);
  out.setEndedUnixUs(value.ended_unix_us);
  write(out.initNodeId(), value.node_id);
  out.setStopping(value.stopping);
  if (value.exit) write(out.initExit(), *value.exit);
  out.setWhy(text(value.why));
  out.setActorsAlive(value.actors_alive);
}

JobInfo read(schema::JobInfo::Reader in) {
  JobInfo value;
  value.job_id = read_id<JobId>(in.getJobId());
  value.name = text(in.getName());
  value.state = read_enum(in.getState(), JobState::kStopped, "job state");
  value.driver = read_id<ActorId>(in.getDriver());
  value.command = text(in.getCommand());
  value.priority = in.getPriority();
  value.submitted_unix_us = in.getSubmittedUnixUs();
  value.started_unix_us = in.getStartedUnixUs();
  value.ended_unix_us = in.getEndedUnixUs();
  value.node_id = read_id<NodeId>(in.getNodeId());
  value.stopping = in.getStopping();
  if (in.hasExit()) value.exit = read(in.getExit());
  value.why = text(in.getWhy());
  value.actors_alive = in.getActorsAlive();
  return value;
}

void write(schema::GpuStatus::Builder out, const GpuStatus& value) {
  auto device = out.initDevice();
  device.setIndex(value.device.index);
  device.setUuid(text(value.device.uuid));
  device.setName(text(value.device.name));
  device.setPciBusId(text(value.device.pci_bus_id));
  device.setMinorNumber(value.device.minor_number);
  device.setNumaNode(value.device.numa_node);
  device.setComputeMajor(value.device.compute_major);
  device.setComputeMinor(value.device.compute_minor);
  device.setMemoryTotalBytes(value.device.memory_total_bytes);
  device.setParentUuid(text(value.device.parent_uuid));
  write_list([&](auto size) { return device.initLinks(size); }, value.device.links,
             [](schema::GpuLink::Builder one, const GpuLink& link) {
               one.setPeer(text(link.peer));
               one.setPath(static_cast<std::uint8_t>(link.path));
               one.setNvlinks(link.nvlinks);
               one.setPeerAccess(link.peer_access);
             });
  out.setState(static_cast<std::uint8_t>(value.state));
  out.setMemoryUsedBytes(value.memory_used_bytes);
  out.setTrouble(text(value.trouble));
  write_list([&](auto size) { return out.initHolders(size); }, value.holders,
             [](schema::GpuHolder::Builder one, const GpuHolder& holder) {
               write(one.initActorId(), holder.actor_id);
               one.setLabel(text(holder.label));
               one.setShare(holder.share);
             });
}

GpuStatus read(schema::GpuStatus::Reader in) {
  const auto device = in.getDevice();
  GpuStatus value;
  value.device.index = device.getIndex();
  value.device.uuid = text(device.getUuid());
  value.device.name = text(device.getName());
  value.device.pci_bus_id = text(device.getPciBusId());
  value.device.minor_number = device.getMinorNumber();
  value.device.numa_node = device.getNumaNode();
  value.device.compute_major = device.getComputeMajor();
  value.device.compute_minor = device.getComputeMinor();
  value.device.memory_total_bytes = device.getMemoryTotalBytes();
  value.device.parent_uuid = text(device.getParentUuid());
  value.device.links = read_list(device.getLinks(), "links", [](schema::GpuLink::Reader one) {
    return GpuLink{.peer = text(one.getPeer()),
                   .path = read_enum(one.getPath(), GpuPath::kSystem, "path between GPUs"),
                   .nvlinks = one.getNvlinks(),
                   .peer_access = one.getPeerAccess()};
  });
  value.state = read_enum(in.getState(), GpuState::kLost, "GPU state");
  value.memory_used_bytes = in.getMemoryUsedBytes();
  value.trouble = text(in.getTrouble());
  value.holders = read_list(in.getHolders(), "holders", [](schema::GpuHolder::Reader one) {
    return GpuHolder{.actor_id = read_id<ActorId>(one.getActorId()),
                     .label = text(one.getLabel()),
                     .share = one.getShare()};
  });
  return value;
}

}  // namespace troupe::wire::codec
