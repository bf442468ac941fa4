#include "train/cuda/communicator/host_stage.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/cuda/device/waiting.h"

namespace troupe::train {

using collective::Operation;

namespace {

constexpr const char* kDown = "copying to pinned memory for a collective";
constexpr const char* kUp = "copying what a collective brought to the device";

std::size_t chunks_of(std::size_t count, std::size_t chunk) { return (count + chunk - 1) / chunk; }

// Elements of a shard that lie in [begin, begin + chunk).
std::size_t clipped(std::size_t count, std::size_t begin, std::size_t chunk) {
  return count > begin ? std::min(count - begin, chunk) : 0;
}

}  // namespace

Result<std::unique_ptr<HostStage>> HostStage::make(std::shared_ptr<const CudaLibrary> library,
                                                   TroupeCudaContext* context,
                                                   TroupeCudaStream* stream,
                                                   std::int64_t chunk_bytes) {
  TROUPE_CHECK(chunk_bytes >= 4096);
  std::unique_ptr<HostStage> stage(new HostStage(std::move(library), context, stream, chunk_bytes));
  TROUPE_RETURN_IF_ERROR(stage->allocate());
  return stage;
}

Status HostStage::allocate() {
  const TroupeCudaTable& table = library_->table();
  TROUPE_RETURN_IF_ERROR(check(table.stream_create(context_, 1, &up_stream_), "creating a stream"));
  const auto bytes = static_cast<std::int64_t>(chunk_bytes_);
  for (Buffers& buffers : buffers_) {
    for (std::byte** side : {&buffers.input, &buffers.output}) {
      void* at = nullptr;
      TROUPE_RETURN_IF_ERROR(
          check(table.host_allocate(context_, bytes, &at), "pinned memory for collectives"));
      *side = static_cast<std::byte*>(at);
    }
    for (TroupeCudaEvent** event : {&buffers.down, &buffers.up})
      TROUPE_RETURN_IF_ERROR(check(table.event_create(context_, 0, event), "creating an event"));
  }
  return {};
}

HostStage::~HostStage() {
  const TroupeCudaTable& table = library_->table();
  // Copies must not outlive their memory.
  if (!drained(table, stream_) || (up_stream_ && !drained(table, up_stream_))) return;
  for (Buffers& buffers : buffers_) {
    for (std::byte* side : {buffers.input, buffers.output})
      if (side) (void)table.host_free(context_, side);
    for (TroupeCudaEvent* event : {buffers.down, buffers.up})
      if (event) (void)table.event_destroy(event);
  }
  if (up_stream_) (void)table.stream_destroy(up_stream_);
}

Status HostStage::carry_out(collective::Communicator& host, const DeviceCall& call) {
  switch (call.operation) {
    case Operation::kAllReduce:
    case Operation::kBroadcast:
      return whole_buffer(host, call);
    case Operation::kReduceScatter:
    case Operation::kAllGather:
    case Operation::kAllToAll:
    case Operation::kGather:
      return sharded(host, call);
    default:
      TROUPE_CHECK(false, "{} has no data", operation_name(call.operation));
      return {};
  }
}

Status HostStage::whole_buffer(collective::Communicator& host, const DeviceCall& call) {
  const std::size_t element = call.element_bytes(), per_chunk = chunk_bytes_ / element;
  const bool reduces = call.operation == Operation::kAllReduce;
  const bool sends = reduces || call.root == host.rank();
  const bool receives = reduces || call.root != host.rank();
  // Nothing to move is an operation still: ranks meet in it.
  const std::size_t chunks = std::max<std::size_t>(1, chunks_of(call.count, per_chunk));
  const auto make = [&](std::size_t k) {
    const std::size_t begin = k * per_chunk, count = clipped(call.count, begin, per_chunk);
    const Piece piece{call.output + begin * element, 0, count * element};
    Chunk chunk;
    if (sends) chunk.down.push_back(piece);
    if (receives) chunk.up.push_back(piece);
    chunk.up_from_input = true;
    chunk.work = [&host, &call, count, reduces](std::byte* data, std::byte*) {
      return reduces ? host.all_reduce(data, count, call.type, call.op, call.deadline)
                     : host.broadcast(data, count, call.type, call.root, call.deadline);
    };
    return chunk;
  };
  return pipeline(chunks, make, call.deadline);
}

Status HostStage::sharded(collective::Communicator& host, const DeviceCall& call) {
  const TroupeCudaTable& table = library_->table();
  const std::size_t element = call.element_bytes();
  const int me = host.rank();
  const std::size_t own_bytes = call.counts_of(me) * element;
  // What stays here goes no way over the host.
  const std::byte* own = nullptr;
  std::byte* own_to = nullptr;
  if (call.operation == Operation::kAllGather ||
      (call.operation == Operation::kGather && me == call.root)) {
    own = call.input;
    own_to = call.output + call.begin_of(me) * element;
  } else if (call.operation == Operation::kAllToAll) {
    own = call.input + call.begin_of(me) * element;
    own_to = call.output + static_cast<std::size_t>(me) * own_bytes;
  }
  if (own != own_to && own_bytes != 0)
    TROUPE_RETURN_IF_ERROR(
        check(table.copy(stream_, own, own_to, static_cast<std::int64_t>(own_bytes)),
              "copying this rank's own shard"));
  const auto ranks = static_cast<std::size_t>(host.world_size());
  const std::size_t per_chunk = chunk_bytes_ / element / ranks;
  TROUPE_CHECK(per_chunk > 0, "{} ranks share a chunk of {} bytes", ranks, chunk_bytes_);
  const std::size_t longest = *std::max_element(call.counts.begin(), call.counts.end());
  const auto make = [&](std::size_t k) {
    std::vector<std::size_t> counts;
    for (const std::size_t count : call.counts)
      counts.push_back(clipped(count, k * per_chunk, per_chunk));
    return sharded_chunk(host, call, k * per_chunk, std::move(counts));
  };
  return pipeline(std::max<std::size_t>(1, chunks_of(longest, per_chunk)), make, call.deadline);
}

// Elements [begin, begin + counts[r]) of every shard r.
HostStage::Chunk HostStage::sharded_chunk(collective::Communicator& host, const DeviceCall& call,
                                          std::size_t begin,
                                          std::vector<std::size_t> counts) const {
  const std::size_t element = call.element_bytes();
  const int me = host.rank();
  const std::size_t mine = counts[static_cast<std::size_t>(me)];
  // Where the part of shard r lies: in a buffer of the device with all shards, in the chunk's.
  std::vector<std::byte*> in_whole;
  std::vector<std::size_t> in_chunk;
  const bool from_whole =
      call.operation == Operation::kReduceScatter || call.operation == Operation::kAllToAll;
  auto* whole = from_whole ? const_cast<std::byte*>(call.input) : call.output;
  std::size_t at = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    in_whole.push_back(whole + (call.begins[r] + begin) * element);
    in_chunk.push_back(at);
    at += counts[r] * element;
  }
  const auto part = [&](std::size_t r) {
    return Piece{in_whole[r], in_chunk[r], counts[r] * element};
  };
  Chunk chunk;
  switch (call.operation) {
    case Operation::kReduceScatter:
      for (std::size_t r = 0; r < counts.size(); ++r) chunk.down.push_back(part(r));
      chunk.up.push_back({call.output + begin * element, 0, mine * element});
      chunk.work = [&host, &call, counts = std::move(counts)](std::byte* in, std::byte* out) {
        return host.reduce_scatter(in, out, counts, call.type, call.op, call.deadline);
      };
      break;
    case Operation::kAllToAll: {
      const std::size_t row = call.counts_of(me) * element;
      for (std::size_t r = 0; r < counts.size(); ++r) {
        chunk.down.push_back(part(r));
        if (std::cmp_not_equal(r, me))
          chunk.up.push_back(
              {call.output + r * row + begin * element, r * mine * element, mine * element});
      }
      chunk.work = [&host, &call, counts = std::move(counts)](std::byte* in, std::byte* out) {
        return host.all_to_all(in, out, counts, call.type, call.deadline);
      };
      break;
    }
    default: {
      const bool gathers = call.operation == Operation::kGather;
      const bool receives = !gathers || me == call.root;
      chunk.down.push_back(
          {const_cast<std::byte*>(call.input) + begin * element, 0, mine * element});
      for (std::size_t r = 0; receives && r < counts.size(); ++r)
        if (std::cmp_not_equal(r, me)) chunk.up.push_back(part(r));
      chunk.work = [&host, &call, gathers, counts = std::move(counts)](std::byte* in,
                                                                       std::byte* out) {
        return gathers ? host.gather(in, out, counts, call.type, call.root, call.deadline)
                       : host.all_gather(in, out, counts, call.type, call.deadline);
      };
    }
  }
  return chunk;
}

