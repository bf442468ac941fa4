#include "runtime/collective/cpu_communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/suggest.h"
#include "runtime/collective/bootstrap.h"
#include "runtime/collective/exchange.h"
#include "runtime/collective/progress.h"
#include "runtime/memory/unix_socket.h"

namespace troupe::collective {
namespace {

// Up to here an all-reduce sends everything to everybody and each rank sums: one message's latency
// instead of two. Same tree, same bits.
constexpr std::size_t kSmallBytes = 4096;

// From how many bytes on memory that all ranks have registered is read in place. Below, copying
// through the link costs less than the messages more, which say that a sum is there and that all
// have read; those cost a rank that sleeps a wake-up, a rank that spins next to nothing. In
// microseconds, through the link and in place (`bench_collective sizes`; two ranks, and four on two
// cores):
//
//                          16 KiB     64 KiB    128 KiB    256 KiB    512 KiB      1 MiB
//   all-reduce, spinning  2.0  2.3   5.9  6.5    11  11     18  18     34  27     65  49
//   reduce-scatter        1.7  1.6   4.9  4.3     9   8     14  12     26  19     48  37
//   all-gather            0.8  0.8   1.9  1.3   3.4 1.9    6.3 3.2     13   7     30  17
//   all-reduce, sleeping   64   93    53   82    54  78     58  75     85  75    119  98
//   reduce-scatter         30   58    29   48    27  50     36  46     56  49     80  79
//   all-gather             29   62    24   50    25  49     28  49     47  54    119  67
//   all-reduce, of four    76  112    88  116   115 133    168 173    229 221    417 307
//   all-gather, of four    40   74    45   77    52  82     66  85     94 100    149 132
std::size_t in_place_from(Operation operation, bool spins) {
  if (!spins) return 512u << 10;
  return operation == Operation::kAllReduce ? 128u << 10 : 16u << 10;
}

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
  std::optional<int> lost_rank() const override { return engine_.lost_rank(group_); }
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
  Status register_segment(const memory::Segment& segment, Deadline deadline) override;
  void unregister_segment(const memory::Segment& segment) override {
    if (segment.valid()) engine_.registered().remove(segment.data());
  }

 private:
  // whole: the buffer that peers read where it lies if it is registered, (count); null: there is
  // none.
  Status begin(Operation operation, std::size_t count, std::size_t counts_hash, DataType type,
               ReduceOp op, int root, const void* whole = nullptr);
  Status finish(Operation operation, DataType type, ReduceOp op, bool small, Deadline deadline,
                std::uint64_t algorithm_bytes);
  Status conclude(Operation operation, Status status, std::uint64_t algorithm_bytes);
  // What observers call the group.
  std::string_view group_name() const {
    return group_.id == 0 ? std::string_view() : std::string_view(group_.name);
  }
  void ends(Operation operation, bool ok);
  void set_shards(std::span<const std::size_t> counts, DataType type);
  void schedule(const Exchange& exchange) {
    (in_place_ ? schedule_in_place : schedule_exchange)(engine_, group_, exchange);
  }
  Status pass_descriptor(const memory::Segment& segment, Deadline deadline);
  Status adopt_segments(const memory::Segment& own, std::span<const std::uint64_t> sizes);
  std::size_t total_bytes() const { return shards_.back().begin + shards_.back().bytes; }
  const Shard& shard_of(int rank) const { return shards_[static_cast<std::size_t>(rank)]; }
  const Shard& own() const { return shard_of(group_.rank); }
  std::uint64_t others() const { return group_.peers.size(); }

  const std::shared_ptr<Shared> shared_;
  Engine& engine_;
  const Group group_;
  std::uint64_t sequence_ = 0;
  bool in_place_ = false;  // the operation that was begun
  std::vector<Shard> shards_;
  Counters counters_{};
};

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
                              DataType type, ReduceOp op, int root, const void* whole) {
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
  const std::size_t bytes = count * size_of(type);
  // All ranks come to the same answer: whether memory is registered, and whether ranks spin, is the
  // same on all of them.
  const CommunicatorOptions& options = shared_->options;
  const std::size_t from =
      options.in_place_bytes.value_or(in_place_from(operation, options.spin > Duration::zero()));
  if (whole != nullptr && bytes >= from && group_.on_one_node)
    header.place = engine_.registered().place_of(whole, bytes);
  in_place_ = header.place != 0;
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
  return conclude(operation, engine_.run(type, op, small, deadline), algorithm_bytes);
}

Status CpuCommunicator::conclude(Operation operation, Status status,
                                 std::uint64_t algorithm_bytes) {
  OperationCounters& counter = counters_[static_cast<std::size_t>(operation)];
  ++counter.calls;
  counter.algorithm_bytes_sent += algorithm_bytes;
  for (Peer* peer : group_.peers) {
    counter.wire_bytes_sent += std::exchange(peer->bytes_sent, 0);
    counter.wire_bytes_received += std::exchange(peer->bytes_received, 0);
    counter.bytes_read_in_place += std::exchange(peer->bytes_read, 0);
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

Status CpuCommunicator::all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                                   Deadline deadline) {
  auto* bytes = static_cast<std::byte*>(data);
  const std::size_t size = count * size_of(type);
  TROUPE_RETURN_IF_ERROR(begin(Operation::kAllReduce, count, 0, type, op, 0, data));
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
      peer->sends.push_back({bytes, size, kAtOnce});
      peer->receives.push_back({nullptr, size, 0});
    }
  } else if (!small) {
    schedule({shards_, bytes, bytes + own().begin, bytes, true});
  }
  return finish(Operation::kAllReduce, type, op, small, deadline, algorithm_bytes);
}

