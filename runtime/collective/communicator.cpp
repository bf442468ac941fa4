#include "runtime/collective/communicator.h"

#include <algorithm>
#include <numeric>

namespace troupe::collective {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::kUint8:
      return 1;
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

std::string_view data_type_name(DataType type) {
  constexpr std::string_view kNames[] = {"uint8",   "int32",   "int64",
                                         "float32", "float64", "bfloat16"};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::string_view operation_name(Operation operation) {
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                         "barrier",    "all_to_all",     "gather",     "register"};
  static_assert(std::size(kNames) == kOperationCount);
  const auto index = static_cast<std::size_t>(operation);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

Status Communicator::check_counts(std::string_view operation, std::span<const std::size_t> counts,
                                  std::size_t whole, std::size_t shard) const {
  if (counts.size() != static_cast<std::size_t>(world_size()))
    return error(Code::kInvalidArgument, "{}: {} counts for {} ranks", operation, counts.size(),
                 world_size());
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  if (total != whole || counts[static_cast<std::size_t>(rank())] != shard)
    return error(Code::kInvalidArgument,
                 "{}: the counts say {} elements with {} on rank {}, the buffers have {} and {}",
                 operation, total, counts[static_cast<std::size_t>(rank())], rank(), whole, shard);
  return {};
}

Status Communicator::check_all_to_all(std::span<const std::size_t> counts, std::size_t input,
                                      std::size_t output) const {
  const auto ranks = static_cast<std::size_t>(world_size());
  if (output % ranks != 0)
    return error(Code::kInvalidArgument,
                 "all_to_all: an output of {} elements does not divide over {} ranks", output,
                 ranks);
  return check_counts("all_to_all", counts, input, output / ranks);
}

Status Communicator::check_gather(std::span<const std::size_t> counts, std::size_t input,
                                  std::size_t output, int root) const {
  // Only the root has a place for all.
  if (rank() != root) output = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  return check_counts("gather", counts, output, input);
}

std::size_t even_shard_count(std::size_t count, int world_size, int rank) {
  constexpr std::size_t kBlock = 64;
  const std::size_t blocks = (count + kBlock - 1) / kBlock;
  const auto ranks = static_cast<std::size_t>(world_size), r = static_cast<std::size_t>(rank);
  const auto begin = std::min(count, blocks * r / ranks * kBlock);
  const auto end = std::min(count, blocks * (r + 1) / ranks * kBlock);
  return end - begin;
}

}  // namespace troupe::collective