Status HostStage::pipeline(std::size_t chunks, const std::function<Chunk(std::size_t)>& make,
                           Deadline deadline) {
  Status status = run_chunks(chunks, make, deadline);
  // Whatever became of it: who waits for the stream before memory goes waits for what is on its way
  // up, too.
  for (const Buffers& buffers : buffers_) {
    Status followed = check(library_->table().stream_wait(stream_, buffers.up), kUp);
    if (status.ok()) status = std::move(followed);
  }
  return status;
}

Status HostStage::run_chunks(std::size_t chunks, const std::function<Chunk(std::size_t)>& make,
                             Deadline deadline) {
  Chunk current = make(0);
  TROUPE_RETURN_IF_ERROR(begin_down(current, buffers_[0]));
  for (std::size_t k = 0; k < chunks; ++k) {
    Chunk next;
    if (k + 1 < chunks) {
      next = make(k + 1);
      TROUPE_RETURN_IF_ERROR(begin_down(next, buffers_[(k + 1) % 2]));
    }
    TROUPE_RETURN_IF_ERROR(finish(current, buffers_[k % 2], deadline));
    current = std::move(next);
  }
  return {};
}

Status HostStage::begin_down(const Chunk& chunk, Buffers& buffers) {
  const TroupeCudaTable& table = library_->table();
  // The buffer may still be read by what goes up.
  TROUPE_RETURN_IF_ERROR(check(table.stream_wait(stream_, buffers.up), kDown));
  for (const Piece& piece : chunk.down) {
    if (piece.bytes == 0) continue;
    TROUPE_RETURN_IF_ERROR(check(table.copy(stream_, piece.device, buffers.input + piece.at,
                                            static_cast<std::int64_t>(piece.bytes)),
                                 kDown));
  }
  return check(table.event_record(buffers.down, stream_), kDown);
}

Status HostStage::finish(const Chunk& chunk, Buffers& buffers, Deadline deadline) {
  const TroupeCudaTable& table = library_->table();
  TROUPE_RETURN_IF_ERROR(wait_for_event(table, buffers.down, deadline, kDown));
  TROUPE_RETURN_IF_ERROR(wait_for_event(table, buffers.up, deadline, kUp));
  TROUPE_RETURN_IF_ERROR(chunk.work(buffers.input, buffers.output));
  const std::byte* from = chunk.up_from_input ? buffers.input : buffers.output;
  for (const Piece& piece : chunk.up) {
    if (piece.bytes == 0) continue;
    TROUPE_RETURN_IF_ERROR(check(table.copy(up_stream_, from + piece.at, piece.device,
                                            static_cast<std::int64_t>(piece.bytes)),
                                 kUp));
  }
  return check(table.event_record(buffers.up, up_stream_), kUp);
}

}  // namespace troupe::train