Status CpuCommunicator::reduce_scatter(const void* input, void* output,
                                       std::span<const std::size_t> counts, DataType type,
                                       ReduceOp op, Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("reduce_scatter", counts, world_size()));
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  TROUPE_RETURN_IF_ERROR(
      begin(Operation::kReduceScatter, total, xxh3_64(std::as_bytes(counts)), type, op, 0, input));
  set_shards(counts, type);
  const auto* source = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  if (world_size() == 1 && total != 0) {
    if (out != source) std::memmove(out, source, total_bytes());
  } else {
    schedule({shards_, source, out, nullptr, true});
  }
  return finish(Operation::kReduceScatter, type, op, false, deadline, total_bytes() - own().bytes);
}

Status CpuCommunicator::all_gather(const void* input, void* output,
                                   std::span<const std::size_t> counts, DataType type,
                                   Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("all_gather", counts, world_size()));
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  TROUPE_RETURN_IF_ERROR(begin(Operation::kAllGather, total, xxh3_64(std::as_bytes(counts)), type,
                               ReduceOp::kSum, 0, output));
  set_shards(counts, type);
  auto* gathered = static_cast<std::byte*>(output);
  std::byte* slot = gathered + own().begin;
  if (input != slot && own().bytes != 0) std::memmove(slot, input, own().bytes);
  schedule({shards_, nullptr, slot, gathered, false});
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
  TROUPE_RETURN_IF_ERROR(begin(Operation::kAllToAll, total, xxh3_64(std::as_bytes(counts)), type,
                               ReduceOp::kSum, 0, input));
  set_shards(counts, type);
  const auto* source = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  const Shard mine = own();
  const auto slot = [&](int from) { return static_cast<std::size_t>(from) * mine.bytes; };
  if (mine.bytes != 0) std::memcpy(out + slot(rank()), source + mine.begin, mine.bytes);
  for (Peer* peer : group_.peers) {
    const Shard theirs = shard_of(peer->group_rank);
    std::byte* const target = out + slot(peer->group_rank);
    if (in_place_) {
      read_in_chunks(*peer, target, mine.begin, mine.bytes);
      say_read(*peer);
      continue;
    }
    if (theirs.bytes != 0) send_in_chunks(*peer, source + theirs.begin, theirs.bytes);
    if (mine.bytes != 0) receive_in_chunks(*peer, target, mine.bytes);
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
                 name, join_numbers(ranks), group_.name, why)
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

Status CpuCommunicator::register_segment(const memory::Segment& segment, Deadline deadline) {
  if (group_.id != 0)
    return error(Code::kInvalidArgument,
                 "a segment is registered with the outermost communicator, not with group '{}'",
                 group_.name)
        .with("rank", shared_->options.rank);
  TROUPE_RETURN_IF_ERROR(begin(Operation::kRegister, 0, 0, DataType::kUint8, ReduceOp::kSum, 0));
  std::vector<std::uint64_t> sizes(group_.ranks.size());
  const auto size_at = [&](int rank) {
    return reinterpret_cast<std::byte*>(&sizes[static_cast<std::size_t>(rank)]);
  };
  sizes[static_cast<std::size_t>(rank())] = segment.size();
  for (Peer* peer : group_.peers) {
    send_in_chunks(*peer, size_at(rank()), sizeof sizes[0]);
    receive_in_chunks(*peer, size_at(peer->rank), sizeof sizes[0]);
  }
  // Descriptors go first: whoever knows a segment's size finds its descriptor.
  Status status = pass_descriptor(segment, deadline);
  if (!status.ok()) return conclude(Operation::kRegister, engine_.give_up(std::move(status)), 0);
  status = engine_.run(DataType::kUint8, ReduceOp::kSum, true, deadline);
  if (status.ok()) {
    status = adopt_segments(segment, sizes);
    if (!status.ok()) status = engine_.give_up(std::move(status));
  }
  return conclude(Operation::kRegister, std::move(status), others() * sizeof sizes[0]);
}

Status CpuCommunicator::pass_descriptor(const memory::Segment& segment, Deadline deadline) {
  if (!segment.valid()) return {};
  const std::array<int, 1> fds{segment.fd()};
  const std::byte marker{1};
  for (const Peer* peer : group_.peers) {
    if (!peer->segment.valid()) continue;
    Status sent = memory::send_with_fds(peer->link->socket(), {&marker, 1}, fds, deadline);
    if (!sent.ok())
      return sent.prefixed(fmt::format("passing a segment to rank {}", peer->rank))
          .with("peer", peer->rank);
  }
  return {};
}

Status CpuCommunicator::adopt_segments(const memory::Segment& own,
                                       std::span<const std::uint64_t> sizes) {
  std::vector<memory::Segment> theirs(group_.ranks.size());
  for (const Peer* peer : group_.peers) {
    const auto index = static_cast<std::size_t>(peer->rank);
    if (!peer->segment.valid() || sizes[index] == 0) continue;
    auto adopted = memory::Segment::adopt(peer->link->take_descriptor(), sizes[index],
                                          memory::Access::kReadOnly);
    if (!adopted.ok())
      return adopted.status()
          .prefixed(fmt::format("the segment that rank {} registers", peer->rank))
          .with("peer", peer->rank);
    theirs[index] = std::move(adopted).value();
  }
  engine_.registered().add({own.data(), own.size()}, std::move(theirs));
  return {};
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
  TROUPE_RETURN_IF_ERROR(shared->engine.start());
  std::vector<int> ranks(static_cast<std::size_t>(options.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  Group all = shared->engine.add_group(options.name, std::move(ranks));
  return std::unique_ptr<Communicator>(
      std::make_unique<CpuCommunicator>(std::move(shared), std::move(all)));
}

}  // namespace troupe::collective
