# control_messages.h on the wire.
@0xb1d3c5e7f9a10204;

using Cxx = import "/capnp/c++.capnp";
using T = import "types.capnp";
$Cxx.namespace("troupe::wire::schema");

struct ControlMessage {
  union {
    clientHello @0 :ClientHello;
    registerNode @1 :RegisterNode;
    registerNodeReply @2 :RegisterNodeReply;
    heartbeat @3 :Heartbeat;
    startActor @4 :StartActor;
    stopActor @5 :StopActor;
    shutdownNode @6 :ShutdownNode;
    actorStarted @7 :ActorStarted;
    actorReady @8 :ActorReady;
    actorExited @9 :ActorExited;
    createActors @10 :CreateActors;
    killActor @11 :KillActor;
    watchActor @12 :WatchActor;
    watchNodes @13 :WatchNodes;
    listNodes @14 :ListNodes;
    listActors @15 :ListActors;
    listEvents @16 :ListEvents;
    endJob @17 :EndJob;
    stopCluster @18 :StopCluster;
    readLogs @19 :ReadLogs;
    reply @20 :Reply;
    actorUpdate @21 :ActorUpdate;
    nodeUpdate @22 :NodeUpdate;
    nodeList @23 :NodeList;
    actorList @24 :ActorList;
    eventList @25 :EventList;
    logText @26 :LogText;
    readSegment @27 :ReadSegment;
    segmentBytes @28 :SegmentBytes;
    nodeNote @29 :NodeNote;
    prepareBundles @30 :PrepareBundles;
    commitBundles @31 :CommitBundles;
    releaseBundles @32 :ReleaseBundles;
    bundlesPrepared @33 :BundlesPrepared;
    createPlacementGroup @34 :CreatePlacementGroup;
    removePlacementGroup @35 :RemovePlacementGroup;
    watchPlacementGroup @36 :WatchPlacementGroup;
    listPlacementGroups @37 :ListPlacementGroups;
    placementGroupUpdate @38 :PlacementGroupUpdate;
    placementGroupList @39 :PlacementGroupList;
    followOutput @40 :FollowOutput;
    outputLine @41 :OutputLine;
    submitJob @42 :SubmitJob;
    stopJob @43 :StopJob;
    listJobs @44 :ListJobs;
    jobList @45 :JobList;
    createSupervisor @46 :CreateSupervisor;
    endSupervisor @47 :EndSupervisor;
    watchSupervisor @48 :WatchSupervisor;
    listSupervisors @49 :ListSupervisors;
    supervisorUpdate @50 :SupervisorUpdate;
    supervisorList @51 :SupervisorList;
    drainNode @52 :DrainNode;
    readGpus @53 :ReadGpus;
    gpuList @54 :GpuList;
    actorSaved @55 :ActorSaved;
    readSavedState @56 :ReadSavedState;
  }
}

struct ClientHello {
  requestId @0 :UInt64;
  clientId @1 :T.Id;
  jobId @2 :T.Id;
  name @3 :Text;
  kind @4 :Text;
  reconnect @5 :Bool;
  protocolVersion @6 :UInt32;
  namespaceName @7 :Text;
}

struct RunningActor {
  spec @0 :T.ActorSpec;
  generation @1 :UInt64;
  pid @2 :Int64;
  ready @3 :Bool;
}

struct RegisterNode {
  requestId @0 :UInt64;
  protocolVersion @1 :UInt32;
  node @2 :T.NodeInfo;
  running @3 :List(RunningActor);
  exited @4 :List(ActorExited);
}

struct ActorGeneration {
  actorId @0 :T.Id;
  generation @1 :UInt64;
}

struct RegisterNodeReply {
  requestId @0 :UInt64;
  status @1 :T.Status;
  name @2 :Text;
  heartbeatIntervalMs @3 :Int64;
  heartbeatTimeoutMs @4 :Int64;
  stop @5 :List(ActorGeneration);
  reservations @6 :List(T.Reservation);
}

struct NodeUsage {
  cpuBusyUs @0 :UInt64;
  memoryUsedBytes @1 :UInt64;
  memoryTotalBytes @2 :UInt64;
  processes @3 :UInt32;
}

struct Heartbeat {
  nodeId @0 :T.Id;
  sequence @1 :UInt64;
  usage @2 :NodeUsage;
}

struct StartActor {
  spec @0 :T.ActorSpec;
  generation @1 :UInt64;
  savedStateNode @2 :T.Id;
  savedStateEndpoint @3 :T.Endpoint;
  stateLostWith @4 :Text;
}

struct StopActor {
  actorId @0 :T.Id;
  generation @1 :UInt64;
  graceMs @2 :Int64;
  reason @3 :Text;
  comesBack @4 :Bool;
  drain @5 :Bool;
}

struct ShutdownNode {
  reason @0 :Text;
}

struct ActorStarted {
  actorId @0 :T.Id;
  generation @1 :UInt64;
  pid @2 :Int64;
}

struct ActorReady {
  actorId @0 :T.Id;
  generation @1 :UInt64;
}

struct ActorSaved {
  actorId @0 :T.Id;
  generation @1 :UInt64;
}

struct ReadSavedState {
  requestId @0 :UInt64;
  actorId @1 :T.Id;
  offset @2 :UInt64;
  bytesMax @3 :UInt64;
}

struct ActorExited {
  actorId @0 :T.Id;
  generation @1 :UInt64;
  exit @2 :T.ExitStatus;
  constructorFailed @3 :Bool;
  cause @4 :T.Status;
  logTail @5 :Text;
  callsDropped @6 :Int64 = -1;
}

