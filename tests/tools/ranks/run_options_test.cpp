// The values of torchrun's flags, and what it says of wrong ones.

#include "tools/ranks/run_options.h"

#include <doctest/doctest.h>

#include "tests/support/text.h"

namespace troupe::tools::run_options_tests {
namespace {

using troupe::tests::contains;

std::string refused(const Status& status) {
  REQUIRE_FALSE(status.ok());
  return std::string(status.message());
}

TEST_CASE("redirects: one choice for all ranks, or by local rank") {
  for (const auto& [text, streams] :
       {std::pair("0", Streams{}), std::pair("1", Streams{.out = true, .err = false}),
        std::pair("2", Streams{.out = false, .err = true}),
        std::pair("3", Streams{.out = true, .err = true})}) {
    const auto all = StreamsByRank::parse(text);
    REQUIRE(all.ok());
    CHECK(all->of(0) == streams);
    CHECK(all->of(7) == streams);
    CHECK(all->any() == (streams != Streams{}));
  }
  const auto some = StreamsByRank::parse("0:1,2:3");
  REQUIRE(some.ok());
  CHECK(some->of(0) == Streams{.out = true, .err = false});
  CHECK(some->of(1) == Streams{});
  CHECK(some->of(2) == Streams{.out = true, .err = true});
  CHECK(some->any());
  CHECK_FALSE(StreamsByRank::parse("0:0")->any());
  CHECK_FALSE(StreamsByRank().any());
}

TEST_CASE("redirects that are none are refused in torchrun's words") {
  for (const char* text : {"", "4", "10:1", "0:4", "a:1", "0=1", "0:1;1:1", "33"}) {
    CAPTURE(text);
    const std::string said = refused(StreamsByRank::parse(text).status());
    CHECK(said ==
          std::string(text) + " does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>");
  }
}

TEST_CASE("nodes: a number, or a range") {
  CHECK(parse_nodes("4").value_or(std::pair(0, 0)) == std::pair(4, 4));
  CHECK(parse_nodes("1:4").value_or(std::pair(0, 0)) == std::pair(1, 4));
  for (const char* text : {"1:2:3", "", "a", "1:", ":2", "1.5", " 1"}) {
    CAPTURE(text);
    CHECK(refused(parse_nodes(text).status()) ==
          std::string("nnodes=") + text + " is not in \"MIN:MAX\" format");
  }
  for (const char* text : {"0", "3:2", "-1", "1:1000000"}) {
    CAPTURE(text);
    CHECK(contains(refused(parse_nodes(text).status()), "MIN at most MAX"));
  }
}

TEST_CASE("processes of a node follow its CPUs and GPUs where they are named") {
  CHECK(processes_of_node("3", 16, 8).value_or(0) == 3);
  CHECK(processes_of_node("cpu", 16, 8).value_or(0) == 16);
  CHECK(processes_of_node("cpu", 0, 0).value_or(0) == 1);
  CHECK(processes_of_node("gpu", 16, 8).value_or(0) == 8);
  CHECK(processes_of_node("auto", 16, 8).value_or(0) == 8);
  CHECK(processes_of_node("auto", 16, 0).value_or(0) == 16);
  CHECK(contains(refused(processes_of_node("gpu", 16, 0).status()), "Cuda is not available."));
  CHECK(contains(refused(processes_of_node("x", 16, 0).status()),
                 "Unsupported nproc_per_node value: x"));
  for (const char* text : {"0", "-1", "1000000"}) CHECK_FALSE(processes_of_node(text, 1, 1).ok());
}

}  // namespace
}  // namespace troupe::tools::run_options_tests
