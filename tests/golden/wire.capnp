# What processes tell each other (runtime/wire), as Cap'n Proto encodes it. Made by
# tests/runtime/wire/schema_test.cpp from the lists beside the structs: do not edit.
@0xb1d3c5e7f9a10203;

struct Id {
  high @0 :UInt64;
  low @1 :UInt64;
}

struct ClientHello {
  requestId @0 :UInt64;
  clientId @1 :Id;
  jobId @2 :Id;
  name @3 :Text;
  kind @4 :Text;
  reconnect @5 :Bool;
  protocolVersion @6 :UInt32;
  namespaceName @7 :Text;
}

struct Endpoint {
  host @0 :Text;
  port @1 :UInt16;
  localName @2 :Text;
}

struct PairOfTextInt64 {
  first @0 :Text;
  second @1 :Int64;
}

struct PairOfTextText {
  first @0 :Text;
  second @1 :Text;
}

struct NodeInfo {
  nodeId @0 :Id;
  name @1 :Text;
  endpoint @2 :Endpoint;
  state @3 :UInt8;
  total @4 :List(PairOfTextInt64);
  available @5 :List(PairOfTextInt64);
  labels @6 :List(PairOfTextText);
  pid @7 :Int64;
  joinedUnixUs @8 :Int64;
}

struct RestartPolicy {
  maxRestarts @0 :Int32;
  windowMs @1 :Int64;
  backoffInitialMs @2 :Int64;
  backoffMaxMs @3 :Int64;
}

struct Image {
  path @0 :Text;
  xxh3 @1 :UInt64;
}

struct LabelTerm {
  key @0 :Text;
  negated @1 :Bool;
  values @2 :List(Text);
}

struct Program {
  argv @0 :List(Text);
  workingDirectory @1 :Text;
  stdoutPath @2 :Text;
  stderrPath @3 :Text;
}

struct HealthPolicy {
  intervalMs @0 :Int64;
  timeoutMs @1 :Int64;
}

struct Package {
  sha256 @0 :Text;
  sizeBytes @1 :UInt64;
}

struct ActorSpec {
  actorId @0 :Id;
  type @1 :Text;
  name @2 :Text;
  constructorArguments @3 :Data;
  resources @4 :List(PairOfTextInt64);
  restart @5 :RestartPolicy;
  nodeAffinity @6 :Id;
  jobId @7 :Id;
  owner @8 :Id;
  detached @9 :Bool;
  image @10 :Image;
  run @11 :Text;
  rank @12 :Int32;
  environment @13 :List(PairOfTextText);
  logPath @14 :Text;
  nodeAffinitySoft @15 :Bool;
  labelSelector @16 :List(LabelTerm);
  labelPreference @17 :List(LabelTerm);
  placementGroup @18 :Id;
  bundleIndex @19 :Int32 = -1;
  priority @20 :Int32;
  lightCount @21 :UInt32;
  program @22 :Program;
  namespaceName @23 :Text;
  ownerActor @24 :Id;
  ownerGeneration @25 :UInt64;
  supervisor @26 :Id;
  supervisorOrder @27 :UInt64;
  health @28 :HealthPolicy;
  onHeadLoss @29 :UInt8;
  startEmptyOnStateLoss @30 :Bool;
  argumentsBesideBytes @31 :UInt64;
  argumentsBesideHash @32 :UInt64;
  awaitsNodes @33 :Bool;
  replicas @34 :UInt32;
  package @35 :Package;
  lendsCpus @36 :Bool;
}

struct RunningActor {
  spec @0 :ActorSpec;
  generation @1 :UInt64;
  pid @2 :Int64;
  ready @3 :Bool;
}

struct ExitStatus {
  exitCode @0 :Int32;
  signal @1 :Int32;
}

struct Status {
  code @0 :Int32;
  message @1 :Text;
  context @2 :List(PairOfTextText);
}

struct ActorExited {
  actorId @0 :Id;
  generation @1 :UInt64;
  exit @2 :ExitStatus;
  constructorFailed @3 :Bool;
  cause @4 :Status;
  logTail @5 :Text;
  callsDropped @6 :Int64 = -1;
}

struct RegisterNode {
  requestId @0 :UInt64;
  protocolVersion @1 :UInt32;
  node @2 :NodeInfo;
  running @3 :List(RunningActor);
  exited @4 :List(ActorExited);
}

