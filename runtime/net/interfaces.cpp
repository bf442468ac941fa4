#include "runtime/net/interfaces.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>

namespace troupe::net {
namespace {

constexpr std::uint64_t kRouteTableBytesMax = 16u << 20;
constexpr std::uint32_t kNoRoute = std::numeric_limits<std::uint32_t>::max();

// What an interface is, the best first.
enum class Kind { kReal, kCable, kTunnel, kContainer, kLinkLocal, kLoopback };

bool begins_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

Kind kind_of(const InterfaceAddress& at) {
  if (at.interface == "lo" || at.address.starts_with("127.") || at.address == "::1") {
    return Kind::kLoopback;
  }
  if (at.address.starts_with("169.254.")) return Kind::kLinkLocal;
  if (begins_with_any(at.interface, {"veth"})) return Kind::kCable;
  if (begins_with_any(at.interface, {"tun", "tap", "wg", "ppp", "tailscale", "zt", "utun", "gre",
                                     "sit", "ip6tnl", "nordlynx"})) {
    return Kind::kTunnel;
  }
  if (begins_with_any(at.interface, {"docker", "br-", "virbr", "vnet", "lxc", "lxdbr", "cni",
                                     "flannel", "cali", "cilium", "weave", "podman", "kube",
                                     "vmnet", "vboxnet", "dummy", "nerdctl", "ovs", "antrea"})) {
    return Kind::kContainer;
  }
  return Kind::kReal;
}

// The metric of the best default route through the interface, or kNoRoute.
std::uint32_t metric_of(const NetworkState& state, const std::string& interface) {
  std::uint32_t best = kNoRoute;
  for (const DefaultRoute& route : state.default_routes) {
    if (route.interface == interface) best = std::min(best, route.metric);
  }
  return best;
}

std::string describe(const std::vector<InterfaceAddress>& addresses) {
  std::string text;
  for (const InterfaceAddress& at : addresses) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} ({})", at.address, at.interface);
  }
  return text.empty() ? "none" : text;
}

// The same address however it was written: "0:0::1" and "::1".
std::string canonical(const std::string& address) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  std::array<char, INET6_ADDRSTRLEN> text{};
  for (const int family : {AF_INET, AF_INET6}) {
    if (::inet_pton(family, address.c_str(), bytes.data()) == 1) {
      return ::inet_ntop(family, bytes.data(), text.data(), text.size());
    }
  }
  return address;
}

std::string reason(const NetworkState& state, const AddressChoice& choice, Kind kind) {
  const auto at = fmt::format("{} of {}", choice.address, choice.interface);
  if (kind == Kind::kLoopback) return at + ", since there is no other network interface";
  if (metric_of(state, choice.interface) != kNoRoute) return at + ", which has the default route";
  const auto rivals =
      std::count_if(choice.others.begin(), choice.others.end(),
                    [&](const InterfaceAddress& other) { return kind_of(other) == kind; });
  const bool any_route = !state.default_routes.empty();
  return fmt::format("{}, the {} {}{}", at, rivals == 0 ? "only" : "first",
                     kind == Kind::kReal ? "interface with a global address"
                                         : "interface there is, though a virtual one",
                     any_route ? "" : " (there is no default route)");
}

AddressChoice make_choice(std::vector<InterfaceAddress> sorted, std::size_t taken) {
  AddressChoice choice;
  choice.address = sorted[taken].address;
  choice.interface = sorted[taken].interface;
  choice.loopback = kind_of(sorted[taken]) == Kind::kLoopback;
  sorted.erase(sorted.begin() + static_cast<std::ptrdiff_t>(taken));
  choice.others = std::move(sorted);
  return choice;
}

// The words of a line, as in awk.
std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

