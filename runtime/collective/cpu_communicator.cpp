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

// What a communicator and its subgroups have in common.
struct Shared {
  Shared(const CommunicatorOptions& options, Formed formed)
      : options(options),
        engine({options.rank, options.generation, options.spin}, std::move(formed.peers),
               std::move(formed.segment), formed.slot != nullptr ? formed.slot : &lone_slot,
               std::move(formed.wake_event)) {}

  const CommunicatorOptions options;
  WaitSlot lone_slot{};
  std::atomic<bool> busy{false};
  Engine engine;
};

class CpuCommunicator final : public Communicator {
 public:
  CpuCommunicator(std::shared_ptr<Shared> shared, Group group)
      : shared_(std::move(shared)), engine_(shared_->engine), group_(std::move(group)) {}

  int rank() const override { return group_.rank; }
  int world_size() const override { return static_cast<int>(group_.ranks.size()); }
  std::uint64_t generation() const override { return shared_->options.generation; }
  Duration default_timeout() const override { return shared_->options.default_timeout; }
  void abort(Status reason) override { engine_.abort(std::move(reason)); }
  Counters counters() const override { return counters_; }
  void observe(OperationObserver* observer) override { engine_.observe(observer); }
  Result<std::unique_ptr<Communicator>> subgroup(std::span<const int> ranks,
                                                 std::string_view name) override;

  Status all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                    Deadline deadline) override;
  Status reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                        DataType type, ReduceOp op, Deadline deadline) override;
  Status all_gather(const void* input, void* output, std::span<const std::size_t> counts,
                    DataType type, Deadline deadline) override;
  Status broadcast(void* data, std::size_t count, DataType type, int root,
                   Deadline deadline) override;
  Status all_to_all(const void* input, void* output, std::span<const std::size_t> counts,
                    DataType type, Deadline deadline) override;
  Status gather(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                int root, Deadline deadline) override;
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
  // What observers call the group.
  std::string_view group_name() const {
    return group_.id == 0 ? std::string_view() : std::string_view(group_.name);
  }
  void ends(Operation operation, bool ok);
  void set_shards(std::span<const std::size_t> counts, DataType type);
  // The exchange all the sharded operations are made of. source: (all), out: this rank's shard;
  // gathered: (all) or null where shards stay with their owners; reduce: false for a gather alone.
  void schedule(const std::byte* source, std::byte* out, std::byte* gathered, bool reduce);
  std::size_t total_bytes() const { return shards_.back().begin + shards_.back().bytes; }
  const Shard& shard_of(int rank) const { return shards_[static_cast<std::size_t>(rank)]; }
  const Shard& own() const { return shard_of(group_.rank); }
  std::uint64_t others() const { return group_.peers.size(); }

  const std::shared_ptr<Shared> shared_;
  Engine& engine_;
  const Group group_;
  std::uint64_t sequence_ = 0;
  std::vector<Shard> shards_;
  Counters counters_{};
};

// Lists one stream of consecutive bytes, in chunks.
void send_in_chunks(Peer& peer, const std::byte* data, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kChunkBytes)
    peer.sends.push_back({data + at, std::min(kChunkBytes, bytes - at), -1});
}
void receive_in_chunks(Peer& peer, std::byte* out, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kChunkBytes)
    peer.receives.push_back({out + at, std::min(kChunkBytes, bytes - at), -1});
}

Status check_shards(std::string_view operation, std::span<const std::size_t> counts,
                    int world_size) {
  if (counts.size() == static_cast<std::size_t>(world_size)) return {};
  return error(Code::kInvalidArgument, "{}: {} counts for {} ranks", operation, counts.size(),
               world_size);
}

Status check_root(std::string_view operation, int root, int world_size) {
  if (root >= 0 && root < world_size) return {};
  return error(Code::kInvalidArgument, "{}: no rank {} in a world of {}", operation, root,
               world_size);
}