struct PairOfIdUInt64 {
  first @0 :Id;
  second @1 :UInt64;
}

struct Reservation {
  groupId @0 :Id;
  generation @1 :UInt64;
  resources @2 :List(PairOfTextInt64);
}

struct RegisterNodeReply {
  requestId @0 :UInt64;
  status @1 :Status;
  name @2 :Text;
  heartbeatIntervalMs @3 :Int64;
  heartbeatTimeoutMs @4 :Int64;
  stop @5 :List(PairOfIdUInt64);
  reservations @6 :List(Reservation);
}

struct NodeUsage {
  cpuBusyUs @0 :UInt64;
  memoryUsedBytes @1 :UInt64;
  memoryTotalBytes @2 :UInt64;
  processes @3 :UInt32;
}

struct Heartbeat {
  nodeId @0 :Id;
  sequence @1 :UInt64;
  usage @2 :NodeUsage;
}

struct StartActor {
  spec @0 :ActorSpec;
  generation @1 :UInt64;
  savedStateNode @2 :Id;
  savedStateEndpoint @3 :Endpoint;
  stateLostWith @4 :Text;
}

struct StopActor {
  actorId @0 :Id;
  generation @1 :UInt64;
  graceMs @2 :Int64;
  reason @3 :Text;
  comesBack @4 :Bool;
  drain @5 :Bool;
}

struct ShutdownNode {
  reason @0 :Text;
  drain @1 :Bool;
  graceMs @2 :Int64;
}

struct ActorStarted {
  actorId @0 :Id;
  generation @1 :UInt64;
  pid @2 :Int64;
}

struct ActorReady {
  actorId @0 :Id;
  generation @1 :UInt64;
  stateLost @2 :Bool;
}

struct CreateActors {
  requestId @0 :UInt64;
  specs @1 :List(ActorSpec);
  gang @2 :Bool;
  noWait @3 :Bool;
  getIfExists @4 :Bool;
}

struct KillActor {
  requestId @0 :UInt64;
  actorId @1 :Id;
  allowRestart @2 :Bool;
  graceMs @3 :Int64;
  reason @4 :Text;
  drain @5 :Bool;
}

struct WatchActor {
  requestId @0 :UInt64;
  actorId @1 :Id;
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
  after @2 :Id;
}

struct ListEvents {
  requestId @0 :UInt64;
  afterSequence @1 :UInt64;
  countMax @2 :UInt32;
}

struct EndJob {
  requestId @0 :UInt64;
  jobId @1 :Id;
  reason @2 :Text;
}

struct StopCluster {
  requestId @0 :UInt64;
  reason @1 :Text;
}

struct ReadLogs {
  requestId @0 :UInt64;
  actorId @1 :Id;
  bytesMax @2 :UInt64;
}

struct Reply {
  requestId @0 :UInt64;
  status @1 :Status;
  actorId @2 :Id;
}

struct ActorInfo {
  actorId @0 :Id;
  type @1 :Text;
  name @2 :Text;
  state @3 :UInt8;
  generation @4 :UInt64;
  nodeId @5 :Id;
  endpoint @6 :Endpoint;
  pid @7 :Int64;
  restarts @8 :Int32;
  rank @9 :Int32;
  jobId @10 :Id;
  resources @11 :List(PairOfTextInt64);
  death @12 :Status;
  pendingWhy @13 :Text;
  placementGroup @14 :Id;
  bundleIndex @15 :Int32 = -1;
  lightCount @16 :UInt32;
  namespaceName @17 :Text;
  ownerName @18 :Text;
  ownerActor @19 :Id;
  detached @20 :Bool;
  supervisor @21 :Id;
  callsDropped @22 :Int64 = -1;
  savedStateNode @23 :Id;
  stateLostGeneration @24 :UInt64;
  awaitsNodes @25 :Bool;
}

struct ActorUpdate {
  actor @0 :ActorInfo;
}

struct NodeUpdate {
  node @0 :NodeInfo;
}

struct NodeList {
  requestId @0 :UInt64;
  nodes @1 :List(NodeInfo);
}

struct ActorList {
  requestId @0 :UInt64;
  actors @1 :List(ActorInfo);
  more @2 :Bool;
}

struct EventRecord {
  sequence @0 :UInt64;
  unixTimeUs @1 :Int64;
  kind @2 :Text;
  nodeId @3 :Id;
  actorId @4 :Id;
  generation @5 :UInt64;
  text @6 :Text;
}

