#include "runtime/collective/cpu_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/collective/bootstrap.h"
#include "runtime/collective/progress.h"

namespace troupe::collective {
namespace {

// Up to here an all-reduce sends everything to everybody and each rank sums: one message's latency
// instead of two. Same tree, same bits.
constexpr std::size_t kSmallBytes = 4096;
// A shard's reduced chunk is sent this many chunks behind the unreduced ones, so that neither
// direction waits for the other.
constexpr std::size_t kGatherLag = 2;

class CpuCommunicator final : public Communicator {
 public:
  CpuCommunicator(const CommunicatorOptions& options, Formed formed)
      : options_(options),
        lone_slot_(),
        engine_({options.rank, options.world_size, options.generation, options.spin},
                std::move(formed.peers), std::move(formed.segment),
                formed.slot != nullptr ? formed.slot : &lone_slot_, std::move(formed.wake_event)) {}

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  std::uint64_t generation() const override { return options_.generation; }
  Duration default_timeout() const override { return options_.default_timeout; }
  void abort(Status reason) override { engine_.abort(std::move(reason)); }
  Counters counters() const override { return counters_; }

  Status all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                    Deadline deadline) override;
  Status reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                        DataType type, ReduceOp op, Deadline deadline) override;
  Status all_gather(const void* input, void* output, std::span<const std::size_t> counts,
                    DataType type, Deadline deadline) override;
  Status broadcast(void* data, std::size_t count, DataType type, int root,
                   Deadline deadline) override;
  Status barrier(Deadline deadline) override;

 private:
  // Byte ranges of the shards, by rank.
  struct Shard {
    std::size_t begin, bytes;
  };
  Status begin(Operation operation, std::size_t count, std::size_t counts_hash, DataType type,
               ReduceOp op, int root);
  Status finish(Operation operation, DataType type, ReduceOp op, bool small, Deadline deadline,
                std::uint64_t algorithm_bytes);
  void set_shards(std::span<const std::size_t> counts, DataType type);
  // The exchange all the sharded operations are made of. source: (all), out: this rank's shard;
  // gathered: (all) or null where shards stay with their owners; reduce: false for a gather alone.
  void schedule(const std::byte* source, std::byte* out, std::byte* gathered, bool reduce);
  std::size_t total_bytes() const { return shards_.back().begin + shards_.back().bytes; }
  const Shard& own() const { return shards_[static_cast<std::size_t>(options_.rank)]; }
  std::uint64_t others() const { return static_cast<std::uint64_t>(options_.world_size - 1); }

  CommunicatorOptions options_;
  WaitSlot lone_slot_;
  std::uint64_t sequence_ = 0;
  std::vector<Shard> shards_;
  Counters counters_{};
  std::atomic<bool> busy_{false};
  Engine engine_;
};

Status CpuCommunicator::begin(Operation operation, std::size_t count, std::size_t counts_hash,
                              DataType type, ReduceOp op, int root) {
  TROUPE_CHECK(!busy_.exchange(true), "two threads in communicator '{}' at once", options_.name);
  MessageHeader header{};
  header.generation = options_.generation;
  header.sequence = ++sequence_;
  header.count = count;
  header.counts_hash = counts_hash;
  header.operation = static_cast<std::uint8_t>(operation);
  header.type = static_cast<std::uint8_t>(type);
  header.op = static_cast<std::uint8_t>(op);
  header.root = static_cast<std::uint32_t>(root);
  Status status = engine_.begin(header);
  if (!status.ok()) {
    busy_.store(false);
    status.with("operation", operation_name(operation)).with("sequence", sequence_);
  }
  return status;
}

Status CpuCommunicator::finish(Operation operation, DataType type, ReduceOp op, bool small,
                               Deadline deadline, std::uint64_t algorithm_bytes) {
  Status status = engine_.run(type, op, small, deadline);
  OperationCounters& counter = counters_[static_cast<std::size_t>(operation)];
  ++counter.calls;
  counter.algorithm_bytes_sent += algorithm_bytes;
  for (Peer& peer : engine_.peers()) {
    counter.wire_bytes_sent += std::exchange(peer.bytes_sent, 0);
    counter.wire_bytes_received += std::exchange(peer.bytes_received, 0);
  }
  busy_.store(false);
  return status;
}

void CpuCommunicator::set_shards(std::span<const std::size_t> counts, DataType type) {
  shards_.clear();
  std::size_t begin = 0;
  for (const std::size_t count : counts) {
    shards_.push_back({begin, count * size_of(type)});
    begin += count * size_of(type);
  }
}

void CpuCommunicator::schedule(const std::byte* source, std::byte* out, std::byte* gathered,
                               bool reduce) {
  const auto chunks = [](const Shard& shard) {
    return (shard.bytes + kChunkBytes - 1) / kChunkBytes;
  };
  const auto chunk_bytes = [](const Shard& shard, std::size_t k) {
    return std::min(kChunkBytes, shard.bytes - k * kChunkBytes);
  };
  const Shard mine = own();
  const std::size_t lag = reduce ? kGatherLag : 0;
  if (reduce)
    for (std::size_t k = 0; k < chunks(mine); ++k)
      engine_.reductions().push_back(
          {source + mine.begin + k * kChunkBytes, out + k * kChunkBytes, chunk_bytes(mine, k)});
  for (Peer& peer : engine_.peers()) {
    const Shard theirs = shards_[static_cast<std::size_t>(peer.rank)];
    const std::size_t steps = std::max(chunks(mine), chunks(theirs)) + lag;
    // Both sides walk the same steps, so their lists match piece for piece.
    for (std::size_t k = 0; k < steps; ++k) {
      const std::size_t at = k * kChunkBytes;
      if (reduce && k < chunks(theirs))
        peer.sends.push_back({source + theirs.begin + at, chunk_bytes(theirs, k), -1});
      if (reduce && k < chunks(mine))
        peer.receives.push_back({nullptr, chunk_bytes(mine, k), static_cast<int>(k)});
      if (gathered == nullptr || k < lag) continue;
      const std::size_t g = k - lag, gathered_at = g * kChunkBytes;
      if (g < chunks(mine))
        peer.sends.push_back(
            {out + gathered_at, chunk_bytes(mine, g), reduce ? static_cast<int>(g) : -1});
      if (g < chunks(theirs))
        peer.receives.push_back(
            {gathered + theirs.begin + gathered_at, chunk_bytes(theirs, g), -1});
    }
  }
}

