#pragma once
// The memory that a pipeline's owner makes and all its stages map: for each channel as many slots
// as items may be in flight. Item n lies in slot n modulo their number, from when it was given
// until the item that comes so much later, which is pushed when this one's result was taken: nobody
// waits for room, and whatever process comes in another's place finds all that was given and not
// yet delivered.
//
// A slot is written by one process, and published after its bytes: one that is killed in mid-write
// has given nothing. Trust is as in call_ring.h: lengths are checked when they are read.
//
// An output that refers to objects is offered first: the owner publishes it once it holds them
// itself, so that they outlive the process that made them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "actors/pipelines/pipeline_plan.h"

namespace troupe::detail {

inline constexpr std::uint64_t kPipelineMagic = 0x3345504950525454;  // "TTRPIPE3"

struct PipelinePage {
  std::uint64_t magic;
  // How long its processes may look again and again before they sleep.
  std::atomic<std::int64_t> spin_ns;
  // Whether the owner waits for results (memory/wait_word.h).
  alignas(128) std::atomic<std::uint32_t> owner_word;
  std::atomic<std::uint64_t> offers;  // how many there were
};
inline constexpr std::size_t kPipelinePageBytes = 4096;
static_assert(sizeof(PipelinePage) <= kPipelinePageBytes);

// A view: the memory outlives it.
class PipelineMemory {
 public:
  // Zeroed at first.
  static std::uint64_t bytes(const PipelinePlan& plan);
  PipelineMemory(std::byte* data, const PipelinePlan& plan);

  struct Item {
    bool failed = false;               // the bytes are a Status
    std::span<const std::byte> bytes;  // shared memory, until the item was delivered
  };
  PipelinePage& page() const { return *reinterpret_cast<PipelinePage*>(data_); }
  bool has(std::uint32_t channel, std::uint64_t number) const {
    return slot(channel, number).published.load(std::memory_order_seq_cst) == number + 1;
  }
  // Whether it was given: it is there, or a later one that needs its slot, since it was delivered.
  bool given(std::uint32_t channel, std::uint64_t number) const {
    return slot(channel, number).published.load(std::memory_order_seq_cst) > number;
  }
  // Whether a process has begun to make it.
  bool begun(std::uint32_t channel, std::uint64_t number) const {
    return slot(channel, number).begun.load(std::memory_order_acquire) == number + 1;
  }
  void begin(std::uint32_t channel, std::uint64_t number) const {
    slot(channel, number).begun.store(number + 1, std::memory_order_release);
  }
  // Whether it is offered, and not published.
  bool offered(std::uint32_t channel, std::uint64_t number) const {
    return slot(channel, number).offered.load(std::memory_order_acquire) == number + 1;
  }
  // Of one that is there, or offered.
  Item read(std::uint32_t channel, std::uint64_t number) const;
  // What one that is offered refers to, as the one who offers it has encoded that.
  std::span<const std::byte> references(std::uint32_t channel, std::uint64_t number) const;
  // `bytes` and `references` together are at most the plan's item_bytes_max. The owner is to be
  // woken.
  void offer(std::uint32_t channel, std::uint64_t number, std::span<const std::byte> bytes,
             std::span<const std::byte> references) const;
  // The owner's: what is offered is published, or is to be made again.
  void accept(std::uint32_t channel, std::uint64_t number) const;
  void reject(std::uint32_t channel, std::uint64_t number) const {
    slot(channel, number).offered.store(0, std::memory_order_release);
  }
  // `bytes` are at most the plan's item_bytes_max.
  void publish(std::uint32_t channel, std::uint64_t number, bool failed,
               std::span<const std::byte> bytes) const;

 private:
  struct Slot {
    std::atomic<std::uint64_t> published;  // the item's number + 1
    std::atomic<std::uint64_t> begun;      // the same
    std::atomic<std::uint64_t> offered;    // the same
    std::uint32_t bytes;
    std::uint32_t failed;
    std::uint32_t reference_bytes;  // behind the others
  };
  static std::uint64_t slot_bytes(const PipelinePlan& plan);
  Slot& slot(std::uint32_t channel, std::uint64_t number) const {
    const std::uint64_t index = channel * in_flight_ + number % in_flight_;
    return *reinterpret_cast<Slot*>(data_ + kPipelinePageBytes + index * slot_bytes_);
  }

  std::byte* data_;
  std::uint64_t in_flight_;
  std::uint64_t item_bytes_max_;
  std::uint64_t slot_bytes_;
};

}  // namespace troupe::detail
