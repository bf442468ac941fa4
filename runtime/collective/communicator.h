#pragma once
// Collectives among the ranks of a group: the interface, whatever carries the bytes.
//
// Sums are taken by one fixed binary tree over the ranks (reduce_tree.h), so that every rank gets
// the same bits, over any transport, with any chunking, and all_reduce equals reduce_scatter
// followed by all_gather bit for bit. bfloat16 is summed in fp32 by that tree and rounded once.
//
// Rules: all ranks call the same operations in the same order with the same sizes; a mismatch is
// kProtocol naming both sides. One operation at a time per communicator (two threads in it are a
// bug). Any failure ends the communicator: every later call returns kAborted with the first reason,
// since the ranks no longer agree where they are; form a new one with the next generation.
// Errors carry context: operation, group, sequence, rank, generation, and `peer` (who is missing or
// was lost).
//
// A mesh of named axes is made of subgroups: communicators over some of the ranks that share their
// parent's links, threads and fate. The rules above then hold for a communicator and all its
// subgroups together: one operation at a time among them; there is one order of all operations that
// every rank follows, leaving out those of groups it is not in; a failure or abort of any ends them
// all. Groups that have no rank in common do not wait for each other. Errors number ranks as the
// outermost communicator does.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/collective/operation_observer.h"
#include "runtime/memory/segment.h"

namespace troupe::collective {

enum class DataType : std::uint8_t {
  kUint8 = 0,
  kInt32 = 1,
  kInt64 = 2,
  kFloat32 = 3,
  kFloat64 = 4,
  kBfloat16 = 5,
};
std::size_t size_of(DataType type);
std::string_view data_type_name(DataType type);

// A bfloat16 as it lies in memory: the upper half of a float.
struct Bfloat16 {
  std::uint16_t bits;
};

// Max and min of floating-point numbers give NaN where any input is one: nothing is hidden.
enum class ReduceOp : std::uint8_t { kSum = 0, kMax = 1, kMin = 2 };

enum class Operation : std::uint8_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kAllToAll = 5,
  kGather = 6,
  kRegister = 7,
};
inline constexpr std::size_t kOperationCount = 8;
std::string_view operation_name(Operation operation);

template <typename T>
constexpr DataType data_type_of() {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, float>)
    return DataType::kFloat32;
  else if constexpr (std::is_same_v<U, double>)
    return DataType::kFloat64;
  else if constexpr (std::is_same_v<U, std::int32_t>)
    return DataType::kInt32;
  else if constexpr (std::is_same_v<U, std::int64_t>)
    return DataType::kInt64;
  else if constexpr (std::is_same_v<U, Bfloat16>)
    return DataType::kBfloat16;
  else {
    static_assert(sizeof(U) == 1 && std::is_trivially_copyable_v<U>,
                  "collectives carry float, double, int32, int64, Bfloat16 and bytes");
    return DataType::kUint8;
  }
}

