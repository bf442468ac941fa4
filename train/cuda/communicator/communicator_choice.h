#pragma once
// Which way ranks with GPUs talk to each other, and forming the communicator that goes it.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "train/cuda/communicator/nccl_communicator.h"
#include "train/cuda/communicator/nccl_environment.h"

namespace troupe::train {

enum class DeviceTransport {
  kNccl,
  // Each rank a host of its own to NCCL, which then talks through sockets.
  kNcclSeparateHosts,
  kOverHost,
};

// What a rank has.
struct RankDevice {
  std::string host;      // equal where ranks can share a GPU: the node's name
  std::string device;    // the GPU's PCI bus id: several MIG instances of one have the same
  int nccl_version = 0;  // 0: none; below: it is told not to use it
  std::string uuid = {};
  // UUIDs of GPUs of its host that its own cannot read, or that cannot read its own.
  std::vector<std::string> without_peer_access = {};
};

struct TransportChoice {
  DeviceTransport transport = DeviceTransport::kNccl;
  std::string reason;  // a sentence
};

// By rank. Pure; the same answer on all ranks.
//   one rank                                 over the host: it has nobody to talk to
//   some rank has no NCCL, one too old, or   over the host
//   is told not to use it
//   two ranks of a host have the same GPU    NCCL with separate hosts, which refuses duplicates
//   else                                     NCCL
TransportChoice choose_transport(std::span<const RankDevice> ranks);

// The pairs of ranks of a host whose GPUs lack peer access, as one of the two says. Pure; the same
// answer on all ranks.
std::vector<PeerAccess> missing_peer_access(std::span<const RankDevice> ranks);

// Of the environment: "0": collectives go over the host, as if NCCL were not there. One rank's word
// counts for all.
inline constexpr const char* kNcclVariable = "TROUPE_NCCL";

struct DeviceCommunicatorOptions {
  NcclOptions nccl;      // what is common to all is taken from here, too
  int device_index = 0;  // of nccl.context
  std::string node;      // RankDevice::host
  const Environment* environment = nullptr;
  // UUIDs of GPUs of this host without peer access to the device's, as the node says; empty: none,
  // or NCCL finds out by itself. 24 of them are told to the other ranks.
  std::vector<std::string> without_peer_access;
  // How long NCCL may take to form among ranks that share a GPU, where it is no more than the
  // better of two ways.
  Duration shared_form_timeout = std::chrono::seconds(15);
  // Told what was chosen and why, and what was set: log lines.
  std::function<void(const std::string&)> notice = [](const std::string&) {};
  // Replaced by tests, whose ranks share an environment.
  std::function<void(const EnvironmentSetting&)> apply = apply_setting;
};

// Collective over options.nccl.host: all ranks go the same way. NCCL on separate hosts that does
// not come about becomes a communicator over the host; NCCL proper that fails is a failure, since
// somebody who has the hardware should hear of it. Errors: those of make_nccl_communicator and
// make_staged_communicator.
Result<std::unique_ptr<DeviceCommunicator>> make_device_communicator(
    const DeviceCommunicatorOptions& options);

}  // namespace troupe::train
