#include "tools/commands/host_addresses.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>

#include "runtime/base/suggest.h"
#include "runtime/net/interfaces.h"
#include "scheduler/client/cluster_record.h"
#include "train/trainer/trainer_messages.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {
namespace {

std::string numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  const bool ok = ::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
  return ok ? text : std::string();
}

// The address from which the kernel would send to a host; empty where there is no way.
std::string source_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &list) != 0) return {};
  std::string found;
  for (const addrinfo* entry = list; entry != nullptr && found.empty(); entry = entry->ai_next) {
    // Nothing is sent: a datagram socket that is connected has chosen its route.
    const UniqueFd socket(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    auto* address = reinterpret_cast<sockaddr*>(&own);
    if (socket.valid() && ::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), address, &size) == 0) {
      found = numeric(address, size);
    }
  }
  ::freeaddrinfo(list);
  return found;
}

// Empty where the slots are the first ones, which need no choosing.
std::string chosen_devices(const std::vector<int>& slots) {
  bool first_ones = true;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    first_ones = first_ones && slots[i] == static_cast<int>(i);
  }
  return first_ones ? std::string() : join_numbers(slots, ",");
}

}  // namespace

std::vector<std::string> addresses_of(const std::string& host) {
  std::vector<std::string> found{host};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    auto text = numeric(entry->ai_addr, entry->ai_addrlen);
    if (!text.empty()) found.push_back(std::move(text));
  }
  ::freeaddrinfo(list);
  return found;
}

Result<bool> is_this_machine(CommandContext& context, const std::string& host) {
  if (host == scheduler::host_name()) return true;
  net::SystemNetwork network(context.files);
  const auto state = TROUPE_TRY(network.read());
  for (const std::string& address : addresses_of(host)) {
    const bool ours =
        std::any_of(state.addresses.begin(), state.addresses.end(),
                    [&](const net::InterfaceAddress& own) { return own.address == address; });
    if (ours) return true;
  }
  return false;
}

Result<std::string> own_address_of(CommandContext& context, const std::string& host) {
  net::SystemNetwork network(context.files);
  const auto state = TROUPE_TRY(network.read());
  for (const std::string& address : addresses_of(host)) {
    for (const auto& own : state.addresses) {
      const bool loopback = address.starts_with("127.") || address == "::1";
      const bool meant = !loopback || address == host || host == "localhost";
      if (own.address == address && meant) return address;
    }
  }
  return std::string();
}

Result<std::optional<std::size_t>> own_host(CommandContext& context,
                                            const std::vector<RunHost>& hosts) {
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (TROUPE_TRY(is_this_machine(context, hosts[i].name))) return std::optional(i);
  }
  return std::optional<std::size_t>();
}

Result<std::string> address_towards(CommandContext& context, const std::string& wanted,
                                    const std::vector<RunHost>& hosts,
                                    std::optional<std::size_t> own) {
  net::AddressOverride choice;
  if (!wanted.empty()) {
    choice.address = addresses_of(wanted).back();
  } else {
    const std::size_t other = own == std::size_t{0} ? 1 : 0;
    const std::string source = source_towards(hosts[other].name);
    if (!source.empty()) return source;
  }
  net::SystemNetwork network(context.files);
  return TROUPE_TRY(net::choose_address(TROUPE_TRY(network.read()), choice)).address;
}

Result<std::unique_ptr<RemoteHosts>> start_other_hosts(
    CommandContext& context, const std::vector<RunHost>& hosts, std::optional<std::size_t> own,
    std::vector<std::vector<std::string>> labels, const std::vector<std::string>& ssh_arguments,
    const net::Address& head, const net::Token& token, Duration stop_grace) {
  RemoteHostsOptions options{.hosts = {}, .head = head, .token = token};
  options.ssh = ssh_program(context.environment);
  options.ssh.insert(options.ssh.end(), ssh_arguments.begin(), ssh_arguments.end());
  const auto grace_s = std::chrono::duration_cast<std::chrono::seconds>(stop_grace).count();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (own == i) continue;
    labels[i].push_back(fmt::format("{}={}", train::kNodeRankLabel, i));
    options.hosts.push_back({.name = hosts[i].name,
                             .worker_arguments = {"--labels", join_words(labels[i], ","), "--grace",
                                                  std::to_string(grace_s)},
                             .visible_devices = chosen_devices(hosts[i].slots)});
  }
  return RemoteHosts::start(std::move(options));
}

}  // namespace troupe::tools