Status CpuCommunicator::begin(Operation operation, std::size_t count, std::size_t counts_hash,
                              DataType type, ReduceOp op, int root) {
  // It may throw: nothing is begun yet.
  if (OperationObserver* observer = engine_.observer())
    observer->begins(operation, group_name(), sequence_ + 1, count * size_of(type));
  TROUPE_CHECK(!shared_->busy.exchange(true),
               "two threads in communicator '{}' or its subgroups at once", group_.name);
  MessageHeader header{};
  header.generation = generation();
  header.sequence = ++sequence_;
  header.count = count;
  header.counts_hash = counts_hash;
  header.operation = static_cast<std::uint8_t>(operation);
  header.type = static_cast<std::uint8_t>(type);
  header.op = static_cast<std::uint8_t>(op);
  header.root = static_cast<std::uint32_t>(root);
  Status status = engine_.begin(header, group_);
  if (!status.ok()) {
    shared_->busy.store(false);
    status.with("operation", operation_name(operation))
        .with("group", group_.name)
        .with("sequence", sequence_);
    ends(operation, false);
  }
  return status;
}

void CpuCommunicator::ends(Operation operation, bool ok) {
  if (OperationObserver* observer = engine_.observer())
    observer->ends(operation, group_name(), sequence_, ok);
}

Status CpuCommunicator::finish(Operation operation, DataType type, ReduceOp op, bool small,
                               Deadline deadline, std::uint64_t algorithm_bytes) {
  Status status = engine_.run(type, op, small, deadline);
  OperationCounters& counter = counters_[static_cast<std::size_t>(operation)];
  ++counter.calls;
  counter.algorithm_bytes_sent += algorithm_bytes;
  for (Peer* peer : group_.peers) {
    counter.wire_bytes_sent += std::exchange(peer->bytes_sent, 0);
    counter.wire_bytes_received += std::exchange(peer->bytes_received, 0);
  }
  shared_->busy.store(false);
  ends(operation, status.ok());
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
  for (Peer* member : group_.peers) {
    Peer& peer = *member;
    const Shard theirs = shard_of(peer.group_rank);
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
  for (int r = 0; r < world_size(); ++r) {
    const std::size_t shard = even_shard_count(count, world_size(), r) * size_of(type);
    shards_.push_back({at, shard});
    at += shard;
  }
  const std::uint64_t algorithm_bytes = size - own().bytes + others() * own().bytes;
  const bool small = size <= kSmallBytes;
  if (small && size != 0) {
    engine_.reductions().push_back({bytes, bytes, size});
    for (Peer* peer : group_.peers) {
      peer->sends.push_back({bytes, size, -1});
      peer->receives.push_back({nullptr, size, 0});
    }
  } else if (!small) {
    schedule(bytes, bytes + own().begin, bytes, true);
  }
  return finish(Operation::kAllReduce, type, op, small, deadline, algorithm_bytes);
}

Status CpuCommunicator::reduce_scatter(const void* input, void* output,
                                       std::span<const std::size_t> counts, DataType type,
                                       ReduceOp op, Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("reduce_scatter", counts, world_size()));
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  TROUPE_RETURN_IF_ERROR(
      begin(Operation::kReduceScatter, total, xxh3_64(std::as_bytes(counts)), type, op, 0));
  set_shards(counts, type);
  const auto* source = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  if (world_size() == 1 && total != 0) {
    if (out != source) std::memmove(out, source, total_bytes());
  } else {
    schedule(source, out, nullptr, true);
  }
  return finish(Operation::kReduceScatter, type, op, false, deadline, total_bytes() - own().bytes);
}

Status CpuCommunicator::all_gather(const void* input, void* output,
                                   std::span<const std::size_t> counts, DataType type,
                                   Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("all_gather", counts, world_size()));
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
  TROUPE_RETURN_IF_ERROR(check_root("broadcast", root, world_size()));
  TROUPE_RETURN_IF_ERROR(begin(Operation::kBroadcast, count, 0, type, ReduceOp::kSum, root));
  auto* bytes = static_cast<std::byte*>(data);
  const std::size_t size = count * size_of(type);
  const bool is_root = root == rank();
  for (Peer* peer : group_.peers) {
    if (is_root) send_in_chunks(*peer, bytes, size);
    if (peer->group_rank == root) receive_in_chunks(*peer, bytes, size);
  }
  return finish(Operation::kBroadcast, type, ReduceOp::kSum, false, deadline,
                is_root ? others() * size : 0);
}

