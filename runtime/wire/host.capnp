# host_messages.h on the wire.
@0xb1d3c5e7f9a10205;

using Cxx = import "/capnp/c++.capnp";
using T = import "types.capnp";
$Cxx.namespace("troupe::wire::schema");

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

struct HostStart {
  spec @0 :T.ActorSpec;
  generation @1 :UInt64;
  nodeId @2 :T.Id;
  nodeEndpoint @3 :T.Endpoint;
  headEndpoint @4 :T.Endpoint;
  token @5 :Data;
  hasSavedState @6 :Bool;
  security @7 :UInt8;
  protocolVersion @8 :UInt32;
  stateLostWith @9 :Text;
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
}

struct HostFailed {
  status @0 :T.Status;
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
  status @1 :T.Status;
}

struct HostDrained {
  callsDropped @0 :Int64;
}

struct HostHealth {
  status @0 :T.Status;
}
