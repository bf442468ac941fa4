# keeper_messages.h on the wire.
@0xb1d3c5e7f9a10207;

using Cxx = import "/capnp/c++.capnp";
using T = import "types.capnp";
$Cxx.namespace("troupe::wire::schema");

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
  exit @3 :T.ExitStatus;
}

struct KeeperWelcome {
  status @0 :T.Status;
}

struct KeeperSpawned {
  childId @0 :UInt64;
  status @1 :T.Status;
  pid @2 :Int64;
}

struct KeeperExited {
  childId @0 :UInt64;
  exit @1 :T.ExitStatus;
}

struct KeptActor {
  actorId @0 :T.Id;
  generation @1 :UInt64;
  host @2 :UInt64;
  ready @3 :Bool;
  constructorFailed @4 :Bool;
  endsForGood @5 :Bool;
  cause @6 :T.Status;
  gpus @7 :List(Text);
}

struct KeptSegment {
  jobId @0 :T.Id;
  name @1 :Text;
  owner @2 :UInt64;
}

struct KeptNode {
  endpoint @0 :T.Endpoint;
  name @1 :Text;
  joined @2 :Bool;
  contactNs @3 :Int64;
  heartbeatTimeoutMs @4 :Int64;
}

struct KeptGpu {
  name @0 :Text;
  idleBytes @1 :UInt64;
  idlePids @2 :List(Int64);
  lastJob @3 :T.Id;
  releasing @4 :Bool;
  lost @5 :Bool;
  trouble @6 :Text;
}

struct KeptGpus {
  gpus @0 :List(KeptGpu);
}
