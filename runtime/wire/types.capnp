# The nouns of types.h. Fields are only ever added, with new numbers: peers of one protocol version
# may differ in what they know. See README.md for the limits at decoding.
@0xb1d3c5e7f9a10203;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::wire::schema");

struct Id {
  high @0 :UInt64;
  low @1 :UInt64;
}

struct Pair {
  key @0 :Text;
  value @1 :Text;
}

# A null pointer is an ok status.
struct Status {
  code @0 :Int32;
  message @1 :Text;
  context @2 :List(Pair);
}

# In 1/10,000 of a unit.
struct Resource {
  name @0 :Text;
  amount @1 :Int64;
}

struct Endpoint {
  host @0 :Text;
  port @1 :UInt16;
  localName @2 :Text;
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

struct ActorSpec {
  actorId @0 :Id;
  type @1 :Text;
  name @2 :Text;
  constructorArguments @3 :Data;
  resources @4 :List(Resource);
  restart @5 :RestartPolicy;
  nodeAffinity @6 :Id;  # null: any node
  jobId @7 :Id;
  owner @8 :Id;
  detached @9 :Bool;
  image @10 :Image;
  run @11 :Text;
  rank @12 :Int32;
  environment @13 :List(Pair);
  logPath @14 :Text;
  nodeAffinitySoft @15 :Bool;
  labelSelector @16 :List(LabelTerm);
  labelPreference @17 :List(LabelTerm);
  placementGroup @18 :Id;
  bundleIndex @19 :Int32 = -1;
  priority @20 :Int32;
  lightCount @21 :UInt32;
  program @22 :Program;  # null: an actor
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
}

struct HealthPolicy {
  intervalMs @0 :Int64;
  timeoutMs @1 :Int64;
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
  resources @11 :List(Resource);
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

struct BundleSpec {
  resources @0 :List(Resource);
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

struct BundleInfo {
  resources @0 :List(Resource);
  available @1 :List(Resource);
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

struct Reservation {
  groupId @0 :Id;
  generation @1 :UInt64;
  resources @2 :List(Resource);
}

struct NodeInfo {
  nodeId @0 :Id;
  name @1 :Text;
  endpoint @2 :Endpoint;
  state @3 :UInt8;
  total @4 :List(Resource);
  available @5 :List(Resource);
  labels @6 :List(Pair);
  pid @7 :Int64;
  joinedUnixUs @8 :Int64;
}

struct ExitStatus {
  exitCode @0 :Int32;
  signal @1 :Int32;
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
  exit @11 :ExitStatus;  # null: not known
  why @12 :Text;
  actorsAlive @13 :UInt32;
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