struct EventList {
  requestId @0 :UInt64;
  events @1 :List(EventRecord);
}

struct LogText {
  requestId @0 :UInt64;
  status @1 :Status;
  text @2 :Text;
}

struct ReadSegment {
  requestId @0 :UInt64;
  jobId @1 :Id;
  name @2 :Text;
  offset @3 :UInt64;
  bytesMax @4 :UInt64;
}

struct SegmentBytes {
  requestId @0 :UInt64;
  status @1 :Status;
  sizeBytes @2 :UInt64;
  bytes @3 :Data;
}

struct NodeNote {
  kind @0 :Text;
  text @1 :Text;
}

struct PrepareBundles {
  reservation @0 :Reservation;
}

struct CommitBundles {
  groupId @0 :Id;
  generation @1 :UInt64;
}

struct ReleaseBundles {
  groupId @0 :Id;
  generation @1 :UInt64;
}

struct BundlesPrepared {
  groupId @0 :Id;
  generation @1 :UInt64;
  status @2 :Status;
}

struct BundleSpec {
  resources @0 :List(PairOfTextInt64);
  labelSelector @1 :List(LabelTerm);
}

struct PlacementGroupSpec {
  groupId @0 :Id;
  name @1 :Text;
  strategy @2 :UInt8;
  bundles @3 :List(BundleSpec);
  jobId @4 :Id;
  owner @5 :Id;
  detached @6 :Bool;
  priority @7 :Int32;
}

struct CreatePlacementGroup {
  requestId @0 :UInt64;
  spec @1 :PlacementGroupSpec;
}

struct RemovePlacementGroup {
  requestId @0 :UInt64;
  groupId @1 :Id;
  reason @2 :Text;
}

struct WatchPlacementGroup {
  requestId @0 :UInt64;
  groupId @1 :Id;
  name @2 :Text;
  stop @3 :Bool;
}

struct ListPlacementGroups {
  requestId @0 :UInt64;
  includeRemoved @1 :Bool;
  after @2 :Id;
}

struct BundleInfo {
  resources @0 :List(PairOfTextInt64);
  available @1 :List(PairOfTextInt64);
  labelSelector @2 :List(LabelTerm);
  nodeId @3 :Id;
}

struct PlacementGroupInfo {
  groupId @0 :Id;
  name @1 :Text;
  strategy @2 :UInt8;
  state @3 :UInt8;
  generation @4 :UInt64;
  bundles @5 :List(BundleInfo);
  jobId @6 :Id;
  priority @7 :Int32;
  why @8 :Text;
}

struct PlacementGroupUpdate {
  group @0 :PlacementGroupInfo;
}

struct PlacementGroupList {
  requestId @0 :UInt64;
  groups @1 :List(PlacementGroupInfo);
  more @2 :Bool;
}

struct FollowOutput {
  requestId @0 :UInt64;
  jobId @1 :Id;
  actorId @2 :Id;
}

struct OutputLine {
  actorId @0 :Id;
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
  driver @2 :ActorSpec;
}

struct StopJob {
  requestId @0 :UInt64;
  jobId @1 :Id;
  graceMs @2 :Int64;
  reason @3 :Text;
}

struct ListJobs {
  requestId @0 :UInt64;
  includeEnded @1 :Bool;
}

struct JobInfo {
  jobId @0 :Id;
  name @1 :Text;
  state @2 :UInt8;
  driver @3 :Id;
  command @4 :Text;
  priority @5 :Int32;
  submittedUnixUs @6 :Int64;
  startedUnixUs @7 :Int64;
  endedUnixUs @8 :Int64;
  nodeId @9 :Id;
  stopping @10 :Bool;
  exit @11 :ExitStatus;
  why @12 :Text;
  actorsAlive @13 :UInt32;
}

struct JobList {
  requestId @0 :UInt64;
  jobs @1 :List(JobInfo);
}

struct SupervisorSpec {
  supervisorId @0 :Id;
  name @1 :Text;
  strategy @2 :UInt8;
  restart @3 :RestartPolicy;
  graceMs @4 :Int64;
  parent @5 :Id;
  jobId @6 :Id;
  owner @7 :Id;
  ownerActor @8 :Id;
  ownerGeneration @9 :UInt64;
  detached @10 :Bool;
  order @11 :UInt64;
}

struct CreateSupervisor {
  requestId @0 :UInt64;
  spec @1 :SupervisorSpec;
}

