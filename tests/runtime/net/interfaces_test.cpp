#include "runtime/net/interfaces.h"

#include <doctest/doctest.h>

#include "tests/support/test_data.h"

namespace troupe::net {
namespace {

InterfaceAddress v4(std::string interface, std::string address) {
  return {.interface = std::move(interface), .address = std::move(address), .v6 = false};
}
InterfaceAddress v6(std::string interface, std::string address) {
  return {.interface = std::move(interface), .address = std::move(address), .v6 = true};
}
DefaultRoute route(std::string interface, std::uint32_t metric = 0, bool ipv6 = false) {
  return {.interface = std::move(interface), .metric = metric, .v6 = ipv6};
}

const InterfaceAddress kLo = v4("lo", "127.0.0.1");
const InterfaceAddress kLo6 = v6("lo", "::1");
const InterfaceAddress kDocker = v4("docker0", "172.17.0.1");

struct Case {
  const char* what;
  NetworkState state;
  const char* address;
  const char* why_part;
};

TEST_CASE("the address that others reach this machine by") {
  const Case cases[] = {
      {"default route beside docker",
       {{kLo, kDocker, v4("eth0", "10.0.0.2")}, {route("eth0")}},
       "10.0.0.2",
       "has the default route"},
      {"the default route wins over what comes first",
       {{kLo, v4("eth0", "10.0.0.2"), v4("eth1", "10.1.0.2")}, {route("eth1")}},
       "10.1.0.2",
       "has the default route"},
      {"the lowest metric",
       {{kLo, v4("wlan0", "192.168.0.9"), v4("enp3s0", "192.168.0.8")},
        {route("wlan0", 600), route("enp3s0", 100)}},
       "192.168.0.8",
       "has the default route"},
      {"no default route",
       {{kLo, kDocker, v4("br-12ab", "172.18.0.1"), v4("eth0", "10.0.0.2")}, {}},
       "10.0.0.2",
       "only interface with a global address (there is no default route)"},
      {"several and no default route",
       {{kLo, v4("ib0", "10.9.0.2"), v4("eth0", "10.0.0.2")}, {}},
       "10.9.0.2",
       "first interface with a global address"},
      {"only loopback", {{kLo6, kLo}, {}}, "127.0.0.1", "no other network interface"},
      {"a VPN that takes the default route, beside a real interface",
       {{kLo, v4("tun0", "10.8.0.6"), v4("eth0", "192.168.1.5")},
        {route("tun0", 0), route("eth0", 100)}},
       "192.168.1.5",
       "has the default route"},
      {"only a VPN",
       {{kLo, kDocker, v4("wg0", "10.8.0.6")}, {route("wg0")}},
       "10.8.0.6",
       "has the default route"},
      {"a network namespace's end of a virtual cable",
       {{kLo, v4("veth-b", "10.200.0.2")}, {}},
       "10.200.0.2",
       "the only interface there is, though a virtual one"},
      {"docker's bridge rather than loopback",
       {{kLo, kDocker}, {}},
       "172.17.0.1",
       "though a virtual one"},
      {"docker with the only default route is still not a real interface",
       {{kLo, kDocker, v4("eth0", "10.0.0.2")}, {route("docker0")}},
       "10.0.0.2",
       "only interface"},
      {"IPv4 before IPv6 on one interface",
       {{kLo, v6("eth0", "2001:db8::2"), v4("eth0", "10.0.0.2")}, {route("eth0")}},
       "10.0.0.2",
       "has the default route"},
      {"IPv6 alone",
       {{kLo, kLo6, v6("eth0", "2001:db8::2")}, {route("eth0", 1024, true)}},
       "2001:db8::2",
       "has the default route"},
      {"a link-local address only where there is nothing better",
       {{kLo, v4("eth0", "169.254.3.4"), v4("eth1", "10.0.0.2")}, {}},
       "10.0.0.2",
       "only interface"},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    const auto choice = choose_address(c.state);
    REQUIRE(choice.ok());
    CHECK(choice->address == c.address);
    CHECK_MESSAGE(choice->why.find(c.why_part) != std::string::npos, choice->why);
    CHECK(choice->others.size() == c.state.addresses.size() - 1);
  }
}

TEST_CASE("the sentence names the others and how to take one") {
  const NetworkState state{{kLo, kDocker, v4("eth0", "10.0.0.2"), v4("eth1", "10.1.0.2")},
                           {route("eth0")}};
  CHECK(choose_address(state)->notice() ==
        "using 10.0.0.2 of eth0, which has the default route; others: 10.1.0.2 (eth1), 172.17.0.1 "
        "(docker0) (choose with --interface or --address)");
  CHECK(choose_address({{kLo}, {}})->notice() ==
        "using 127.0.0.1 of lo, since there is no other network interface: other machines cannot "
        "join");
  CHECK(choose_address({{kLo}, {}})->loopback);
}

TEST_CASE("what the user asked for, if it exists") {
  const NetworkState state{{kLo, kDocker, v4("eth0", "10.0.0.2"), v6("eth0", "2001:db8::2")},
                           {route("eth0")}};
  CHECK(choose_address(state, {.interface = "docker0", .address = {}})->address == "172.17.0.1");
  CHECK(choose_address(state, {.interface = "lo", .address = {}})->loopback);
  CHECK(choose_address(state, {.interface = {}, .address = "2001:0db8:0::2"})->address ==
        "2001:db8::2");
  CHECK(choose_address(state, {.interface = "eth0", .address = {}})->why ==
        "10.0.0.2 of eth0, as asked for");

  const Status no_interface = choose_address(state, {.interface = "eth7", .address = {}}).status();
  CHECK(no_interface.code() == Code::kInvalidArgument);
  CHECK(no_interface.message() ==
        "there is no interface 'eth7' with an address here; there are: 10.0.0.2 (eth0), "
        "2001:db8::2 (eth0), 172.17.0.1 (docker0), 127.0.0.1 (lo)");
  for (const AddressOverride& wrong : {AddressOverride{.interface = {}, .address = "10.0.0.3"},
                                       AddressOverride{.interface = {}, .address = "0.0.0.0"},
                                       AddressOverride{.interface = {}, .address = "eth0"},
                                       AddressOverride{.interface = "lo", .address = "10.0.0.2"}}) {
    const Status status = choose_address(state, wrong).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().find("10.0.0.2 (eth0)") != std::string::npos);
  }
  CHECK(choose_address({}).status().code() == Code::kUnavailable);
}

TEST_CASE("the kernel's route tables") {
  const auto v4_routes = parse_ipv4_routes(
      "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
      "eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
      "eth0\t0002A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
      "tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n"
      "down0\t00000000\t00000000\t0002\t0\t0\t0\t00000000\t0\t0\t0\n"
      "odd\t00000000\t0\tzz\t0\t0\t0\t00000000\n"
      "\n");
  REQUIRE(v4_routes.size() == 1);
  CHECK(v4_routes[0].interface == "eth0");
  CHECK(v4_routes[0].metric == 100);

  const std::string zero(32, '0');
  const auto v6_routes = parse_ipv6_routes(
      zero + " 00 " + zero +
      " 00 fe800000000000000000000000000001 00000400 00000001 00000000 "
      "00450003     eth0\n" +
      zero + " 00 " + zero + " 00 " + zero + " ffffffff 00000001 00000000 00200200       lo\n" +
      "fe80" + std::string(28, '0') + " 40 " + zero + " 00 " + zero +
      " 00000100 00000001 00000000 00000001     eth0\n");
  REQUIRE(v6_routes.size() == 1);
  CHECK(v6_routes[0].interface == "eth0");
  CHECK(v6_routes[0].metric == 0x400);
  CHECK(v6_routes[0].v6);
}

TEST_CASE("this machine has an address") {
  PosixFileSystem files;
  const auto state = SystemNetwork(files).read();
  REQUIRE(state.ok());
  const auto choice = choose_address(*state);
  if (state->addresses.empty()) {
    CHECK(choice.status().code() == Code::kUnavailable);
  } else {
    CHECK_FALSE(choice->address.empty());
  }
}

}  // namespace
}  // namespace troupe::net
