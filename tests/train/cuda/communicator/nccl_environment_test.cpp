// Variables of the environment that concern communicators on GPUs.

#include "train/cuda/communicator/nccl_environment.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

using std::chrono::seconds;

MapEnvironment with_variable(const std::string& name, const std::string& value) {
  std::map<std::string, std::string, std::less<>> values{{name, value}};
  return MapEnvironment(std::move(values));
}

TEST_CASE("the time-out is the configuration's, else a variable's, else the default") {
  const MapEnvironment empty;
  CHECK(nccl_timeout(empty, {})->limit == seconds(1800));
  CHECK(nccl_timeout(empty, {})->source == "the default");
  const MapEnvironment both({{"AXOLOTL_NCCL_TIMEOUT", "60"}, {"NCCL_TIMEOUT", "70"}});
  const auto first = nccl_timeout(both, {});
  CHECK(first->limit == seconds(60));
  CHECK(first->source == "AXOLOTL_NCCL_TIMEOUT");
  REQUIRE(first->notices.size() == 1);
  CHECK(first->notices[0] == "NCCL_TIMEOUT=70 has no effect: AXOLOTL_NCCL_TIMEOUT comes first");
  const auto configured = nccl_timeout(both, seconds(50));
  CHECK(configured->limit == seconds(50));
  CHECK(configured->source == "ddp_timeout");
  CHECK(configured->notices.size() == 2);
  CHECK(nccl_timeout(with_variable("NCCL_TIMEOUT", "70"), {})->limit == seconds(70));
}

TEST_CASE("a time-out that is none is refused by name") {
  for (const char* text : {"0", "-1", "1h", "1.5", "99999999999"}) {
    CAPTURE(text);
    const auto refused = nccl_timeout(with_variable("AXOLOTL_NCCL_TIMEOUT", text), {});
    CHECK(refused.status().code() == Code::kInvalidArgument);
    CHECK(refused.status().message().find("AXOLOTL_NCCL_TIMEOUT") != std::string::npos);
  }
  // It does not count here.
  CHECK(nccl_timeout(with_variable("NCCL_TIMEOUT", "soon"), seconds(5)).ok());
}

TEST_CASE("variables of torch.distributed that have no effect are told") {
  const auto timeout = nccl_timeout(with_variable("TORCH_NCCL_AVOID_RECORD_STREAMS", "1"), {});
  REQUIRE(timeout->notices.size() == 1);
  CHECK(timeout->notices[0].find("TORCH_NCCL_AVOID_RECORD_STREAMS has no effect") == 0);
}

TEST_CASE("peer-to-peer is turned off where a pair lacks it, and never over the user's word") {
  const PeerAccess pairs[] = {{0, 1, true}, {0, 2, false}};
  const auto setting = peer_access_setting(MapEnvironment(), pairs);
  REQUIRE(setting);
  CHECK(setting->name == "NCCL_P2P_DISABLE");
  CHECK(setting->value == "1");
  CHECK(setting->reason.find("ranks 0 and 2") != std::string::npos);
  CHECK_FALSE(peer_access_setting(MapEnvironment(), std::span(pairs).first(1)));
  CHECK_FALSE(peer_access_setting(with_variable("NCCL_P2P_DISABLE", "0"), pairs));
}

TEST_CASE("NCCL does not block, whatever the user says") {
  CHECK_FALSE(nonblocking_setting(MapEnvironment()));
  CHECK_FALSE(nonblocking_setting(with_variable("NCCL_COMM_BLOCKING", "0")));
  const auto setting = nonblocking_setting(with_variable("NCCL_COMM_BLOCKING", "1"));
  REQUIRE(setting);
  CHECK(setting->name == "NCCL_COMM_BLOCKING");
  CHECK(setting->value == "0");
  CHECK(setting->reason.find("would have no deadline") != std::string::npos);
}

TEST_CASE("what a user says to communicators is known by its names") {
  const char* const said[] = {"PATH=/bin",
                              "NCCL_SOCKET_IFNAME==eth0,eth1",
                              "NCCL_HOSTID=me",
                              "TORCH_NCCL_BLOCKING_WAIT=",
                              "AXOLOTL_NCCL_TIMEOUT=60",
                              "TROUPE_NCCL=0",
                              "XNCCL_DEBUG=INFO",
                              "no variable",
                              nullptr};
  const std::map<std::string, std::string> want = {{"NCCL_SOCKET_IFNAME", "=eth0,eth1"},
                                                   {"TORCH_NCCL_BLOCKING_WAIT", ""},
                                                   {"AXOLOTL_NCCL_TIMEOUT", "60"},
                                                   {"TROUPE_NCCL", "0"}};
  CHECK(communicator_variables(said) == want);
}

}  // namespace
}  // namespace troupe::train
