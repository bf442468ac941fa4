#pragma once
// What the device communicators do alike: arguments, sequence, counters, observers. An
// implementation carries one operation out at a time. Internal.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "train/cuda/communicator/device_communicator.h"

namespace troupe::train {

// One call of an operation, checked. Unused fields are empty.
struct DeviceCall {
  collective::Operation operation{};
  const std::byte* input = nullptr;  // for in-place operations the same as output
  std::byte* output = nullptr;
  std::size_t count = 0;                // elements in all
  std::span<const std::size_t> counts;  // of shards
  std::vector<std::size_t> begins;      // of shards, elements
  collective::DataType type = collective::DataType::kUint8;
  collective::ReduceOp op = collective::ReduceOp::kSum;
  int root = 0;
  std::uint64_t sequence = 0;  // in the group, from 1
  Deadline deadline = Deadline::at({});

  std::size_t element_bytes() const { return collective::size_of(type); }
  std::size_t counts_of(int rank) const { return counts[static_cast<std::size_t>(rank)]; }
  std::size_t begin_of(int rank) const { return begins[static_cast<std::size_t>(rank)]; }
};

// Of a communicator and its subgroups.
struct DeviceGroupShared {
  // An operation that observers believe under way.
  struct Unreported {
    std::uint64_t number = 0;
    collective::Operation operation{};
    std::string group;
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
  };
  int rank = 0;  // of the outermost group: what errors say
  std::atomic<bool> busy{false};
  bool asynchronous = false;
  collective::OperationObserver* observer = nullptr;
  std::deque<Unreported> unreported;
};

class DeviceGroup : public DeviceCommunicator {
 public:
  // The outermost group is one with an empty observed name.
  DeviceGroup(std::shared_ptr<DeviceGroupShared> shared, std::string name, bool outermost)
      : shared_(std::move(shared)), name_(std::move(name)), outermost_(outermost) {}

  int rank() const final { return host_communicator().rank(); }
  int world_size() const final { return host_communicator().world_size(); }
  std::uint64_t generation() const final { return host_communicator().generation(); }

  Status all_reduce(void* data, std::size_t count, collective::DataType type,
                    collective::ReduceOp op, Deadline deadline) final;
  Status reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                        collective::DataType type, collective::ReduceOp op,
                        Deadline deadline) final;
  Status all_gather(const void* input, void* output, std::span<const std::size_t> counts,
                    collective::DataType type, Deadline deadline) final;
  Status broadcast(void* data, std::size_t count, collective::DataType type, int root,
                   Deadline deadline) final;
  Status all_to_all(const void* input, void* output, std::span<const std::size_t> counts,
                    collective::DataType type, Deadline deadline) final;
  Status gather(const void* input, void* output, std::span<const std::size_t> counts,
                collective::DataType type, int root, Deadline deadline) final;
  Status barrier(Deadline deadline) final;
  Status register_segment(const memory::Segment& segment, Deadline deadline) final;
  void unregister_segment(const memory::Segment&) final {}
  Result<std::unique_ptr<collective::Communicator>> subgroup(std::span<const int> ranks,
                                                             std::string_view name) final;
  collective::Counters counters() const final { return counters_; }
  void observe(collective::OperationObserver* observer) final { shared_->observer = observer; }
  void set_asynchronous(bool asynchronous) final { shared_->asynchronous = asynchronous; }
  std::optional<int> lost_rank() const final { return host_communicator().lost_rank(); }

 protected:
  // What became of an operation. number: where it is still under way on the device, its number
  // among those of all groups; 0 where it is done.
  struct Outcome {
    Status status;
    std::uint64_t number = 0;
    std::uint64_t wire_bytes_sent = 0, wire_bytes_received = 0;
  };
  virtual const collective::Communicator& host_communicator() const = 0;
  virtual Outcome carry_out(const DeviceCall& call) = 0;

  const std::string& name() const { return name_; }
  bool outermost() const { return outermost_; }
  bool asynchronous() const { return shared_->asynchronous; }
  const std::shared_ptr<DeviceGroupShared>& shared_group() const { return shared_; }
  // Tells observers of what is done up to `number`, or that the rest failed.
  void report(std::uint64_t completed, bool failed);

 private:
  Status check_shards(std::string_view operation, std::span<const std::size_t> counts) const;
  Status check_root(std::string_view operation, int root) const;
  Status run(DeviceCall call);
  std::uint64_t algorithm_bytes(const DeviceCall& call) const;

  const std::shared_ptr<DeviceGroupShared> shared_;
  const std::string name_;
  const bool outermost_;
  std::uint64_t sequence_ = 0;
  collective::Counters counters_{};
};

// All ranks of `host` must be about to do the same: compared over it. kProtocol naming both where
// they are not.
Status compare_calls(collective::Communicator& host, const DeviceCall& call,
                     std::string_view group);

}  // namespace troupe::train