struct EndSupervisor {
  requestId @0 :UInt64;
  supervisorId @1 :Id;
  reason @2 :Text;
}

struct WatchSupervisor {
  requestId @0 :UInt64;
  supervisorId @1 :Id;
  stop @2 :Bool;
}

struct ListSupervisors {
  requestId @0 :UInt64;
  includeEnded @1 :Bool;
  after @2 :Id;
}

struct SupervisorMember {
  actor @0 :Id;
  supervisor @1 :Id;
}

struct SupervisorInfo {
  supervisorId @0 :Id;
  name @1 :Text;
  strategy @2 :UInt8;
  state @3 :UInt8;
  parent @4 :Id;
  members @5 :List(SupervisorMember);
  restarts @6 :Int32;
  why @7 :Status;
  jobId @8 :Id;
  ownerName @9 :Text;
}

struct SupervisorUpdate {
  supervisor @0 :SupervisorInfo;
}

struct SupervisorList {
  requestId @0 :UInt64;
  supervisors @1 :List(SupervisorInfo);
  more @2 :Bool;
}

struct DrainNode {
  requestId @0 :UInt64;
  nodeId @1 :Id;
  graceMs @2 :Int64;
  reason @3 :Text;
  nodeEnds @4 :Bool;
}

struct ReadGpus {
  requestId @0 :UInt64;
}

struct GpuLink {
  peer @0 :Text;
  path @1 :UInt8;
  nvlinks @2 :UInt32;
  peerAccess @3 :Bool;
}

struct GpuDevice {
  index @0 :UInt32;
  uuid @1 :Text;
  name @2 :Text;
  pciBusId @3 :Text;
  minorNumber @4 :Int32;
  numaNode @5 :Int32;
  computeMajor @6 :Int32;
  computeMinor @7 :Int32;
  memoryTotalBytes @8 :UInt64;
  parentUuid @9 :Text;
  links @10 :List(GpuLink);
}

struct GpuHolder {
  actorId @0 :Id;
  label @1 :Text;
  share @2 :Int64;
}

struct GpuStatus {
  device @0 :GpuDevice;
  state @1 :UInt8;
  memoryUsedBytes @2 :UInt64;
  trouble @3 :Text;
  holders @4 :List(GpuHolder);
}

struct GpuList {
  requestId @0 :UInt64;
  gpus @1 :List(GpuStatus);
}

struct ActorSaved {
  actorId @0 :Id;
  generation @1 :UInt64;
}

struct ReadSavedState {
  requestId @0 :UInt64;
  actorId @1 :Id;
  offset @2 :UInt64;
  bytesMax @3 :UInt64;
}

struct FindPackage {
  requestId @0 :UInt64;
  package @1 :Package;
}

struct PackageSources {
  requestId @0 :UInt64;
  package @1 :Package;
  nodes @2 :List(Endpoint);
}

struct NodePackages {
  sha256s @0 :List(Text);
}

struct ReadPackage {
  requestId @0 :UInt64;
  package @1 :Package;
  offset @2 :UInt64;
  bytesMax @3 :UInt64;
}

struct WritePackage {
  requestId @0 :UInt64;
  package @1 :Package;
  offset @2 :UInt64;
  bytes @3 :Data;
}

struct TaskSpan {
  name @0 :Text;
  worker @1 :Id;
  beginUnixUs @2 :Int64;
  endUnixUs @3 :Int64;
  failed @4 :Bool;
}

struct TaskWork {
  resources @0 :List(PairOfTextInt64);
  waiting @1 :UInt64;
  running @2 :UInt64;
  done @3 :UInt64;
  failed @4 :UInt64;
  again @5 :UInt64;
  workers @6 :UInt64;
  workersAwaited @7 :UInt64;
  why @8 :Text;
  last @9 :List(TaskSpan);
}

struct GroupWork {
  type @0 :Text;
  isPool @1 :Bool;
  axes @2 :Text;
  members @3 :UInt64;
  membersMax @4 :UInt64;
  actors @5 :List(Id);
  callsWaiting @6 :UInt64;
  callsUnderWay @7 :UInt64;
  why @8 :Text;
}

struct StageWork {
  name @0 :Text;
  actors @1 :UInt64;
  bound @2 :UInt64;
  waiting @3 :UInt64;
  respawns @4 :UInt64;
  hasOldest @5 :Bool;
}

