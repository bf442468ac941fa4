// How `troupe actors` shows a process of light actors.

#include <doctest/doctest.h>

#include "tools/commands/describe.h"

namespace troupe::tests {
namespace {

TEST_CASE("a process of light actors is listed with their count") {
  wire::ActorInfo host;
  host.type = "Cell[]";
  host.light_count = 10'000;
  CHECK(tools::type_name(host) == "Cell[10000]");
  CHECK(json::find_integer(tools::to_json(host), "light_count") == 10'000);
  wire::ActorInfo plain;
  plain.type = "Cell";
  CHECK(tools::type_name(plain) == "Cell");
  CHECK_FALSE(json::find_integer(tools::to_json(plain), "light_count"));
}

}  // namespace
}  // namespace troupe::tests
