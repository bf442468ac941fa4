#pragma once
// Which of this machine's addresses others can reach it by: found from the interfaces and routes
// that the kernel lists, without connecting anywhere.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::net {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric, "10.0.0.2" or "2001:db8::2"
  bool v6 = false;
  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
};

struct DefaultRoute {
  std::string interface;
  std::uint32_t metric = 0;  // the lowest is used
  bool v6 = false;
};

struct NetworkState {
  std::vector<InterfaceAddress> addresses;  // of interfaces that are up, in the kernel's order
  std::vector<DefaultRoute> default_routes;
};

class NetworkEnvironment {
 public:
  virtual ~NetworkEnvironment() = default;
  virtual Result<NetworkState> read() = 0;
};

// getifaddrs(3), /proc/net/route and /proc/net/ipv6_route.
class SystemNetwork final : public NetworkEnvironment {
 public:
  explicit SystemNetwork(FileSystem& files) : files_(files) {}
  Result<NetworkState> read() override;

 private:
  FileSystem& files_;
};

// The default routes in the kernel's tables. Lines that are not of the table's form are skipped.
std::vector<DefaultRoute> parse_ipv4_routes(std::string_view text);
std::vector<DefaultRoute> parse_ipv6_routes(std::string_view text);

// What the user said, --interface and --address; empty: find it.
struct AddressOverride {
  std::string interface;
  std::string address;
};

struct AddressChoice {
  std::string address;  // numeric
  std::string interface;
  bool loopback = false;  // other machines cannot reach it
  // "10.0.0.2 of eth0, which has the default route"
  std::string why;
  // What else there was, best first.
  std::vector<InterfaceAddress> others;
  // The whole sentence for people: which, why, and how to take another.
  std::string notice() const;
};

// In this order: real interfaces; ends of virtual cables (the only ones in a network namespace);
// tunnels; bridges and the like of containers and virtual machines; link-local addresses; loopback.
// Among equals: the default route with the lowest metric, IPv4, the kernel's order.
// kInvalidArgument for an override that does not exist here, with what does; kUnavailable where
// there is no address at all.
Result<AddressChoice> choose_address(const NetworkState& state, const AddressOverride& wanted = {});

}  // namespace troupe::net
