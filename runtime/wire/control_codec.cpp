// control_messages.h to and from control.capnp.

#include "runtime/wire/control.capnp.h"
#include "runtime/wire/control_messages.h"
#include "runtime/wire/types_codec.h"

namespace troupe::wire {
namespace codec {
namespace {

using codec::read;
using codec::write;

// --- each message to its struct ------------------------------------------------------------------

void write(schema::RunningActor::Builder out, const RunningActor& m) {
  write(out.initSpec(), m.spec);
  out.setGeneration(m.generation);
  out.setPid(m.pid);
  out.setReady(m.ready);
}

void write(schema::ActorGeneration::Builder out, const std::pair<ActorId, std::uint64_t>& m) {
  write(out.initActorId(), m.first);
  out.setGeneration(m.second);
}

void write(schema::ActorExited::Builder out, const ActorExited& m) {
  write(out.initActorId(), m.actor_id);
  out.setGeneration(m.generation);
  write(out.initExit(), m.exit);
  out.setConstructorFailed(m.constructor_failed);
  if (!m.cause.ok()) write(out.initCause(), m.cause);
  out.setLogTail(text(m.log_tail));
  out.setCallsDropped(m.calls_dropped);
}

constexpr auto kWriteOne = [](auto out, const auto& m) { write(out, m); };

void write(schema::ClientHello::Builder out, const ClientHello& m) {
  out.setRequestId(m.request_id);
  write(out.initClientId(), m.client_id);
  write(out.initJobId(), m.job_id);
  out.setName(text(m.name));
  out.setKind(text(m.kind));
  out.setReconnect(m.reconnect);
  out.setProtocolVersion(m.protocol_version);
  out.setNamespaceName(text(m.namespace_name));
}

void write(schema::RegisterNode::Builder out, const RegisterNode& m) {
  out.setRequestId(m.request_id);
  out.setProtocolVersion(m.protocol_version);
  write(out.initNode(), m.node);
  write_list([&](auto count) { return out.initRunning(count); }, m.running, kWriteOne);
  write_list([&](auto count) { return out.initExited(count); }, m.exited, kWriteOne);
}

void write(schema::RegisterNodeReply::Builder out, const RegisterNodeReply& m) {
  out.setRequestId(m.request_id);
  if (!m.status.ok()) write(out.initStatus(), m.status);
  out.setName(text(m.name));
  out.setHeartbeatIntervalMs(m.heartbeat_interval_ms);
  out.setHeartbeatTimeoutMs(m.heartbeat_timeout_ms);
  write_list([&](auto count) { return out.initStop(count); }, m.stop, kWriteOne);
  write_list([&](auto count) { return out.initReservations(count); }, m.reservations, kWriteOne);
}

void write(schema::NodeUsage::Builder out, const NodeUsage& m) {
  out.setCpuBusyUs(m.cpu_busy_us);
  out.setMemoryUsedBytes(m.memory_used_bytes);
  out.setMemoryTotalBytes(m.memory_total_bytes);
  out.setProcesses(m.processes);
}

void write(schema::Heartbeat::Builder out, const Heartbeat& m) {
  write(out.initNodeId(), m.node_id);
  out.setSequence(m.sequence);
  if (m.usage) write(out.initUsage(), *m.usage);
}

void write(schema::StartActor::Builder out, const StartActor& m) {
  write(out.initSpec(), m.spec);
  out.setGeneration(m.generation);
  write(out.initSavedStateNode(), m.saved_state_node);
  write(out.initSavedStateEndpoint(), m.saved_state_endpoint);
  out.setStateLostWith(text(m.state_lost_with));
}

void write(schema::StopActor::Builder out, const StopActor& m) {
  write(out.initActorId(), m.actor_id);
  out.setGeneration(m.generation);
  out.setGraceMs(m.grace_ms);
  out.setReason(text(m.reason));
  out.setComesBack(m.comes_back);
  out.setDrain(m.drain);
}

void write(schema::ShutdownNode::Builder out, const ShutdownNode& m) {
  out.setReason(text(m.reason));
}

void write(schema::ActorStarted::Builder out, const ActorStarted& m) {
  write(out.initActorId(), m.actor_id);
  out.setGeneration(m.generation);
  out.setPid(m.pid);
}

void write(schema::ActorReady::Builder out, const ActorReady& m) {
  write(out.initActorId(), m.actor_id);
  out.setGeneration(m.generation);
}

void write(schema::ActorSaved::Builder out, const ActorSaved& m) {
  write(out.initActorId(), m.actor_id);
  out.setGeneration(m.generation);
}

void write(schema::CreateActors::Builder out, const CreateActors& m) {
  out.setRequestId(m.request_id);
  write_list([&](auto count) { return out.initSpecs(count); }, m.specs, kWriteOne);
  out.setGang(m.gang);
  out.setNoWait(m.no_wait);
  out.setGetIfExists(m.get_if_exists);
}

void write(schema::KillActor::Builder out, const KillActor& m) {
  out.setRequestId(m.request_id);
  write(out.initActorId(), m.actor_id);
  out.setAllowRestart(m.allow_restart);
  out.setGraceMs(m.grace_ms);
  out.setReason(text(m.reason));
  out.setDrain(m.drain);
}

void write(schema::WatchActor::Builder out, const WatchActor& m) {
  out.setRequestId(m.request_id);
  write(out.initActorId(), m.actor_id);
  out.setName(text(m.name));
  out.setStop(m.stop);
  out.setNamespaceName(text(m.namespace_name));
}

void write(schema::WatchNodes::Builder out, const WatchNodes& m) {
  out.setRequestId(m.request_id);
  out.setWithoutAmounts(m.without_amounts);
}

void write(schema::ListNodes::Builder out, const ListNodes& m) { out.setRequestId(m.request_id); }

void write(schema::ListActors::Builder out, const ListActors& m) {
  out.setRequestId(m.request_id);
  out.setIncludeDead(m.include_dead);
}

void write(schema::ListEvents::Builder out, const ListEvents& m) {
  out.setRequestId(m.request_id);
  out.setAfterSequence(m.after_sequence);
  out.setCountMax(m.count_max);
}

void write(schema::EndJob::Builder out, const EndJob& m) {
  out.setRequestId(m.request_id);
  write(out.initJobId(), m.job_id);
  out.setReason(text(m.reason));
}

void write(schema::StopCluster::Builder out, const StopCluster& m) {
  out.setRequestId(m.request_id);
  out.setReason(text(m.reason));
}

void write(schema::ReadLogs::Builder out, const ReadLogs& m) {
  out.setRequestId(m.request_id);
  write(out.initActorId(), m.actor_id);
  out.setBytesMax(m.bytes_max);
}

void write(schema::Reply::Builder out, const Reply& m) {
  out.setRequestId(m.request_id);
  if (!m.status.ok()) write(out.initStatus(), m.status);
  write(out.initActorId(), m.actor_id);
}

void write(schema::ActorUpdate::Builder out, const ActorUpdate& m) {
  write(out.initActor(), m.actor);
}

void write(schema::NodeUpdate::Builder out, const NodeUpdate& m) { write(out.initNode(), m.node); }

void write(schema::NodeList::Builder out, const NodeList& m) {
  out.setRequestId(m.request_id);
  write_list([&](auto count) { return out.initNodes(count); }, m.nodes, kWriteOne);
}

void write(schema::ActorList::Builder out, const ActorList& m) {
  out.setRequestId(m.request_id);
  write_list([&](auto count) { return out.initActors(count); }, m.actors, kWriteOne);
}

void write(schema::EventList::Builder out, const EventList& m) {
  out.setRequestId(m.request_id);
  write_list([&](auto count) { return out.initEvents(count); }, m.events, kWriteOne);
}

void write(schema::LogText::Builder out, const LogText& m) {
  out.setRequestId(m.request_id);
  if (!m.status.ok()) write(out.initStatus(), m.status);
  out.setText(text(m.text));
}

void write(schema::ReadSegment::Builder out, const ReadSegment& m) {
  out.setRequestId(m.request_id);
  write(out.initJobId(), m.job_id);
  out.setName(text(m.name));
  out.setOffset(m.offset);
  out.setBytesMax(m.bytes_max);
}

void write(schema::ReadSavedState::Builder out, const ReadSavedState& m) {
  out.setRequestId(m.request_id);
  write(out.initActorId(), m.actor_id);
  out.setOffset(m.offset);
  out.setBytesMax(m.bytes_max);
}

void write(schema::SegmentBytes::Builder out, const SegmentBytes& m) {
  out.setRequestId(m.request_id);
  if (!m.status.ok()) write(out.initStatus(), m.status);
  out.setSizeBytes(m.size_bytes);
  out.setBytes(data(m.bytes));
}

void write(schema::GpuList::Builder out, const GpuList& m) {
  out.setRequestId(m.request_id);
  write_list([&](auto count) { return out.initGpus(count); }, m.gpus, kWriteOne);
}

void write(schema::NodeNote::Builder out, const NodeNote& m) {
  out.setKind(text(m.kind));
  out.setText(text(m.text));
}

void write(schema::PrepareBundles::Builder out, const PrepareBundles& m) {
  write(out.initReservation(), m.reservation);
}

void write(schema::CommitBundles::Builder out, const CommitBundles& m) {
  write(out.initGroupId(), m.group_id);
  out.setGeneration(m.generation);
}

void write(schema::ReleaseBundles::Builder out, const ReleaseBundles& m) {
  write(out.initGroupId(), m.group_id);
  out.setGeneration(m.generation);
}

void write(schema::BundlesPrepared::Builder out, const BundlesPrepared& m) {
  write(out.initGroupId(), m.group_id);
  out.setGeneration(m.generation);
  if (!m.status.ok()) write(out.initStatus(), m.status);
}

void write(schema::CreatePlacementGroup::Builder out, const CreatePlacementGroup& m) {
  out.setRequestId(m.request_id);
  write(out.initSpec(), m.spec);
}

void write(schema::RemovePlacementGroup::Builder out, const RemovePlacementGroup& m) {
  out.setRequestId(m.request_id);
  write(out.initGroupId(), m.group_id);
  out.setReason(text(m.reason));
}

void write(schema::WatchPlacementGroup::Builder out, const WatchPlacementGroup& m) {
  out.setRequestId(m.request_id);
  write(out.initGroupId(), m.group_id);
  out.setName(text(m.name));
  out.setStop(m.stop);
}

void write(schema::ListPlacementGroups::Builder out, const ListPlacementGroups& m) {
  out.setRequestId(m.request_id);
  out.setIncludeRemoved(m.include_removed);
}

void write(schema::PlacementGroupUpdate::Builder out, const PlacementGroupUpdate& m) {
  write(out.initGroup(), m.group);
}

void write(schema::PlacementGroupList::Builder out, const PlacementGroupList& m) {
  out.setRequestId(m.request_id);
  write_list([&](auto count) { return out.initGroups(count); }, m.groups, kWriteOne);
}

void write(schema::FollowOutput::Builder out, const FollowOutput& m) {
  out.setRequestId(m.request_id);
  write(out.initJobId(), m.job_id);
  write(out.initActorId(), m.actor_id);
}

void write(schema::OutputLine::Builder out, const OutputLine& m) {
  write(out.initActorId(), m.actor_id);
  out.setLabel(text(m.label));
  out.setNumber(m.number);
  out.setText(text(m.text));
  out.setNotice(m.notice);
  out.setErrorStream(m.error_stream);
  out.setEnd(static_cast<std::uint8_t>(m.end));
  out.setShownBytes(m.shown_bytes);
}

void write(schema::SubmitJob::Builder out, const SubmitJob& m) {
  out.setRequestId(m.request_id);
  out.setName(text(m.name));
  write(out.initDriver(), m.driver);
}

void write(schema::StopJob::Builder out, const StopJob& m) {
  out.setRequestId(m.request_id);
  write(out.initJobId(), m.job_id);
  out.setGraceMs(m.grace_ms);
  out.setReason(text(m.reason));
}

void write(schema::ListJobs::Builder out, const ListJobs& m) {
  out.setRequestId(m.request_id);
  out.setIncludeEnded(m.include_ended);
}

void write(schema::JobList::Builder out, const JobList& m) {
  out.setRequestId(m.request_id);
  write_list([&](auto count) { return out.initJobs(count); }, m.jobs, kWriteOne);
}

void write(schema::CreateSupervisor::Builder out, const CreateSupervisor& m) {
  out.setRequestId(m.request_id);
  write(out.initSpec(), m.spec);
}

void write(schema::EndSupervisor::Builder out, const EndSupervisor& m) {
  out.setRequestId(m.request_id);
  write(out.initSupervisorId(), m.supervisor_id);
  out.setReason(text(m.reason));
}

void write(schema::WatchSupervisor::Builder out, const WatchSupervisor& m) {
  out.setRequestId(m.request_id);
  write(out.initSupervisorId(), m.supervisor_id);
  out.setStop(m.stop);
}

void write(schema::ListSupervisors::Builder out, const ListSupervisors& m) {
  out.setRequestId(m.request_id);
  out.setIncludeEnded(m.include_ended);
}

void write(schema::SupervisorUpdate::Builder out, const SupervisorUpdate& m) {
  write(out.initSupervisor(), m.supervisor);
}

void write(schema::SupervisorList::Builder out, const SupervisorList& m) {
  out.setRequestId(m.request_id);
  write_list([&](auto count) { return out.initSupervisors(count); }, m.supervisors, kWriteOne);
}

void write(schema::DrainNode::Builder out, const DrainNode& m) {
  out.setRequestId(m.request_id);
  write(out.initNodeId(), m.node_id);
  out.setGraceMs(m.grace_ms);
  out.setReason(text(m.reason));
}

void write(schema::ReadGpus::Builder out, const ReadGpus& m) { out.setRequestId(m.request_id); }

// --- and back ------------------------------------------------------------------------------------

ActorExited read(schema::ActorExited::Reader in) {
  return {.actor_id = read_id<ActorId>(in.getActorId()),
          .generation = in.getGeneration(),
          .exit = read(in.getExit()),
          .constructor_failed = in.getConstructorFailed(),
          .cause = read(in.getCause()),
          .log_tail = text(in.getLogTail()),
          .calls_dropped = in.getCallsDropped()};
}

RunningActor read(schema::RunningActor::Reader in) {
  return {.spec = read(in.getSpec()),
          .generation = in.getGeneration(),
          .pid = in.getPid(),
          .ready = in.getReady()};
}

std::pair<ActorId, std::uint64_t> read(schema::ActorGeneration::Reader in) {
  return {read_id<ActorId>(in.getActorId()), in.getGeneration()};
}

constexpr auto kReadOne = [](auto in) { return read(in); };

ClientHello read(schema::ClientHello::Reader in) {
  return {.request_id = in.getRequestId(),
          .client_id = read_id<ClientId>(in.getClientId()),
          .job_id = read_id<JobId>(in.getJobId()),
          .name = text(in.getName()),
          .kind = text(in.getKind()),
          .reconnect = in.getReconnect(),
          .protocol_version = in.getProtocolVersion(),
          .namespace_name = text(in.getNamespaceName())};
}

RegisterNode read(schema::RegisterNode::Reader in) {
  return {.request_id = in.getRequestId(),
          .protocol_version = in.getProtocolVersion(),
          .node = read(in.getNode()),
          .running = read_list(in.getRunning(), "running", kReadOne),
          .exited = read_list(in.getExited(), "exited", kReadOne)};
}

RegisterNodeReply read(schema::RegisterNodeReply::Reader in) {
  return {.request_id = in.getRequestId(),
          .status = read(in.getStatus()),
          .name = text(in.getName()),
          .heartbeat_interval_ms = in.getHeartbeatIntervalMs(),
          .heartbeat_timeout_ms = in.getHeartbeatTimeoutMs(),
          .stop = read_list(in.getStop(), "stop", kReadOne),
          .reservations = read_list(in.getReservations(), "reservations", kReadOne)};
}

NodeUsage read(schema::NodeUsage::Reader in) {
  return {.cpu_busy_us = in.getCpuBusyUs(),
          .memory_used_bytes = in.getMemoryUsedBytes(),
          .memory_total_bytes = in.getMemoryTotalBytes(),
          .processes = in.getProcesses()};
}

Heartbeat read(schema::Heartbeat::Reader in) {
  Heartbeat message{.node_id = read_id<NodeId>(in.getNodeId()), .sequence = in.getSequence()};
  if (in.hasUsage()) message.usage = read(in.getUsage());
  return message;
}

StartActor read(schema::StartActor::Reader in) {
  return {.spec = read(in.getSpec()),
          .generation = in.getGeneration(),
          .saved_state_node = read_id<NodeId>(in.getSavedStateNode()),
          .saved_state_endpoint = read(in.getSavedStateEndpoint()),
          .state_lost_with = text(in.getStateLostWith())};
}

StopActor read(schema::StopActor::Reader in) {
  return {.actor_id = read_id<ActorId>(in.getActorId()),
          .generation = in.getGeneration(),
          .grace_ms = in.getGraceMs(),
          .reason = text(in.getReason()),
          .comes_back = in.getComesBack(),
          .drain = in.getDrain()};
}

ShutdownNode read(schema::ShutdownNode::Reader in) { return {.reason = text(in.getReason())}; }

ActorStarted read(schema::ActorStarted::Reader in) {
  return {.actor_id = read_id<ActorId>(in.getActorId()),
          .generation = in.getGeneration(),
          .pid = in.getPid()};
}

ActorReady read(schema::ActorReady::Reader in) {
  return {.actor_id = read_id<ActorId>(in.getActorId()), .generation = in.getGeneration()};
}

ActorSaved read(schema::ActorSaved::Reader in) {
  return {.actor_id = read_id<ActorId>(in.getActorId()), .generation = in.getGeneration()};
}

CreateActors read(schema::CreateActors::Reader in) {
  return {.request_id = in.getRequestId(),
          .specs = read_list(in.getSpecs(), "specs", kReadOne),
          .gang = in.getGang(),
          .no_wait = in.getNoWait(),
          .get_if_exists = in.getGetIfExists()};
}

KillActor read(schema::KillActor::Reader in) {
  return {.request_id = in.getRequestId(),
          .actor_id = read_id<ActorId>(in.getActorId()),
          .allow_restart = in.getAllowRestart(),
          .grace_ms = in.getGraceMs(),
          .reason = text(in.getReason()),
          .drain = in.getDrain()};
}

WatchActor read(schema::WatchActor::Reader in) {
  return {.request_id = in.getRequestId(),
          .actor_id = read_id<ActorId>(in.getActorId()),
          .name = text(in.getName()),
          .stop = in.getStop(),
          .namespace_name = text(in.getNamespaceName())};
}

WatchNodes read(schema::WatchNodes::Reader in) {
  return {.request_id = in.getRequestId(), .without_amounts = in.getWithoutAmounts()};
}

ListNodes read(schema::ListNodes::Reader in) { return {.request_id = in.getRequestId()}; }

ListActors read(schema::ListActors::Reader in) {
  return {.request_id = in.getRequestId(), .include_dead = in.getIncludeDead()};
}

ListEvents read(schema::ListEvents::Reader in) {
  return {.request_id = in.getRequestId(),
          .after_sequence = in.getAfterSequence(),
          .count_max = in.getCountMax()};
}

EndJob read(schema::EndJob::Reader in) {
  return {.request_id = in.getRequestId(),
          .job_id = read_id<JobId>(in.getJobId()),
          .reason = text(in.getReason())};
}

StopCluster read(schema::StopCluster::Reader in) {
  return {.request_id = in.getRequestId(), .reason = text(in.getReason())};
}

ReadLogs read(schema::ReadLogs::Reader in) {
  return {.request_id = in.getRequestId(),
          .actor_id = read_id<ActorId>(in.getActorId()),
          .bytes_max = in.getBytesMax()};
}

Reply read(schema::Reply::Reader in) {
  return {.request_id = in.getRequestId(),
          .status = read(in.getStatus()),
          .actor_id = read_id<ActorId>(in.getActorId())};
}

ActorUpdate read(schema::ActorUpdate::Reader in) { return {.actor = read(in.getActor())}; }

NodeUpdate read(schema::NodeUpdate::Reader in) { return {.node = read(in.getNode())}; }

NodeList read(schema::NodeList::Reader in) {
  return {.request_id = in.getRequestId(), .nodes = read_list(in.getNodes(), "nodes", kReadOne)};
}

ActorList read(schema::ActorList::Reader in) {
  return {.request_id = in.getRequestId(), .actors = read_list(in.getActors(), "actors", kReadOne)};
}

EventList read(schema::EventList::Reader in) {
  return {.request_id = in.getRequestId(), .events = read_list(in.getEvents(), "events", kReadOne)};
}

LogText read(schema::LogText::Reader in) {
  return {
      .request_id = in.getRequestId(), .status = read(in.getStatus()), .text = text(in.getText())};
}

ReadSegment read(schema::ReadSegment::Reader in) {
  return {.request_id = in.getRequestId(),
          .job_id = read_id<JobId>(in.getJobId()),
          .name = text(in.getName()),
          .offset = in.getOffset(),
          .bytes_max = in.getBytesMax()};
}

ReadSavedState read(schema::ReadSavedState::Reader in) {
  return {.request_id = in.getRequestId(),
          .actor_id = read_id<ActorId>(in.getActorId()),
          .offset = in.getOffset(),
          .bytes_max = in.getBytesMax()};
}

SegmentBytes read(schema::SegmentBytes::Reader in) {
  return {.request_id = in.getRequestId(),
          .status = read(in.getStatus()),
          .size_bytes = in.getSizeBytes(),
          .bytes = data(in.getBytes())};
}

NodeNote read(schema::NodeNote::Reader in) {
  return {.kind = text(in.getKind()), .text = text(in.getText())};
}

PrepareBundles read(schema::PrepareBundles::Reader in) {
  return {.reservation = read(in.getReservation())};
}

CommitBundles read(schema::CommitBundles::Reader in) {
  return {.group_id = read_id<GroupId>(in.getGroupId()), .generation = in.getGeneration()};
}

ReleaseBundles read(schema::ReleaseBundles::Reader in) {
  return {.group_id = read_id<GroupId>(in.getGroupId()), .generation = in.getGeneration()};
}

BundlesPrepared read(schema::BundlesPrepared::Reader in) {
  return {.group_id = read_id<GroupId>(in.getGroupId()),
          .generation = in.getGeneration(),
          .status = read(in.getStatus())};
}

CreatePlacementGroup read(schema::CreatePlacementGroup::Reader in) {
  return {.request_id = in.getRequestId(), .spec = read(in.getSpec())};
}

RemovePlacementGroup read(schema::RemovePlacementGroup::Reader in) {
  return {.request_id = in.getRequestId(),
          .group_id = read_id<GroupId>(in.getGroupId()),
          .reason = text(in.getReason())};
}

WatchPlacementGroup read(schema::WatchPlacementGroup::Reader in) {
  return {.request_id = in.getRequestId(),
          .group_id = read_id<GroupId>(in.getGroupId()),
          .name = text(in.getName()),
          .stop = in.getStop()};
}

ListPlacementGroups read(schema::ListPlacementGroups::Reader in) {
  return {.request_id = in.getRequestId(), .include_removed = in.getIncludeRemoved()};
}

PlacementGroupUpdate read(schema::PlacementGroupUpdate::Reader in) {
  return {.group = read(in.getGroup())};
}

PlacementGroupList read(schema::PlacementGroupList::Reader in) {
  return {.request_id = in.getRequestId(), .groups = read_list(in.getGroups(), "groups", kReadOne)};
}

FollowOutput read(schema::FollowOutput::Reader in) {
  return {.request_id = in.getRequestId(),
          .job_id = read_id<JobId>(in.getJobId()),
          .actor_id = read_id<ActorId>(in.getActorId())};
}

OutputLine read(schema::OutputLine::Reader in) {
  return {.actor_id = read_id<ActorId>(in.getActorId()),
          .label = text(in.getLabel()),
          .number = in.getNumber(),
          .text = text(in.getText()),
          .notice = in.getNotice(),
          .error_stream = in.getErrorStream(),
          .end = read_enum(in.getEnd(), LineEnd::kOpen, "end of a line"),
          .shown_bytes = in.getShownBytes()};
}

SubmitJob read(schema::SubmitJob::Reader in) {
  return {
      .request_id = in.getRequestId(), .name = text(in.getName()), .driver = read(in.getDriver())};
}

StopJob read(schema::StopJob::Reader in) {
  return {.request_id = in.getRequestId(),
          .job_id = read_id<JobId>(in.getJobId()),
          .grace_ms = in.getGraceMs(),
          .reason = text(in.getReason())};
}

ListJobs read(schema::ListJobs::Reader in) {
  return {.request_id = in.getRequestId(), .include_ended = in.getIncludeEnded()};
}

JobList read(schema::JobList::Reader in) {
  return {.request_id = in.getRequestId(), .jobs = read_list(in.getJobs(), "jobs", kReadOne)};
}

CreateSupervisor read(schema::CreateSupervisor::Reader in) {
  return {.request_id = in.getRequestId(), .spec = read(in.getSpec())};
}

EndSupervisor read(schema::EndSupervisor::Reader in) {
  return {.request_id = in.getRequestId(),
          .supervisor_id = read_id<SupervisorId>(in.getSupervisorId()),
          .reason = text(in.getReason())};
}

WatchSupervisor read(schema::WatchSupervisor::Reader in) {
  return {.request_id = in.getRequestId(),
          .supervisor_id = read_id<SupervisorId>(in.getSupervisorId()),
          .stop = in.getStop()};
}

ListSupervisors read(schema::ListSupervisors::Reader in) {
  return {.request_id = in.getRequestId(), .include_ended = in.getIncludeEnded()};
}

SupervisorUpdate read(schema::SupervisorUpdate::Reader in) {
  return {.supervisor = read(in.getSupervisor())};
}

SupervisorList read(schema::SupervisorList::Reader in) {
  return {.request_id = in.getRequestId(),
          .supervisors = read_list(in.getSupervisors(), "supervisors", kReadOne)};
}

DrainNode read(schema::DrainNode::Reader in) {
  return {.request_id = in.getRequestId(),
          .node_id = read_id<NodeId>(in.getNodeId()),
          .grace_ms = in.getGraceMs(),
          .reason = text(in.getReason())};
}

ReadGpus read(schema::ReadGpus::Reader in) { return {.request_id = in.getRequestId()}; }

GpuList read(schema::GpuList::Reader in) {
  return {.request_id = in.getRequestId(), .gpus = read_list(in.getGpus(), "gpus", kReadOne)};
}

// Every message of the family, once: M(the schema's number, name).
#define TROUPE_CONTROL_MESSAGES(M)                \
  M(CLIENT_HELLO, ClientHello)                    \
  M(REGISTER_NODE, RegisterNode)                  \
  M(REGISTER_NODE_REPLY, RegisterNodeReply)       \
  M(HEARTBEAT, Heartbeat)                         \
  M(START_ACTOR, StartActor)                      \
  M(STOP_ACTOR, StopActor)                        \
  M(SHUTDOWN_NODE, ShutdownNode)                  \
  M(ACTOR_STARTED, ActorStarted)                  \
  M(ACTOR_READY, ActorReady)                      \
  M(ACTOR_EXITED, ActorExited)                    \
  M(CREATE_ACTORS, CreateActors)                  \
  M(KILL_ACTOR, KillActor)                        \
  M(WATCH_ACTOR, WatchActor)                      \
  M(WATCH_NODES, WatchNodes)                      \
  M(LIST_NODES, ListNodes)                        \
  M(LIST_ACTORS, ListActors)                      \
  M(LIST_EVENTS, ListEvents)                      \
  M(END_JOB, EndJob)                              \
  M(STOP_CLUSTER, StopCluster)                    \
  M(READ_LOGS, ReadLogs)                          \
  M(REPLY, Reply)                                 \
  M(ACTOR_UPDATE, ActorUpdate)                    \
  M(NODE_UPDATE, NodeUpdate)                      \
  M(NODE_LIST, NodeList)                          \
  M(ACTOR_LIST, ActorList)                        \
  M(EVENT_LIST, EventList)                        \
  M(LOG_TEXT, LogText)                            \
  M(READ_SEGMENT, ReadSegment)                    \
  M(SEGMENT_BYTES, SegmentBytes)                  \
  M(NODE_NOTE, NodeNote)                          \
  M(PREPARE_BUNDLES, PrepareBundles)              \
  M(COMMIT_BUNDLES, CommitBundles)                \
  M(RELEASE_BUNDLES, ReleaseBundles)              \
  M(BUNDLES_PREPARED, BundlesPrepared)            \
  M(CREATE_PLACEMENT_GROUP, CreatePlacementGroup) \
  M(REMOVE_PLACEMENT_GROUP, RemovePlacementGroup) \
  M(WATCH_PLACEMENT_GROUP, WatchPlacementGroup)   \
  M(LIST_PLACEMENT_GROUPS, ListPlacementGroups)   \
  M(PLACEMENT_GROUP_UPDATE, PlacementGroupUpdate) \
  M(PLACEMENT_GROUP_LIST, PlacementGroupList)     \
  M(FOLLOW_OUTPUT, FollowOutput)                  \
  M(OUTPUT_LINE, OutputLine)                      \
  M(SUBMIT_JOB, SubmitJob)                        \
  M(STOP_JOB, StopJob)                            \
  M(LIST_JOBS, ListJobs)                          \
  M(JOB_LIST, JobList)                            \
  M(CREATE_SUPERVISOR, CreateSupervisor)          \
  M(END_SUPERVISOR, EndSupervisor)                \
  M(WATCH_SUPERVISOR, WatchSupervisor)            \
  M(LIST_SUPERVISORS, ListSupervisors)            \
  M(SUPERVISOR_UPDATE, SupervisorUpdate)          \
  M(SUPERVISOR_LIST, SupervisorList)              \
  M(DRAIN_NODE, DrainNode)                        \
  M(READ_GPUS, ReadGpus)                          \
  M(GPU_LIST, GpuList)                            \
  M(ACTOR_SAVED, ActorSaved)                      \
  M(READ_SAVED_STATE, ReadSavedState)

struct Put {
  schema::ControlMessage::Builder root;
#define TROUPE_PUT(number, Name) \
  void operator()(const Name& message) { write(root.init##Name(), message); }
  TROUPE_CONTROL_MESSAGES(TROUPE_PUT)
#undef TROUPE_PUT
};

ControlMessage get(schema::ControlMessage::Reader root) {
  switch (root.which()) {
#define TROUPE_GET(number, Name)                     \
  case schema::ControlMessage::number:               \
    if (!root.has##Name()) throw Malformed{"empty"}; \
    return read(root.get##Name());
    TROUPE_CONTROL_MESSAGES(TROUPE_GET)
#undef TROUPE_GET
  }
  throw Malformed{fmt::format("message number {}, which this version does not know",
                              static_cast<unsigned>(root.which()))};
}

}  // namespace
}  // namespace codec

std::string OutputLine::new_text() const {
  std::string result = text.substr(std::min<std::size_t>(shown_bytes, text.size()));
  if (end == LineEnd::kNewline) result += '\n';
  if (end == LineEnd::kReturn) result += '\r';
  return result;
}

Bytes encode(const ControlMessage& message) {
  capnp::MallocMessageBuilder builder(codec::segment_words(0));
  visit(codec::Put{builder.initRoot<schema::ControlMessage>()}, message);
  return codec::to_bytes(builder);
}

Result<ControlMessage> decode_control(std::span<const std::byte> frame) {
  ControlMessage message;
  TROUPE_RETURN_IF_ERROR(
      codec::decode_frame(frame, "control message", [&](capnp::MessageReader& reader) {
        message = codec::get(reader.getRoot<schema::ControlMessage>());
      }));
  return message;
}

}  // namespace troupe::wire

namespace troupe {
template class Variant<wire::ControlMessages>;
}  // namespace troupe
