#include "train/cuda/communicator/device_group.h"

#include <cstring>
#include <numeric>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"

namespace troupe::train {

using collective::DataType;
using collective::Operation;
using collective::ReduceOp;

namespace {

// What ranks compare before an operation.
struct CallHeader {
  std::uint64_t sequence;
  std::uint64_t count;
  std::uint64_t counts_hash;
  std::uint8_t operation;
  std::uint8_t type;
  std::uint8_t op;
  std::uint8_t padding;
  std::int32_t root;
  bool operator==(const CallHeader&) const = default;
};
static_assert(sizeof(CallHeader) == 32);

std::string describe_call(const CallHeader& header) {
  return fmt::format("{} {} of {} {} (shards {:08x}, reduction {}, root {})",
                     collective::operation_name(static_cast<Operation>(header.operation)),
                     header.sequence, header.count,
                     collective::data_type_name(static_cast<DataType>(header.type)),
                     header.counts_hash & 0xffffffff, header.op, header.root);
}

}  // namespace

Status compare_calls(collective::Communicator& host, const DeviceCall& call,
                     std::string_view group) {
  CallHeader mine{};
  mine.sequence = call.sequence;
  mine.count = call.count;
  mine.counts_hash = call.counts.empty() ? 0 : xxh3_64(std::as_bytes(call.counts));
  mine.operation = static_cast<std::uint8_t>(call.operation);
  mine.type = static_cast<std::uint8_t>(call.type);
  mine.op = static_cast<std::uint8_t>(call.op);
  mine.root = call.root;
  std::vector<CallHeader> all(static_cast<std::size_t>(host.world_size()));
  const std::vector<std::size_t> counts(all.size(), sizeof mine);
  TROUPE_RETURN_IF_ERROR(
      host.all_gather(&mine, all.data(), counts, DataType::kUint8, call.deadline));
  // Everybody finds the same pair.
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    return error(Code::kProtocol,
                 "ranks of group '{}' do not mean the same: rank 0 is at {}, rank {} at {}", group,
                 describe_call(all[0]), r, describe_call(all[r]));
  }
  return {};
}

Status DeviceGroup::check_shards(std::string_view operation,
                                 std::span<const std::size_t> counts) const {
  if (counts.size() == static_cast<std::size_t>(world_size())) return {};
  return error(Code::kInvalidArgument, "{}: {} counts for {} ranks", operation, counts.size(),
               world_size());
}

Status DeviceGroup::check_root(std::string_view operation, int root) const {
  if (root >= 0 && root < world_size()) return {};
  return error(Code::kInvalidArgument, "{}: no rank {} in a world of {}", operation, root,
               world_size());
}

std::uint64_t DeviceGroup::algorithm_bytes(const DeviceCall& call) const {
  const std::uint64_t bytes = call.count * call.element_bytes();
  const auto others = static_cast<std::uint64_t>(world_size() - 1);
  const std::uint64_t own =
      call.counts.empty()
          ? collective::even_shard_count(call.count, world_size(), rank()) * call.element_bytes()
          : call.counts_of(rank()) * call.element_bytes();
  switch (call.operation) {
    case Operation::kAllReduce:
      return bytes - own + others * own;
    case Operation::kReduceScatter:
    case Operation::kAllToAll:
      return bytes - own;
    case Operation::kAllGather:
      return others * own;
    case Operation::kBroadcast:
      return rank() == call.root ? others * bytes : 0;
    case Operation::kGather:
      return rank() == call.root ? 0 : own;
    default:
      return 0;
  }
}

void DeviceGroup::report(std::uint64_t completed, bool failed) {
  auto& unreported = shared_->unreported;
  while (!unreported.empty() && (failed || unreported.front().number <= completed)) {
    const auto done = std::move(unreported.front());
    unreported.pop_front();
    collective::OperationObserver* observer = shared_->observer;
    if (!observer) continue;
    const bool ok = done.number <= completed;
    if (ok && done.bytes != 0) observer->moved(done.bytes);
    observer->ends(done.operation, done.group, done.sequence, ok);
  }
}

