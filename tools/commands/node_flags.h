#pragma once
// The options that describe a worker node: what it offers, and where it listens.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/net/interfaces.h"
#include "runtime/net/transport.h"
#include "scheduler/node/node_daemon.h"
#include "tools/commands/command.h"

namespace troupe::tools {

struct NodeFlags {
  std::optional<std::string> num_cpus;
  std::optional<std::string> num_gpus;
  std::optional<std::string> memory;
  std::vector<std::string> resources;
  std::vector<std::string> labels;
  std::optional<std::string> object_memory;
  std::optional<std::string> object_spill_dir;
  std::optional<std::string> log_dir;
  // No reasons by themselves to be a node.
  std::optional<std::string> node_id;
  std::optional<std::string> package_dir;
  std::optional<std::string> package_bytes;
  bool any() const {
    return num_cpus || num_gpus || memory || !resources.empty() || !labels.empty() || log_dir ||
           object_memory || object_spill_dir;
  }
};

void declare_node_flags(Command& command, NodeFlags& flags);

// What the machine has besides `gpus`, overridden by what the flags say. kInvalidArgument.
Result<wire::Resources> node_resources(CommandContext& context, const NodeFlags& flags,
                                       const scheduler::NodeGpus& gpus);
// "k=v" each. kInvalidArgument.
Result<std::map<std::string, std::string>> node_labels(const NodeFlags& flags);
// Identity, name, resources, labels and log folder; addresses and token are the caller's.
Result<scheduler::NodeOptions> node_options(CommandContext& context, const NodeFlags& flags);

// The address that this machine talks to `head` from, so that others behind it can answer: the
// kernel's routes decide, without sending anything. As choose_address where there is no route yet,
// or where `interface` is named.
Result<net::AddressChoice> address_towards(CommandContext& context, const net::Address& head,
                                           const std::string& interface);

// Whole CPUs, at least one, and whole GPUs among resources.
int whole_cpus(const wire::Resources& resources);
int whole_gpus(const wire::Resources& resources);

}  // namespace troupe::tools