Status CpuCommunicator::all_to_all(const void* input, void* output,
                                   std::span<const std::size_t> counts, DataType type,
                                   Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("all_to_all", counts, world_size()));
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  TROUPE_RETURN_IF_ERROR(
      begin(Operation::kAllToAll, total, xxh3_64(std::as_bytes(counts)), type, ReduceOp::kSum, 0));
  set_shards(counts, type);
  const auto* source = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  const Shard mine = own();
  const auto slot = [&](int from) { return static_cast<std::size_t>(from) * mine.bytes; };
  if (mine.bytes != 0) std::memcpy(out + slot(rank()), source + mine.begin, mine.bytes);
  for (Peer* peer : group_.peers) {
    const Shard theirs = shard_of(peer->group_rank);
    if (theirs.bytes != 0) send_in_chunks(*peer, source + theirs.begin, theirs.bytes);
    if (mine.bytes != 0) receive_in_chunks(*peer, out + slot(peer->group_rank), mine.bytes);
  }
  return finish(Operation::kAllToAll, type, ReduceOp::kSum, false, deadline,
                total_bytes() - mine.bytes);
}

Status CpuCommunicator::gather(const void* input, void* output, std::span<const std::size_t> counts,
                               DataType type, int root, Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("gather", counts, world_size()));
  TROUPE_RETURN_IF_ERROR(check_root("gather", root, world_size()));
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  TROUPE_RETURN_IF_ERROR(
      begin(Operation::kGather, total, xxh3_64(std::as_bytes(counts)), type, ReduceOp::kSum, root));
  set_shards(counts, type);
  const Shard mine = own();
  const bool is_root = root == rank();
  auto* out = static_cast<std::byte*>(output);
  if (is_root && mine.bytes != 0 && input != out + mine.begin)
    std::memmove(out + mine.begin, input, mine.bytes);
  for (Peer* peer : group_.peers) {
    const Shard theirs = shard_of(peer->group_rank);
    if (peer->group_rank == root)
      send_in_chunks(*peer, static_cast<const std::byte*>(input), mine.bytes);
    if (is_root && theirs.bytes != 0) receive_in_chunks(*peer, out + theirs.begin, theirs.bytes);
  }
  return finish(Operation::kGather, type, ReduceOp::kSum, false, deadline,
                is_root ? 0 : mine.bytes);
}

Result<std::unique_ptr<Communicator>> CpuCommunicator::subgroup(std::span<const int> ranks,
                                                                std::string_view name) {
  const auto refuse = [&](const std::string& why) {
    return error(Code::kInvalidArgument, "subgroup '{}' of ranks [{}] of communicator '{}': {}",
                 name, fmt::join(ranks, ", "), group_.name, why)
        .with("rank", shared_->options.rank);
  };
  if (name.size() >= kNameBytes)
    return refuse(fmt::format("its name is longer than {} characters", kNameBytes - 1));
  std::vector<bool> seen(group_.ranks.size());
  std::vector<int> engine_ranks;
  for (const int member : ranks) {
    if (member < 0 || member >= world_size())
      return refuse(fmt::format("there is no rank {} in a world of {}", member, world_size()));
    if (seen[static_cast<std::size_t>(member)])
      return refuse(fmt::format("rank {} is there twice", member));
    seen[static_cast<std::size_t>(member)] = true;
    engine_ranks.push_back(group_.ranks[static_cast<std::size_t>(member)]);
  }
  if (!seen[static_cast<std::size_t>(rank())])
    return refuse(fmt::format("rank {}, which asks for it, is not in it", rank()));
  TROUPE_CHECK(!shared_->busy.exchange(true),
               "a subgroup is made of communicator '{}' during an operation", group_.name);
  Group group = engine_.add_group(std::string(name), std::move(engine_ranks));
  shared_->busy.store(false);
  return std::unique_ptr<Communicator>(
      std::make_unique<CpuCommunicator>(shared_, std::move(group)));
}

Status CpuCommunicator::barrier(Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(begin(Operation::kBarrier, 0, 0, DataType::kUint8, ReduceOp::kSum, 0));
  return finish(Operation::kBarrier, DataType::kUint8, ReduceOp::kSum, true, deadline, 0);
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_cpu_communicator(CommunicatorOptions options,
                                                            std::vector<PeerLink> links) {
  auto formed = TROUPE_TRY(form_links(options, std::move(links)));
  auto shared = std::make_shared<Shared>(options, std::move(formed));
  std::vector<int> ranks(static_cast<std::size_t>(options.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  Group all = shared->engine.add_group(options.name, std::move(ranks));
  return std::unique_ptr<Communicator>(
      std::make_unique<CpuCommunicator>(std::move(shared), std::move(all)));
}

}  // namespace troupe::collective