Status DeviceGroup::run(DeviceCall call) {
  call.sequence = sequence_ + 1;
  std::size_t at = 0;
  for (const std::size_t count : call.counts) {
    call.begins.push_back(at);
    at += count;
  }
  const std::string observed = outermost_ ? std::string() : name_;
  // It may throw: nothing is begun yet.
  if (shared_->observer)
    shared_->observer->begins(call.operation, observed, call.sequence,
                              call.count * call.element_bytes());
  TROUPE_CHECK(!shared_->busy.exchange(true),
               "two threads in communicator '{}' or its subgroups at once", name_);
  ++sequence_;
  Outcome outcome = carry_out(call);
  outcome.status.with("operation", collective::operation_name(call.operation))
      .with("group", name_)
      .with("sequence", call.sequence)
      .with("rank", shared_->rank)
      .with("generation", generation());
  collective::OperationCounters& counter = counters_[static_cast<std::size_t>(call.operation)];
  ++counter.calls;
  const std::uint64_t bytes = algorithm_bytes(call);
  counter.algorithm_bytes_sent += bytes;
  counter.wire_bytes_sent += outcome.wire_bytes_sent;
  counter.wire_bytes_received += outcome.wire_bytes_received;
  shared_->unreported.push_back({outcome.number, call.operation, observed, call.sequence, bytes});
  if (!outcome.status.ok()) {
    report(0, true);
  } else if (outcome.number == 0) {
    report(UINT64_MAX, false);
  }
  shared_->busy.store(false);
  return outcome.status;
}

Status DeviceGroup::all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                               Deadline deadline) {
  auto* bytes = static_cast<std::byte*>(data);
  return run({.operation = Operation::kAllReduce,
              .input = bytes,
              .output = bytes,
              .count = count,
              .type = type,
              .op = op,
              .deadline = deadline});
}

namespace {
std::size_t sum_of(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}
}  // namespace

Status DeviceGroup::reduce_scatter(const void* input, void* output,
                                   std::span<const std::size_t> counts, DataType type, ReduceOp op,
                                   Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("reduce_scatter", counts));
  return run({.operation = Operation::kReduceScatter,
              .input = static_cast<const std::byte*>(input),
              .output = static_cast<std::byte*>(output),
              .count = sum_of(counts),
              .counts = counts,
              .type = type,
              .op = op,
              .deadline = deadline});
}

Status DeviceGroup::all_gather(const void* input, void* output, std::span<const std::size_t> counts,
                               DataType type, Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("all_gather", counts));
  return run({.operation = Operation::kAllGather,
              .input = static_cast<const std::byte*>(input),
              .output = static_cast<std::byte*>(output),
              .count = sum_of(counts),
              .counts = counts,
              .type = type,
              .deadline = deadline});
}

Status DeviceGroup::broadcast(void* data, std::size_t count, DataType type, int root,
                              Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_root("broadcast", root));
  auto* bytes = static_cast<std::byte*>(data);
  return run({.operation = Operation::kBroadcast,
              .input = bytes,
              .output = bytes,
              .count = count,
              .type = type,
              .root = root,
              .deadline = deadline});
}

Status DeviceGroup::all_to_all(const void* input, void* output, std::span<const std::size_t> counts,
                               DataType type, Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("all_to_all", counts));
  return run({.operation = Operation::kAllToAll,
              .input = static_cast<const std::byte*>(input),
              .output = static_cast<std::byte*>(output),
              .count = sum_of(counts),
              .counts = counts,
              .type = type,
              .deadline = deadline});
}

Status DeviceGroup::gather(const void* input, void* output, std::span<const std::size_t> counts,
                           DataType type, int root, Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(check_shards("gather", counts));
  TROUPE_RETURN_IF_ERROR(check_root("gather", root));
  return run({.operation = Operation::kGather,
              .input = static_cast<const std::byte*>(input),
              .output = static_cast<std::byte*>(output),
              .count = sum_of(counts),
              .counts = counts,
              .type = type,
              .root = root,
              .deadline = deadline});
}

Status DeviceGroup::barrier(Deadline deadline) {
  return run({.operation = Operation::kBarrier, .deadline = deadline});
}

Status DeviceGroup::register_segment(const memory::Segment&, Deadline) {
  return error(Code::kUnsupported,
               "the buffers of communicator '{}' lie in the device's memory: register segments of "
               "the host with its host()",
               name_)
      .with("rank", shared_->rank);
}

Result<std::unique_ptr<collective::Communicator>> DeviceGroup::subgroup(std::span<const int> ranks,
                                                                        std::string_view name) {
  return std::unique_ptr<collective::Communicator>(TROUPE_TRY(device_subgroup(ranks, name)));
}

}  // namespace troupe::train
