// A program that does not come to host_main in the processes of its actors would drive a cluster in
// each of them, whose actors' processes would do the same, without end.

#include <doctest/doctest.h>

#include "tests/support/command.h"
#include "tests/support/test_data.h"

namespace troupe::tests {
namespace {

CommandResult forgetful(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), bin_dir() + "/test_actors_segment_host");
  return run_command(arguments, {.environment = {{"TROUPE_TEST_FORGETS_HOST_MAIN", "1"}}});
}

}  // namespace

TEST_CASE("an actor's process drives no cluster before its main() has called host_main") {
  const CommandResult refused = forgetful({"host", "--actor", "Memory", "--run", "-"});
  CHECK_MESSAGE(refused.out.find("has not called troupe::host_main") != std::string::npos,
                refused.out, refused.err);
  CHECK(forgetful({"--rank", "3"}).out == "it drives\n");
}

}  // namespace troupe::tests