struct PipelineWork {
  number @0 :UInt64;
  pushed @1 :UInt64;
  delivered @2 :UInt64;
  inFlightMax @3 :UInt64;
  stages @4 :List(StageWork);
  why @5 :Text;
}

struct Work {
  actorId @0 :Id;
  tasks @1 :List(TaskWork);
  groups @2 :List(GroupWork);
  pipelines @3 :List(PipelineWork);
  leftOut @4 :UInt64;
  itemsDone @5 :UInt64;
}

struct ReportWork {
  requestId @0 :UInt64;
  work @1 :Work;
}

struct ListWork {
  requestId @0 :UInt64;
  after @1 :Id;
}

struct ClientWork {
  clientId @0 :Id;
  jobId @1 :Id;
  name @2 :Text;
  work @3 :Work;
}

struct WorkList {
  requestId @0 :UInt64;
  clients @1 :List(ClientWork);
  more @2 :Bool;
}

struct LendCpus {
  requestId @0 :UInt64;
  actorId @1 :Id;
  generation @2 :UInt64;
  back @3 :Bool;
}

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
    findPackage @57 :FindPackage;
    packageSources @58 :PackageSources;
    nodePackages @59 :NodePackages;
    readPackage @60 :ReadPackage;
    writePackage @61 :WritePackage;
    reportWork @62 :ReportWork;
    listWork @63 :ListWork;
    workList @64 :WorkList;
    lendCpus @65 :LendCpus;
  }
}

struct HostStart {
  spec @0 :ActorSpec;
  generation @1 :UInt64;
  nodeId @2 :Id;
  nodeEndpoint @3 :Endpoint;
  headEndpoint @4 :Endpoint;
  token @5 :Data;
  hasSavedState @6 :Bool;
  security @7 :UInt8;
  protocolVersion @8 :UInt32;
  stateLostWith @9 :Text;
  nodeLabels @10 :List(PairOfTextText);
}

struct HostConnection {
  target @0 :Text;
  peer @1 :Text;
  sameNode @2 :Bool;
  untouched @3 :Bool;
}

struct HostStop {
  graceMs @0 :Int64;
  reason @1 :Text;
  drain @2 :Bool;
  comesBack @3 :Bool;
}

struct HostReady {
  protocolVersion @0 :UInt32;
  stateLost @1 :Bool;
}

struct HostFailed {
  status @0 :Status;
}

struct HostSavedState {
  generation @0 :UInt64;
}

struct HostKeepSegment {
  name @0 :Text;
  drop @1 :Bool;
}

struct HostAttachSegment {
  requestId @0 :UInt64;
  name @1 :Text;
  timeoutMs @2 :Int64;
}

struct HostAttachReply {
  requestId @0 :UInt64;
  status @1 :Status;
}

struct HostDrained {
  callsDropped @0 :Int64;
}

struct HostHealth {
  status @0 :Status;
}

struct HostMessage {
  union {
    hostStart @0 :HostStart;
    hostConnection @1 :HostConnection;
    hostStop @2 :HostStop;
    hostReady @3 :HostReady;
    hostFailed @4 :HostFailed;
    hostSavedState @5 :HostSavedState;
    hostKeepSegment @6 :HostKeepSegment;
    hostAttachSegment @7 :HostAttachSegment;
    hostAttachReply @8 :HostAttachReply;
    hostDrained @9 :HostDrained;
    hostHealth @10 :HostHealth;
  }
}

struct KeeperHello {
  protocolVersion @0 :UInt32;
}

struct KeeperSpawn {
  childId @0 :UInt64;
  path @1 :Text;
  argv @2 :List(Text);
  environment @3 :List(Text);
  descriptors @4 :List(Int32);
  byPath @5 :Bool;
  workingDirectory @6 :Text;
  newSession @7 :Bool;
}

struct KeeperPut {
  key @0 :Text;
  bytes @1 :Data;
}

struct KeeperDrop {
  key @0 :Text;
}

struct KeeperForget {
  childId @0 :UInt64;
}

struct KeeperAlive {
  leaseEndNs @0 :Int64;
}

struct KeeperQuit {
}

struct KeeperEntry {
  key @0 :Text;
  bytes @1 :Data;
}

struct KeeperChild {
  childId @0 :UInt64;
  pid @1 :Int64;
  ended @2 :Bool;
  exit @3 :ExitStatus;
}

struct KeeperWelcome {
  status @0 :Status;
}