Status CpuCommunicator::all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                                   Deadline deadline) {
  auto* bytes = static_cast<std::byte*>(data);
  const std::size_t size = count * size_of(type);
  TROUPE_RETURN_IF_ERROR(begin(Operation::kAllReduce, count, 0, type, op, 0));
  shards_.clear();
  std::size_t at = 0;
  for (int r = 0; r < options_.world_size; ++r) {
    const std::size_t shard = even_shard_count(count, options_.world_size, r) * size_of(type);
    shards_.push_back({at, shard});
    at += shard;
  }
  const std::uint64_t algorithm_bytes = size - own().bytes + others() * own().bytes;
  const bool small = size <= kSmallBytes;
  if (small && size != 0) {
    engine_.reductions().push_back({bytes, bytes, size});
    for (Peer& peer : engine_.peers()) {
      peer.sends.push_back({bytes, size, -1});
      peer.receives.push_back({nullptr, size, 0});
    }
  } else if (!small) {
    schedule(bytes, bytes + own().begin, bytes, true);
  }
  return finish(Operation::kAllReduce, type, op, small, deadline, algorithm_bytes);
}

Status check_shards(std::string_view operation, std::span<const std::size_t> counts,
                    int world_size) {
  if (counts.size() == static_cast<std::size_t>(world_size)) return {};
  return error(Code::kInvalidArgument, "{}: {} counts for {} ranks", operation, counts.size(),
               world_size);
}

Status CpuCommunicator::reduce_scatter(const void* input, void* output,
                                       std::span<const std::size_t> counts, DataType type,
                                       ReduceOp op, Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("reduce_scatter", counts, options_.world_size));
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  TROUPE_RETURN_IF_ERROR(
      begin(Operation::kReduceScatter, total, xxh3_64(std::as_bytes(counts)), type, op, 0));
  set_shards(counts, type);
  const auto* source = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  if (options_.world_size == 1 && total != 0) {
    if (out != source) std::memmove(out, source, total_bytes());
  } else {
    schedule(source, out, nullptr, true);
  }
  return finish(Operation::kReduceScatter, type, op, false, deadline, total_bytes() - own().bytes);
}

Status CpuCommunicator::all_gather(const void* input, void* output,
                                   std::span<const std::size_t> counts, DataType type,
                                   Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("all_gather", counts, options_.world_size));
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  TROUPE_RETURN_IF_ERROR(
      begin(Operation::kAllGather, total, xxh3_64(std::as_bytes(counts)), type, ReduceOp::kSum, 0));
  set_shards(counts, type);
  auto* gathered = static_cast<std::byte*>(output);
  std::byte* slot = gathered + own().begin;
  if (input != slot && own().bytes != 0) std::memmove(slot, input, own().bytes);
  schedule(nullptr, slot, gathered, false);
  return finish(Operation::kAllGather, type, ReduceOp::kSum, false, deadline,
                others() * own().bytes);
}

Status CpuCommunicator::broadcast(void* data, std::size_t count, DataType type, int root,
                                  Deadline deadline) {
  if (root < 0 || root >= options_.world_size)
    return error(Code::kInvalidArgument, "broadcast: no rank {} in a world of {}", root,
                 options_.world_size);
  TROUPE_RETURN_IF_ERROR(begin(Operation::kBroadcast, count, 0, type, ReduceOp::kSum, root));
  auto* bytes = static_cast<std::byte*>(data);
  const std::size_t size = count * size_of(type);
  const bool is_root = root == options_.rank;
  for (Peer& peer : engine_.peers()) {
    for (std::size_t at = 0; at < size; at += kChunkBytes) {
      const std::size_t length = std::min(kChunkBytes, size - at);
      if (is_root) peer.sends.push_back({bytes + at, length, -1});
      if (peer.rank == root) peer.receives.push_back({bytes + at, length, -1});
    }
  }
  return finish(Operation::kBroadcast, type, ReduceOp::kSum, false, deadline,
                is_root ? others() * size : 0);
}

Status CpuCommunicator::barrier(Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(begin(Operation::kBarrier, 0, 0, DataType::kUint8, ReduceOp::kSum, 0));
  return finish(Operation::kBarrier, DataType::kUint8, ReduceOp::kSum, true, deadline, 0);
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_cpu_communicator(CommunicatorOptions options,
                                                            std::vector<PeerLink> links) {
  auto formed = TROUPE_TRY(form_links(options, std::move(links)));
  return std::unique_ptr<Communicator>(
      std::make_unique<CpuCommunicator>(options, std::move(formed)));
}

}  // namespace troupe::collective
