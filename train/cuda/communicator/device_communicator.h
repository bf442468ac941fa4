#pragma once
// A communicator whose buffers lie in a device's memory: what NCCL and the host-staged one have in
// common for their users.
//
// It is a collective::Communicator with all of its rules, but that pointers given to operations are
// the device's. Beside every group there is a communicator over the same ranks for the host's
// memory
// (`host()`): counts, doubles, the word on the commit go there. Both share one fate: what ends one
// ends the other.
//
// Bits are those of the CPU's communicator: fp32 and bf16 sums by the fixed tree over the ranks.
// What is neither (other types, max, min) is carried over the host, in pieces, with the CPU's rules
// for NaN: right, but for small data.
//
// Streams. Operations run on a stream of the communicator's own, one for a group and all of its
// subgroups, in the order of the calls. follow(s): what was enqueued on s so far comes before the
// next operation. lead(s): what s is given from now on comes after the operations called so far.
// An operation returns when it is done on the device; in asynchronous mode when it is enqueued: its
// failure is then told by settle() or by a later call, and what it wrote must not be believed
// before settle() was ok. Every operation has its deadline in either mode; what exceeds it ends
// the communicator. Operations carried over the host wait for the device in either mode.
//
// The device's memory is registered with nobody: register_segment is kUnsupported here; segments of
// the host are registered with host().

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/collective/communicator.h"
#include "train/cuda/device/table.h"

namespace troupe::train {

class DeviceCommunicator : public collective::Communicator {
 public:
  // Over the same ranks, in the same order. Used by the thread that runs the operations, between
  // them.
  virtual collective::Communicator& host() = 0;
  virtual TroupeCudaStream* stream() = 0;
  virtual Status follow(TroupeCudaStream* stream) = 0;
  virtual Status lead(TroupeCudaStream* stream) = 0;

  // For this communicator, its subgroups and those it is one of. Turning it off settles nothing.
  virtual void set_asynchronous(bool asynchronous) = 0;
  // Until everything that was called is done on the device.
  virtual Status settle(Deadline deadline) = 0;

  // Like subgroup(), which gives the same thing under its wider name.
  virtual Result<std::unique_ptr<DeviceCommunicator>> device_subgroup(std::span<const int> ranks,
                                                                      std::string_view name) = 0;

  // The good end, by all ranks of the outermost communicator: settles, meets, gives the library's
  // objects of all groups back. Operations are refused afterwards. Without it, destroying the last
  // of them aborts what is left, which peers that are still in an operation suffer from.
  virtual Status end(Deadline deadline) = 0;

  // "NCCL 2.28.9", "over the host": for a notice.
  virtual std::string transport() const = 0;
};

}  // namespace troupe::train
