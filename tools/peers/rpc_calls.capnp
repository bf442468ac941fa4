@0xb6d5a2a1c9e3f047;
# What rpc_capnp.cc calls.

interface Calls {
  add @0 (n :Int32) -> (n :Int32);
  look @1 (bytes :Data) -> (sum :UInt64);
}