struct CreateActors {
  requestId @0 :UInt64;
  specs @1 :List(T.ActorSpec);
  gang @2 :Bool;
  noWait @3 :Bool;
  getIfExists @4 :Bool;
}

struct KillActor {
  requestId @0 :UInt64;
  actorId @1 :T.Id;
  allowRestart @2 :Bool;
  graceMs @3 :Int64;
  reason @4 :Text;
  drain @5 :Bool;
}

struct WatchActor {
  requestId @0 :UInt64;
  actorId @1 :T.Id;
  name @2 :Text;
  stop @3 :Bool;
  namespaceName @4 :Text;
}

struct WatchNodes {
  requestId @0 :UInt64;
  withoutAmounts @1 :Bool;
}

struct ListNodes {
  requestId @0 :UInt64;
}

struct ListActors {
  requestId @0 :UInt64;
  includeDead @1 :Bool;
}

struct ListEvents {
  requestId @0 :UInt64;
  afterSequence @1 :UInt64;
  countMax @2 :UInt32;
}

struct EndJob {
  requestId @0 :UInt64;
  jobId @1 :T.Id;
  reason @2 :Text;
}

struct StopCluster {
  requestId @0 :UInt64;
  reason @1 :Text;
}

struct ReadLogs {
  requestId @0 :UInt64;
  actorId @1 :T.Id;
  bytesMax @2 :UInt64;
}

struct Reply {
  requestId @0 :UInt64;
  status @1 :T.Status;
  actorId @2 :T.Id;
}

struct ActorUpdate {
  actor @0 :T.ActorInfo;
}

struct NodeUpdate {
  node @0 :T.NodeInfo;
}

struct NodeList {
  requestId @0 :UInt64;
  nodes @1 :List(T.NodeInfo);
}

struct ActorList {
  requestId @0 :UInt64;
  actors @1 :List(T.ActorInfo);
}

struct EventList {
  requestId @0 :UInt64;
  events @1 :List(T.EventRecord);
}

struct LogText {
  requestId @0 :UInt64;
  status @1 :T.Status;
  text @2 :Text;
}

struct ReadSegment {
  requestId @0 :UInt64;
  jobId @1 :T.Id;
  name @2 :Text;
  offset @3 :UInt64;
  bytesMax @4 :UInt64;
}

struct SegmentBytes {
  requestId @0 :UInt64;
  status @1 :T.Status;
  sizeBytes @2 :UInt64;
  bytes @3 :Data;
}

struct NodeNote {
  kind @0 :Text;
  text @1 :Text;
}

struct PrepareBundles {
  reservation @0 :T.Reservation;
}

struct CommitBundles {
  groupId @0 :T.Id;
  generation @1 :UInt64;
}

struct ReleaseBundles {
  groupId @0 :T.Id;
  generation @1 :UInt64;
}

struct BundlesPrepared {
  groupId @0 :T.Id;
  generation @1 :UInt64;
  status @2 :T.Status;
}

struct CreatePlacementGroup {
  requestId @0 :UInt64;
  spec @1 :T.PlacementGroupSpec;
}

struct RemovePlacementGroup {
  requestId @0 :UInt64;
  groupId @1 :T.Id;
  reason @2 :Text;
}

struct WatchPlacementGroup {
  requestId @0 :UInt64;
  groupId @1 :T.Id;
  name @2 :Text;
  stop @3 :Bool;
}

struct ListPlacementGroups {
  requestId @0 :UInt64;
  includeRemoved @1 :Bool;
}

struct PlacementGroupUpdate {
  group @0 :T.PlacementGroupInfo;
}

struct PlacementGroupList {
  requestId @0 :UInt64;
  groups @1 :List(T.PlacementGroupInfo);
}

struct FollowOutput {
  requestId @0 :UInt64;
  jobId @1 :T.Id;
  actorId @2 :T.Id;
}

struct OutputLine {
  actorId @0 :T.Id;
  label @1 :Text;
  number @2 :UInt64;
  text @3 :Text;
  notice @4 :Bool;
  errorStream @5 :Bool;
  end @6 :UInt8;
  shownBytes @7 :UInt32;
}

struct SubmitJob {
  requestId @0 :UInt64;
  name @1 :Text;
  driver @2 :T.ActorSpec;
}

struct StopJob {
  requestId @0 :UInt64;
  jobId @1 :T.Id;
  graceMs @2 :Int64;
  reason @3 :Text;
}

struct ListJobs {
  requestId @0 :UInt64;
  includeEnded @1 :Bool;
}

struct JobList {
  requestId @0 :UInt64;
  jobs @1 :List(T.JobInfo);
}

struct CreateSupervisor {
  requestId @0 :UInt64;
  spec @1 :T.SupervisorSpec;
}

struct EndSupervisor {
  requestId @0 :UInt64;
  supervisorId @1 :T.Id;
  reason @2 :Text;
}

struct WatchSupervisor {
  requestId @0 :UInt64;
  supervisorId @1 :T.Id;
  stop @2 :Bool;
}

struct ListSupervisors {
  requestId @0 :UInt64;
  includeEnded @1 :Bool;
}

struct SupervisorUpdate {
  supervisor @0 :T.SupervisorInfo;
}

struct SupervisorList {
  requestId @0 :UInt64;
  supervisors @1 :List(T.SupervisorInfo);
}

struct DrainNode {
  requestId @0 :UInt64;
  nodeId @1 :T.Id;
  graceMs @2 :Int64;
  reason @3 :Text;
}

struct ReadGpus {
  requestId @0 :UInt64;
}

struct GpuList {
  requestId @0 :UInt64;
  gpus @1 :List(T.GpuStatus);
}
