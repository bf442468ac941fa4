#include "tools/launchers/hostfile.h"

#include <doctest/doctest.h>

namespace troupe::tools {
namespace {

RunHost host(const std::string& name, std::vector<int> slots) {
  return {.name = name, .slots = std::move(slots)};
}

const std::vector<RunHost> kTwo{host("w0", {0, 1, 2, 3}), host("w1", {0, 1, 2, 3})};

std::string refusal(std::string_view text) {
  const auto hosts = parse_hostfile(text);
  REQUIRE_FALSE(hosts.ok());
  CHECK(hosts.status().code() == Code::kInvalidArgument);
  return hosts.status().message();
}

std::string filter_refusal(std::string_view include, std::string_view exclude) {
  const auto hosts = filter_hosts(kTwo, include, exclude);
  REQUIRE_FALSE(hosts.ok());
  return hosts.status().message();
}

TEST_CASE("a hostfile names hosts in its order, and says nothing in comments and empty lines") {
  const auto hosts = parse_hostfile(
      "# machines\n\nworker-2 slots=2\n  worker-1\tslots=1  # the small one\nworker-0 slots=0\r\n");
  REQUIRE(hosts.ok());
  CHECK(*hosts ==
        std::vector{host("worker-2", {0, 1}), host("worker-1", {0}), host("worker-0", {})});
}

TEST_CASE("a hostfile that cannot be used is refused in deepspeed's words") {
  CHECK(refusal("a slots=1\na slots=2\n") ==
        "Hostfile contains multiple entries for a, unable to proceed with launching");
  CHECK(refusal("# nothing\n\n") ==
        "Hostfile is empty or not formatted correctly, unable to proceed with launching.");
  for (const char* line : {"a", "a slots", "a slots=", "a slots=x", "a slots=-1", "a 4",
                           "a slots=99999999999", "-oProxyCommand=x slots=1"}) {
    CAPTURE(line);
    CHECK(refusal(line).starts_with(fmt::format("Hostfile contains a bad entry: {}, ", line)));
  }
}

TEST_CASE("filters mean what deepspeed's documentation says") {
  CHECK(filter_hosts(kTwo, "", "").value() == kTwo);
  CHECK(filter_hosts(kTwo, "w0@w1:0,2", "").value() ==
        std::vector{host("w0", {0, 1, 2, 3}), host("w1", {0, 2})});
  CHECK(filter_hosts(kTwo, "w1:2,0,0@w0:3", "").value() ==
        std::vector{host("w0", {3}), host("w1", {0, 2})});
  CHECK(filter_hosts(kTwo, "w1", "").value() == std::vector{host("w1", {0, 1, 2, 3})});
  CHECK(filter_hosts(kTwo, "", "w1:0").value() ==
        std::vector{host("w0", {0, 1, 2, 3}), host("w1", {1, 2, 3})});
  CHECK(filter_hosts(kTwo, "", "w1").value() == std::vector{host("w0", {0, 1, 2, 3})});
}

TEST_CASE("a filter that names what is not there is refused in deepspeed's words") {
  CHECK(filter_refusal("w0", "w1") == "include_str and exclude_str are mutually exclusive.");
  CHECK(filter_refusal("w2", "") == "Hostname 'w2' not found in hostfile");
  CHECK(filter_refusal("", "w2:1") == "Hostname 'w2' not found in hostfile");
  CHECK(filter_refusal("", "w1:9") == "No slot '9' specified on host 'w1'");
  CHECK(filter_refusal("w1:9", "") == "No slot '9' specified on host 'w1'");
  CHECK(filter_refusal("w1:a", "") == "the filter 'w1:a': 'a' is no number of a slot");
  CHECK(filter_refusal("w1@:1", "") == "the filter 'w1@:1' has no host before a '@' or ':'");
  CHECK(filter_refusal("", "w0@w1") == "no slot is left: --exclude leaves nothing of the hosts");
}

}  // namespace
}  // namespace troupe::tools
