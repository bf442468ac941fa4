#include "tools/commands/node_flags.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <filesystem>

#include <memory>

#include "scheduler/client/cluster_record.h"
#include "scheduler/node/resources_detect.h"
#include "scheduler/policy/resources.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {
namespace {

// The source address the kernel would give a datagram to `head`; connecting a datagram socket looks
// the route up and sends nothing.
std::optional<std::string> source_address(const net::Address& head) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(head.host.c_str(), std::to_string(head.port).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* a = found; a; a = a->ai_next) {
    const UniqueFd socket(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket.get() < 0 || ::connect(socket.get(), a->ai_addr, a->ai_addrlen) != 0) continue;
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    char host[NI_MAXHOST];
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&name), length, host, sizeof host, nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      return host;
    }
  }
  return std::nullopt;
}

constexpr std::int64_t kObjectMemoryMin = 1 << 20;

Status override_amount(wire::Resources& resources, std::string_view name,
                       const std::optional<std::string>& text) {
  if (!text) return {};
  const auto amount = TROUPE_TRY(scheduler::parse_amount(name, *text));
  if (amount == 0) {
    resources.erase(std::string(name));
  } else {
    resources[std::string(name)] = amount;
  }
  return {};
}

}  // namespace

void declare_node_flags(Command& command, NodeFlags& flags) {
  command
      .option("--num-cpus", flags.num_cpus, "N",
              "CPUs to offer (default: all that this process may use)")
      .option(
          "--num-gpus", flags.num_gpus, "N",
          "GPUs to offer: the first N of this machine; beyond those that it has, N is an amount "
          "without devices (default: all that it has)")
      .option("--memory", flags.memory, "BYTES",
              "memory to offer, also as 8Gi or 500M (default: this machine's)")
      .option("--resources", flags.resources, "K=V,...",
              "amounts of resources with names of your own: ssd=2,licence=1 (default: none)")
      .option("--labels", flags.labels, "K=V,...",
              "labels, by which actors choose the node: rack=7,zone=b (default: none)")
      .option("--object-store-memory", flags.object_memory, "BYTES",
              "shared memory for objects, at most, also as 8Gi or 500M (default: 30 % of what is "
              "available when the first object is put)")
      .option("--object-spill-dir", flags.object_spill_dir, "DIR",
              "where objects go when that is full (default: a folder in TMPDIR)")
      .option("--log-dir", flags.log_dir, "DIR",
              "write the actors' output to files there (default: the last lines stay in memory)")
      .option("--package-dir", flags.package_dir, "DIR",
              "where to keep what jobs are shipped with (default: ~/.troupe/packages)")
      .option("--package-bytes", flags.package_bytes, "BYTES",
              "how much of that to keep; what no job uses makes room (default 10Gi)")
      .option(
          "--node-id", flags.node_id, "ID",
          "the node's id (default: a new one); given the id of a daemon that was killed less than "
          "3 s ago, this one takes its actors over");
}

Result<wire::Resources> node_resources(CommandContext& context, const NodeFlags& flags,
                                       const scheduler::NodeGpus& gpus) {
  auto resources =
      TROUPE_TRY(scheduler::detect_resources(context.files, scheduler::SystemMachine(), gpus));
  TROUPE_RETURN_IF_ERROR(
      override_amount(resources, scheduler::kCpu, flags.num_cpus).prefixed("--num-cpus"));
  TROUPE_RETURN_IF_ERROR(
      override_amount(resources, scheduler::kGpu, flags.num_gpus).prefixed("--num-gpus"));
  TROUPE_RETURN_IF_ERROR(
      override_amount(resources, scheduler::kMemory, flags.memory).prefixed("--memory"));
  for (const auto& text : flags.resources) {
    const auto parsed = scheduler::parse_resource(text);
    if (!parsed.ok()) return parsed.status().prefixed("--resources");
    resources[parsed->first] = parsed->second;
  }
  return resources;
}

