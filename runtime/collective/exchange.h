#pragma once
// Which pieces the operations are made of: lists for the peers of a group, nothing is sent yet.
// Internal.

#include <cstddef>
#include <span>

#include "runtime/collective/progress.h"

namespace troupe::collective {

// The bytes of a buffer that are one rank's.
struct Shard {
  std::size_t begin, bytes;
};

// One stream of consecutive bytes through a link.
void send_in_chunks(Peer& peer, const std::byte* data, std::size_t bytes);
void receive_in_chunks(Peer& peer, std::byte* out, std::size_t bytes);
// The same bytes read in place, at `from` of the peer's buffer, which is complete as soon as the
// peer has come.
void read_in_chunks(Peer& peer, std::byte* out, std::size_t from, std::size_t bytes);
// Last after reads in place: each side says that it has read, neither leaves before.
void say_read(Peer& peer);

// What the sharded operations are made of. shards: by group rank. source: (all) of this rank; out:
// where this rank's shard goes; gathered: (all), null where shards stay with their owners; reduce:
// false for a gather alone, whose shard lies in `out` already.
struct Exchange {
  std::span<const Shard> shards;
  const std::byte* source;
  std::byte* out;
  std::byte* gathered;
  bool reduce;
};
void schedule_exchange(Engine& engine, const Group& group, const Exchange& exchange);
// The same among ranks that read each other's buffers in place: `source`, or for a gather alone
// `gathered`, is what they have registered.
void schedule_in_place(Engine& engine, const Group& group, const Exchange& exchange);

}  // namespace troupe::collective