// What one kind of operation has moved so far, from this rank's side.
struct OperationCounters {
  std::uint64_t calls = 0;
  // By the formula, N bytes in all and this rank's shard s: all-reduce sends (N − s) + (n − 1)·s,
  // reduce-scatter and all-to-all N − s, all-gather (n − 1)·s, broadcast N from the root to each,
  // gather s from each but the root.
  std::uint64_t algorithm_bytes_sent = 0;
  // What went into links, headers and padding included.
  std::uint64_t wire_bytes_sent = 0;
  std::uint64_t wire_bytes_received = 0;
  // What this rank read of others' registered memory where it lies.
  std::uint64_t bytes_read_in_place = 0;
};
using Counters = std::array<OperationCounters, kOperationCount>;  // by Operation

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // The number of this forming of the group; messages of another one are never accepted.
  virtual std::uint64_t generation() const = 0;
  // Wait limit of the calls that give no deadline.
  virtual Duration default_timeout() const = 0;

  // The untyped operations. Counts are elements of `type`; `counts` has one entry per rank and is
  // the same on all ranks; shard r begins at the sum of the counts before it.

  // data: (count) in place.
  virtual Status all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                            Deadline deadline) = 0;
  // input: (sum of counts); output: (counts[rank]), which may be the shard inside input.
  virtual Status reduce_scatter(const void* input, void* output,
                                std::span<const std::size_t> counts, DataType type, ReduceOp op,
                                Deadline deadline) = 0;
  // input: (counts[rank]), which may be the shard inside output; output: (sum of counts).
  virtual Status all_gather(const void* input, void* output, std::span<const std::size_t> counts,
                            DataType type, Deadline deadline) = 0;
  // data: (count), from the root to all.
  virtual Status broadcast(void* data, std::size_t count, DataType type, int root,
                           Deadline deadline) = 0;
  // input: (sum of counts), shard r goes to rank r; output: (world_size, counts[rank]), what each
  // rank sent to this one, in order of rank. They must not overlap.
  virtual Status all_to_all(const void* input, void* output, std::span<const std::size_t> counts,
                            DataType type, Deadline deadline) = 0;
  // input: (counts[rank]), at the root possibly the shard inside output; output: (sum of counts) at
  // the root, unused elsewhere.
  virtual Status gather(const void* input, void* output, std::span<const std::size_t> counts,
                        DataType type, int root, Deadline deadline) = 0;
  // Returns once every rank has entered.
  virtual Status barrier(Deadline deadline) = 0;

  // Lets the other ranks of this node read `segment` where it lies: from now on all_reduce,
  // reduce_scatter, all_gather and all_to_all among ranks of one node move nothing through links
  // where the whole buffer (`data`, the input, the output of all_gather, the input) lies in
  // registered memory. It must do so on all ranks of an operation or on none (kProtocol, naming
  // both). Called on the outermost communicator, by all its ranks like an operation, each with a
  // segment of its own, or with an invalid one where it has none; sizes may differ. Peers map it
  // read-only until it is unregistered there or their communicator ends. A rank whose
  // operation fails may use its memory at once: who still reads there fails, too.
  // Errors: kInvalidArgument (a subgroup); what ends the communicator: kOutOfMemory, kProtocol (a
  // peer's segment is not sealed).
  virtual Status register_segment(const memory::Segment& segment, Deadline deadline) = 0;

  // Ends that, for memory that goes before its communicator does: from now on it is like any other.
  // By all ranks at the same place among their operations; nothing is sent. A segment that is not
  // registered is let be.
  virtual void unregister_segment(const memory::Segment& segment) = 0;

  // A communicator over some of the ranks: ranks[i], as this communicator numbers them, is rank i
  // of the subgroup; this rank is among them. Every member makes the same call, between operations;
  // nothing is sent. Reductions take the tree over the subgroup's ranks. It may outlive its parent,
  // and keeps the links open as long as it lives. Counters are its own. `name` is for messages (at
  // most 63 characters). Errors: kInvalidArgument.
  virtual Result<std::unique_ptr<Communicator>> subgroup(std::span<const int> ranks,
                                                         std::string_view name) = 0;

  // Makes the current and every later call fail promptly with kAborted and this reason, and lets
  // the peers notice. From any thread; the first reason stays.
  virtual void abort(Status reason) = 0;
  // A rank of this communicator, as the outermost one numbers it, that has gone (its process ended,
  // its link broke, or it has ended or aborted its communicator), the first that went: as far as is
  // known now. From any thread, during operations, too: for who waits for something else than an
  // operation here.
  virtual std::optional<int> lost_rank() const = 0;
  // Between operations or from the thread that runs them.
  virtual Counters counters() const = 0;
  // Who is told of the operations of this communicator, its subgroups and those it is one of; null:
  // nobody. Between operations. `observer` outlives them.
  virtual void observe(OperationObserver* observer) = 0;

  // The typed forms. Without a deadline: default_timeout() from now.
  using When = std::optional<Deadline>;
  template <typename T>
  Status all_reduce(std::span<T> data, ReduceOp op = ReduceOp::kSum, When when = {}) {
    return all_reduce(data.data(), data.size(), data_type_of<T>(), op, deadline_of(when));
  }
  template <typename T>
  Status reduce_scatter(std::span<const T> input, std::span<T> output,
                        std::span<const std::size_t> counts, ReduceOp op = ReduceOp::kSum,
                        When when = {}) {
    TROUPE_RETURN_IF_ERROR(check_counts("reduce_scatter", counts, input.size(), output.size()));
    return reduce_scatter(input.data(), output.data(), counts, data_type_of<T>(), op,
                          deadline_of(when));
  }
  template <typename T>
  Status all_gather(std::span<const T> input, std::span<T> output,
                    std::span<const std::size_t> counts, When when = {}) {
    TROUPE_RETURN_IF_ERROR(check_counts("all_gather", counts, output.size(), input.size()));
    return all_gather(input.data(), output.data(), counts, data_type_of<T>(), deadline_of(when));
  }
  template <typename T>
  Status broadcast(std::span<T> data, int root, When when = {}) {
    return broadcast(data.data(), data.size(), data_type_of<T>(), root, deadline_of(when));
  }
  template <typename T>
  Status all_to_all(std::span<const T> input, std::span<T> output,
                    std::span<const std::size_t> counts, When when = {}) {
    TROUPE_RETURN_IF_ERROR(check_all_to_all(counts, input.size(), output.size()));
    return all_to_all(input.data(), output.data(), counts, data_type_of<T>(), deadline_of(when));
  }
  template <typename T>
  Status gather(std::span<const T> input, std::span<T> output, std::span<const std::size_t> counts,
                int root, When when = {}) {
    TROUPE_RETURN_IF_ERROR(check_gather(counts, input.size(), output.size(), root));
    return gather(input.data(), output.data(), counts, data_type_of<T>(), root, deadline_of(when));
  }
  Status barrier() { return barrier(deadline_of({})); }
  Status register_segment(const memory::Segment& segment) {
    return register_segment(segment, deadline_of({}));
  }

 protected:
  Deadline deadline_of(const When& when) const {
    return when ? *when : Deadline::after(default_timeout());
  }
  // kInvalidArgument where spans and counts disagree.
  Status check_counts(std::string_view operation, std::span<const std::size_t> counts,
                      std::size_t whole, std::size_t shard) const;
  Status check_all_to_all(std::span<const std::size_t> counts, std::size_t input,
                          std::size_t output) const;
  Status check_gather(std::span<const std::size_t> counts, std::size_t input, std::size_t output,
                      int root) const;
};

// Cuts `count` elements into `world_size` shards of whole 64-element blocks, as equal as they come:
// the shards all_reduce uses.
std::size_t even_shard_count(std::size_t count, int world_size, int rank);

}  // namespace troupe::collective