Result<std::map<std::string, std::string>> node_labels(const NodeFlags& flags) {
  std::map<std::string, std::string> labels;
  for (const auto& text : flags.labels) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return error(Code::kInvalidArgument, "--labels: '{}' is not KEY=VALUE, such as rack=7", text);
    }
    const auto [entry, added] = labels.emplace(text.substr(0, equals), text.substr(equals + 1));
    if (!added) return error(Code::kInvalidArgument, "--labels: '{}' stands twice", entry->first);
  }
  return labels;
}

Result<scheduler::NodeOptions> node_options(CommandContext& context, const NodeFlags& flags) {
  scheduler::NodeOptions options;
  options.node_id = NodeId::make(context.random);
  if (flags.node_id) {
    auto id = NodeId::parse(*flags.node_id);
    if (!id.ok()) return id.status().prefixed("--node-id");
    options.node_id = *id;
  }
  options.parent = scheduler::Parent::kKeeper;
  options.name = scheduler::host_name();
  auto gpus =
      scheduler::detect_gpus(context.files, context.environment, scheduler::SystemMachine());
  for (const std::string& problem : gpus.problems) context.err << "notice: " << problem << "\n";
  options.gpus = std::move(gpus.gpus);
  options.nvml = std::move(gpus.nvml);
  options.resources = TROUPE_TRY(node_resources(context, flags, options.gpus));
  options.labels = TROUPE_TRY(node_labels(flags));
  if (flags.object_memory) {
    auto bytes = scheduler::parse_amount(scheduler::kMemory, *flags.object_memory);
    if (!bytes.ok()) return bytes.status().prefixed("--object-store-memory");
    if (*bytes / wire::kResourceUnit < kObjectMemoryMin) {
      return error(Code::kInvalidArgument, "--object-store-memory: {} is less than 1 MiB",
                   *flags.object_memory);
    }
    options.object_memory_bytes = static_cast<std::uint64_t>(*bytes / wire::kResourceUnit);
  }
  if (flags.object_spill_dir) {
    std::error_code ec;
    options.object_spill_dir = std::filesystem::absolute(*flags.object_spill_dir, ec).string();
    if (ec) return error(Code::kInvalidArgument, "--object-spill-dir: {}", ec.message());
  }
  if (flags.package_dir) {
    std::error_code ec;
    options.package_directory = std::filesystem::absolute(*flags.package_dir, ec).string();
    if (ec) return error(Code::kInvalidArgument, "--package-dir: {}", ec.message());
  } else if (const auto home = scheduler::troupe_directory(context.environment); home.ok()) {
    options.package_directory = join_path(*home, "packages");
  }
  if (flags.package_bytes) {
    const auto amount = scheduler::parse_amount(scheduler::kMemory, *flags.package_bytes);
    if (!amount.ok()) return amount.status().prefixed("--package-bytes");
    options.package_bytes_max = static_cast<std::uint64_t>(*amount / wire::kResourceUnit);
  }
  if (flags.log_dir) {
    TROUPE_RETURN_IF_ERROR(context.files.create_directories(*flags.log_dir));
    options.log_dir = *flags.log_dir;
  }
  return options;
}

Result<net::AddressChoice> address_towards(CommandContext& context, const net::Address& head,
                                           const std::string& interface) {
  net::SystemNetwork network(context.files);
  const auto state = TROUPE_TRY(network.read());
  if (interface.empty()) {
    if (const auto source = source_address(head)) {
      auto choice = net::choose_address(state, {.address = *source});
      if (choice.ok()) {
        choice->why =
            fmt::format("{} of {}, which leads to the head", choice->address, choice->interface);
        return choice;
      }
    }
  }
  return net::choose_address(state, {.interface = interface});
}

int whole_cpus(const wire::Resources& resources) {
  return static_cast<int>(std::max<std::int64_t>(
      1, scheduler::amount_of(resources, scheduler::kCpu) / wire::kResourceUnit));
}

int whole_gpus(const wire::Resources& resources) {
  return static_cast<int>(scheduler::amount_of(resources, scheduler::kGpu) / wire::kResourceUnit);
}

}  // namespace troupe::tools
