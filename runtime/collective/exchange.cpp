#include "runtime/collective/exchange.h"

#include <algorithm>

namespace troupe::collective {
namespace {

// What is read in place at a time. A chunk that its owner has just summed is still in the caches
// when the others fetch it, and they need not be exactly as fast as the owner.
constexpr std::size_t kInPlaceChunkBytes = 64u << 10;
constexpr std::size_t kInPlaceLag = 8;
// A message that says nothing but that it was sent.
constexpr std::byte kToken[kStreamAlignment] = {};

std::size_t chunks_of(const Shard& shard, std::size_t chunk_bytes) {
  return (shard.bytes + chunk_bytes - 1) / chunk_bytes;
}

// One chunk of a shard: its place in the shard and its size.
struct Chunk {
  std::size_t at, bytes;
};
Chunk chunk_of(const Shard& shard, std::size_t number, std::size_t chunk_bytes) {
  const std::size_t at = number * chunk_bytes;
  return {at, std::min(chunk_bytes, shard.bytes - at)};
}

void add_reductions(Engine& engine, const Shard& mine, const Exchange& exchange,
                    std::size_t chunk_bytes) {
  for (std::size_t k = 0; k < chunks_of(mine, chunk_bytes); ++k) {
    const auto [at, bytes] = chunk_of(mine, k, chunk_bytes);
    engine.reductions().push_back({exchange.source + mine.begin + at, exchange.out + at, bytes});
  }
}

const Shard& shard_of(const Exchange& exchange, int rank) {
  return exchange.shards[static_cast<std::size_t>(rank)];
}

void send_token(Peer& peer, int after) { peer.sends.push_back({kToken, sizeof kToken, after}); }
void receive_token(Peer& peer) {
  peer.receives.push_back({peer.token.data(), sizeof kToken, kNoReduction});
}

}  // namespace

void send_in_chunks(Peer& peer, const std::byte* data, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kChunkBytes)
    peer.sends.push_back({data + at, std::min(kChunkBytes, bytes - at), kAtOnce});
}

void receive_in_chunks(Peer& peer, std::byte* out, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kChunkBytes)
    peer.receives.push_back({out + at, std::min(kChunkBytes, bytes - at), kNoReduction});
}

void read_in_chunks(Peer& peer, std::byte* out, std::size_t from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kInPlaceChunkBytes)
    peer.receives.push_back(
        {out + at, std::min(kInPlaceChunkBytes, bytes - at), kNoReduction, from + at});
}

void say_read(Peer& peer) {
  send_token(peer, kAfterReads);
  receive_token(peer);
}

void schedule_exchange(Engine& engine, const Group& group, const Exchange& exchange) {
  const Shard mine = shard_of(exchange, group.rank);
  const std::size_t my_chunks = chunks_of(mine, kChunkBytes);
  if (exchange.reduce) add_reductions(engine, mine, exchange, kChunkBytes);
  for (Peer* member : group.peers) {
    Peer& peer = *member;
    const Shard theirs = shard_of(exchange, peer.group_rank);
    const std::size_t their_chunks = chunks_of(theirs, kChunkBytes);
    const std::size_t lag = exchange.reduce ? peer.link->lag_chunks() : 0;
    // Both sides walk the same steps, so their lists match piece for piece.
    for (std::size_t k = 0; k < std::max(my_chunks, their_chunks) + lag; ++k) {
      const int number = static_cast<int>(k);
      if (exchange.reduce && k < their_chunks) {
        const auto [at, bytes] = chunk_of(theirs, k, kChunkBytes);
        peer.sends.push_back({exchange.source + theirs.begin + at, bytes, kAtOnce});
      }
      if (exchange.reduce && k < my_chunks)
        peer.receives.push_back({nullptr, chunk_of(mine, k, kChunkBytes).bytes, number});
      if (exchange.gathered == nullptr || k < lag) continue;
      const std::size_t g = k - lag;
      if (g < my_chunks) {
        const auto [at, bytes] = chunk_of(mine, g, kChunkBytes);
        const int after = exchange.reduce ? static_cast<int>(g) : kAtOnce;
        peer.sends.push_back({exchange.out + at, bytes, after});
      }
      if (g < their_chunks) {
        const auto [at, bytes] = chunk_of(theirs, g, kChunkBytes);
        peer.receives.push_back({exchange.gathered + theirs.begin + at, bytes, kNoReduction});
      }
    }
  }
}

// A rank writes into another one's shard of its own buffer only what that one has made of it, so
// nobody reads any more what it overwrites.
void schedule_in_place(Engine& engine, const Group& group, const Exchange& exchange) {
  const Shard mine = shard_of(exchange, group.rank);
  const std::size_t my_chunks = chunks_of(mine, kInPlaceChunkBytes);
  if (exchange.reduce) add_reductions(engine, mine, exchange, kInPlaceChunkBytes);
  for (Peer* member : group.peers) {
    Peer& peer = *member;
    const Shard theirs = shard_of(exchange, peer.group_rank);
    if (!exchange.reduce) {
      read_in_chunks(peer, exchange.gathered + theirs.begin, theirs.begin, theirs.bytes);
      say_read(peer);
      continue;
    }
    const std::size_t their_chunks = chunks_of(theirs, kInPlaceChunkBytes);
    for (std::size_t k = 0; k < std::max(my_chunks, their_chunks) + kInPlaceLag; ++k) {
      if (k < my_chunks) {
        const auto [at, bytes] = chunk_of(mine, k, kInPlaceChunkBytes);
        peer.receives.push_back({nullptr, bytes, static_cast<int>(k), mine.begin + at});
      }
      if (exchange.gathered == nullptr || k < kInPlaceLag) continue;
      const std::size_t g = k - kInPlaceLag;
      if (g < my_chunks) send_token(peer, static_cast<int>(g));
      if (g >= their_chunks) continue;
      const auto [at, bytes] = chunk_of(theirs, g, kInPlaceChunkBytes);
      receive_token(peer);
      const std::size_t from = theirs.begin + at;
      peer.receives.push_back({exchange.gathered + from, bytes, kNoReduction, from});
    }
    say_read(peer);
  }
}

}  // namespace troupe::collective