struct KeeperSpawned {
  childId @0 :UInt64;
  status @1 :Status;
  pid @2 :Int64;
}

struct KeeperExited {
  childId @0 :UInt64;
  exit @1 :ExitStatus;
}

struct KeptActor {
  actorId @0 :Id;
  generation @1 :UInt64;
  host @2 :UInt64;
  ready @3 :Bool;
  constructorFailed @4 :Bool;
  endsForGood @5 :Bool;
  cause @6 :Status;
  gpus @7 :List(Text);
}

struct KeptSegment {
  jobId @0 :Id;
  name @1 :Text;
  owner @2 :UInt64;
}

struct KeptNode {
  endpoint @0 :Endpoint;
  name @1 :Text;
  joined @2 :Bool;
  contactNs @3 :Int64;
  heartbeatTimeoutMs @4 :Int64;
}

struct KeptGpu {
  name @0 :Text;
  idleBytes @1 :UInt64;
  idlePids @2 :List(Int64);
  lastJob @3 :Id;
  releasing @4 :Bool;
  lost @5 :Bool;
  trouble @6 :Text;
}

struct KeptGpus {
  gpus @0 :List(KeptGpu);
}

struct KeeperMessage {
  union {
    keeperHello @0 :KeeperHello;
    keeperSpawn @1 :KeeperSpawn;
    keeperPut @2 :KeeperPut;
    keeperDrop @3 :KeeperDrop;
    keeperForget @4 :KeeperForget;
    keeperAlive @5 :KeeperAlive;
    keeperQuit @6 :KeeperQuit;
    keeperEntry @7 :KeeperEntry;
    keeperChild @8 :KeeperChild;
    keeperWelcome @9 :KeeperWelcome;
    keeperSpawned @10 :KeeperSpawned;
    keeperExited @11 :KeeperExited;
    keptActor @12 :KeptActor;
    keptSegment @13 :KeptSegment;
    keptNode @14 :KeptNode;
    keptGpus @15 :KeptGpus;
  }
}

struct ObjectHello {
  protocolVersion @0 :UInt32;
  client @1 :Id;
  jobId @2 :Id;
  name @3 :Text;
  pid @4 :Int64;
}

struct NewSegment {
  request @0 :UInt64;
  bytes @1 :UInt64;
}

struct ObjectPlace {
  segment @0 :UInt64;
  offset @1 :UInt64;
}

struct PutObject {
  objectId @0 :Id;
  place @1 :ObjectPlace;
  bytes @2 :UInt64;
  typeHash @3 :UInt64;
}

struct ObjectRecord {
  objectId @0 :Id;
  home @1 :Id;
  homeEndpoint @2 :Endpoint;
  bytes @3 :UInt64;
  typeHash @4 :UInt64;
}

struct HoldObjects {
  request @0 :UInt64;
  objects @1 :List(ObjectRecord);
}

struct ReleaseObjects {
  objects @0 :List(Id);
  unshared @1 :Bool;
}

struct GetObject {
  request @0 :UInt64;
  objectId @1 :Id;
  othersMax @2 :UInt32;
}

struct ForgetObjectRequest {
  request @0 :UInt64;
  objectId @1 :Id;
}

struct SegmentsRevoked {
  unmapped @0 :List(UInt64);
  inUse @1 :List(UInt64);
  inherited @2 :List(UInt64);
}

struct ObjectAnswer {
  request @0 :UInt64;
  pending @1 :Bool;
  status @2 :Status;
  place @3 :ObjectPlace;
  bytes @4 :UInt64;
  segmentBytes @5 :UInt64;
  hasDescriptor @6 :Bool;
  others @7 :List(Id);
  otherOffsets @8 :List(UInt64);
}

struct ObjectsFreed {
  places @0 :List(ObjectPlace);
}

struct RevokeSegments {
  segments @0 :List(UInt64);
}

struct StoreHello {
  protocolVersion @0 :UInt32;
  nodeId @1 :Id;
  endpoint @2 :Endpoint;
}

struct BorrowObjects {
  request @0 :UInt64;
  objects @1 :List(Id);
}

struct ObjectsBorrowed {
  request @0 :UInt64;
  unknown @1 :List(Id);
}

struct ReturnObjects {
  objects @0 :List(Id);
}

struct FindSource {
  request @0 :UInt64;
  objectId @1 :Id;
  failed @2 :List(Id);
}

