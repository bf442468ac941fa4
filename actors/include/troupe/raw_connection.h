#pragma once
// Sockets between the processes of actors (Actors::connect_to, ActorContext::accept_connections).

#include "troupe/byte_stream.h"

namespace troupe {

// A stream of bytes to another actor's process.
struct RawConnection {
  ByteStream stream;
  bool same_node = false;  // it is a Unix socket
};

}  // namespace troupe
