#pragma once
// Where an engine's buffers lie and who works on them.
//
// The engine decides what is gathered, reduced and added, and when; a device does it. What a device
// is like is asked once, when an engine is made: afterwards everything goes through the queue, the
// communicators and the operations that it gave.

#include <memory>
#include <span>
#include <string_view>

#include "runtime/collective/communicator.h"
#include "train/sharding/communication_queue.h"
#include "train/sharding/shard_operations.h"
#include "train/sharding/working_memory.h"

namespace troupe::train {

// A group of ranks. Both communicators are over the same ranks in the same order and share one
// fate; on the CPU they are one object.
struct EngineGroup {
  collective::Communicator* device = nullptr;  // for buffers of the engine's device
  collective::Communicator* host = nullptr;    // for memory of the host: doubles, words
  // Of the one over the device, which keeps the other; null: outlives the group anyway.
  std::unique_ptr<collective::Communicator> owned;

  explicit operator bool() const { return device != nullptr; }
};

// Of one rank in one generation, as its communicators are. It outlives the engines that are made
// with it, one at a time; what it gives uses it. One thread, the engine's.
class EngineDevice {
 public:
  virtual ~EngineDevice() = default;

  // All ranks.
  virtual EngineGroup world() = 0;
  // Collective::Communicator::subgroup, of both kinds.
  virtual Result<EngineGroup> subgroup(std::span<const int> ranks, std::string_view name) = 0;

  // Memory for buffers of these sizes. shared: there are other ranks. kOutOfMemory.
  virtual Result<WorkingMemory> make_memory(const WorkingBytes& bytes, bool shared) = 0;
  // overlaps: whether collectives are to run beside arithmetic. A device that orders them itself
  // may do so anyway.
  virtual std::unique_ptr<CommunicationQueue> make_queue(bool overlaps) = 0;
  // For pieces of this queue, which outlives them.
  virtual std::unique_ptr<ShardOperations> make_operations(const CommunicationQueue& queue) = 0;

  // Until everything that was enqueued is done, arithmetic and communication. Afterwards the host
  // may read what the queue's drain() has vouched for. Errors: the device's, kDeadlineExceeded.
  virtual Status synchronize() = 0;
};

}  // namespace troupe::train