std::optional<std::uint32_t> number(std::string_view text, int base) {
  std::uint32_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool usable(std::uint32_t flags) { return (flags & RTF_UP) != 0 && (flags & RTF_REJECT) == 0; }

template <typename OnLine>
void for_each_line(std::string_view text, OnLine&& on_line) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    on_line(words_of(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace

// Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT (proc(5))
std::vector<DefaultRoute> parse_ipv4_routes(std::string_view text) {
  std::vector<DefaultRoute> routes;
  for_each_line(text, [&](const std::vector<std::string_view>& words) {
    if (words.size() < 8 || words[1] != "00000000" || words[7] != "00000000") return;
    const auto flags = number(words[3], 16);
    const auto metric = number(words[6], 10);
    if (!flags || !metric || !usable(*flags)) return;
    routes.push_back({.interface = std::string(words[0]), .metric = *metric, .v6 = false});
  });
  return routes;
}

// destination, its length, source, its length, next hop, metric, references, uses, flags, interface
std::vector<DefaultRoute> parse_ipv6_routes(std::string_view text) {
  std::vector<DefaultRoute> routes;
  for_each_line(text, [&](const std::vector<std::string_view>& words) {
    if (words.size() < 10 || words[1] != "00" || words[9] == "lo") return;
    if (words[0].find_first_not_of('0') != std::string_view::npos) return;
    const auto metric = number(words[5], 16);
    const auto flags = number(words[8], 16);
    if (!flags || !metric || !usable(*flags)) return;
    routes.push_back({.interface = std::string(words[9]), .metric = *metric, .v6 = true});
  });
  return routes;
}

Result<NetworkState> SystemNetwork::read() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return errno_status(errno, "list", "the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  NetworkState state;
  for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || (item->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    const int family = item->ifa_addr->sa_family;
    if (family == AF_INET) {
      ::inet_ntop(family, &reinterpret_cast<const sockaddr_in*>(item->ifa_addr)->sin_addr,
                  text.data(), text.size());
    } else if (family == AF_INET6) {
      const auto& at = reinterpret_cast<const sockaddr_in6*>(item->ifa_addr)->sin6_addr;
      // Of use only together with the name of an interface, which differs per machine.
      if (IN6_IS_ADDR_LINKLOCAL(&at)) continue;
      ::inet_ntop(family, &at, text.data(), text.size());
    } else {
      continue;
    }
    state.addresses.push_back(
        {.interface = item->ifa_name, .address = text.data(), .v6 = family == AF_INET6});
  }
  // Without a table (no IPv6, a restricted /proc) there is no default route that we know of.
  if (const auto table = files_.read("/proc/net/route", kRouteTableBytesMax); table.ok()) {
    state.default_routes = parse_ipv4_routes(*table);
  }
  if (const auto table = files_.read("/proc/net/ipv6_route", kRouteTableBytesMax); table.ok()) {
    const auto more = parse_ipv6_routes(*table);
    state.default_routes.insert(state.default_routes.end(), more.begin(), more.end());
  }
  return state;
}

Result<AddressChoice> choose_address(const NetworkState& state, const AddressOverride& wanted) {
  std::vector<InterfaceAddress> sorted = state.addresses;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const InterfaceAddress& a, const InterfaceAddress& b) {
                     const auto key = [&](const InterfaceAddress& at) {
                       return std::tuple(kind_of(at), metric_of(state, at.interface), at.v6);
                     };
                     return key(a) < key(b);
                   });
  if (sorted.empty()) {
    return error(Code::kUnavailable,
                 "this machine has no network interface that is up, not even "
                 "loopback");
  }
  const std::string address = canonical(wanted.address);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (!wanted.interface.empty() && sorted[i].interface != wanted.interface) continue;
    if (!wanted.address.empty() && canonical(sorted[i].address) != address) continue;
    const Kind kind = kind_of(sorted[i]);
    AddressChoice choice = make_choice(sorted, i);
    choice.why = wanted.interface.empty() && wanted.address.empty()
                     ? reason(state, choice, kind)
                     : fmt::format("{} of {}, as asked for", choice.address, choice.interface);
    return choice;
  }
  if (wanted.address.empty()) {
    return error(Code::kInvalidArgument,
                 "there is no interface '{}' with an address here; there are: {}", wanted.interface,
                 describe(sorted));
  }
  return error(Code::kInvalidArgument, "this machine{} has no address {}; it has: {}",
               wanted.interface.empty() ? "" : "'s interface " + wanted.interface, wanted.address,
               describe(sorted));
}

std::string AddressChoice::notice() const {
  std::string text = "using " + why;
  if (loopback) {
    text += ": other machines cannot join";
  }
  std::vector<InterfaceAddress> offered;
  std::copy_if(others.begin(), others.end(), std::back_inserter(offered),
               [](const InterfaceAddress& at) { return kind_of(at) != Kind::kLoopback; });
  if (!offered.empty()) {
    text += fmt::format("; others: {} (choose with --interface or --address)", describe(offered));
  }
  return text;
}

}  // namespace troupe::net
