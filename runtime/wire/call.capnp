# call_messages.h on the wire.
@0xb1d3c5e7f9a10206;

using Cxx = import "/capnp/c++.capnp";
using T = import "types.capnp";
$Cxx.namespace("troupe::wire::schema");

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
  }
}

struct MethodSignature {
  name @0 :Text;
  hash @1 :UInt64;
}

struct Bind {
  actorId @0 :T.Id;
  type @1 :Text;
  caller @2 :T.Id;
  methods @3 :List(MethodSignature);
  callerActor @4 :T.Id;
  callerGeneration @5 :UInt64;
  generation @6 :UInt64;
}

struct BindReply {
  status @0 :T.Status;
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
  status @1 :T.Status;
  result @2 :Data;
}

struct Draining {
}

struct CallGivenBack {
  sequence @0 :UInt64;
  arguments @1 :Data;
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
  initiator @1 :T.Id;
  initiatorSequence @2 :UInt64;
  path @3 :List(Text);
}