struct ObjectSource {
  request @0 :UInt64;
  status @1 :Status;
  nodeId @2 :Id;
  endpoint @3 :Endpoint;
  bytes @4 :UInt64;
}

struct CopyChanged {
  objectId @0 :Id;
  isHere @1 :Bool;
}

struct ReadObject {
  objectId @0 :Id;
  offset @1 :UInt64;
  whole @2 :Bool;
}

struct BorrowsComplete {
}

struct ObjectWelcome {
  status @0 :Status;
  nodeId @1 :Id;
  endpoint @2 :Endpoint;
  memoryMaxBytes @3 :UInt64;
}

struct ReadStoreTotals {
  moves @0 :Bool;
}

struct StoreMove {
  kind @0 :UInt8;
  bytes @1 :UInt64;
  beginUnixUs @2 :Int64;
  endUnixUs @3 :Int64;
  from @4 :Id;
  objectId @5 :Id;
  failed @6 :Bool;
}

struct StoreTotals {
  objects @0 :UInt64;
  memoryBytes @1 :UInt64;
  memoryMaxBytes @2 :UInt64;
  spilledBytes @3 :UInt64;
  spilledBytesTotal @4 :UInt64;
  restoredBytesTotal @5 :UInt64;
  fetchedBytesTotal @6 :UInt64;
  waiting @7 :UInt64;
  moves @8 :List(StoreMove);
  spareBytes @9 :UInt64;
}

struct ObjectMessage {
  union {
    objectHello @0 :ObjectHello;
    newSegment @1 :NewSegment;
    putObject @2 :PutObject;
    holdObjects @3 :HoldObjects;
    releaseObjects @4 :ReleaseObjects;
    getObject @5 :GetObject;
    forgetObjectRequest @6 :ForgetObjectRequest;
    segmentsRevoked @7 :SegmentsRevoked;
    objectAnswer @8 :ObjectAnswer;
    objectsFreed @9 :ObjectsFreed;
    revokeSegments @10 :RevokeSegments;
    storeHello @11 :StoreHello;
    borrowObjects @12 :BorrowObjects;
    objectsBorrowed @13 :ObjectsBorrowed;
    returnObjects @14 :ReturnObjects;
    findSource @15 :FindSource;
    objectSource @16 :ObjectSource;
    copyChanged @17 :CopyChanged;
    readObject @18 :ReadObject;
    borrowsComplete @19 :BorrowsComplete;
    objectWelcome @20 :ObjectWelcome;
    readStoreTotals @21 :ReadStoreTotals;
    storeTotals @22 :StoreTotals;
  }
}

struct MethodSignature {
  name @0 :Text;
  hash @1 :UInt64;
}

struct Bind {
  actorId @0 :Id;
  type @1 :Text;
  caller @2 :Id;
  methods @3 :List(MethodSignature);
  callerActor @4 :Id;
  callerGeneration @5 :UInt64;
  generation @6 :UInt64;
  attempt @7 :UInt64;
}

struct BindReply {
  status @0 :Status;
  generation @1 :UInt64;
}

struct Call {
  sequence @0 :UInt64;
  method @1 :UInt32;
  timeoutUs @2 :Int64;
  arguments @3 :Data;
}

struct CallReply {
  sequence @0 :UInt64;
  status @1 :Status;
  result @2 :Data;
}

struct CancelCall {
  sequence @0 :UInt64;
}

struct StreamItem {
  sequence @0 :UInt64;
  index @1 :UInt64;
  item @2 :Data;
}

struct StreamCredit {
  sequence @0 :UInt64;
  items @1 :UInt64;
}

struct CallProbe {
  sequence @0 :UInt64;
  initiator @1 :Id;
  initiatorSequence @2 :UInt64;
  path @3 :List(Text);
}

struct Draining {
}

struct CallGivenBack {
  sequence @0 :UInt64;
  arguments @1 :Data;
}

struct ReferencesTaken {
  sequence @0 :UInt64;
  item @1 :UInt64;
}

struct CallMessage {
  union {
    bind @0 :Bind;
    bindReply @1 :BindReply;
    call @2 :Call;
    callReply @3 :CallReply;
    cancelCall @4 :CancelCall;
    streamItem @5 :StreamItem;
    streamCredit @6 :StreamCredit;
    callProbe @7 :CallProbe;
    draining @8 :Draining;
    callGivenBack @9 :CallGivenBack;
    referencesTaken @10 :ReferencesTaken;
  }
}
