// Command lines as argparse reads them.

#include "tools/launchers/flag_parser.h"

#include "tests/tools/launchers/launcher_world.h"

namespace troupe::tools::flag_parser_tests {
namespace {

using namespace tools::tests;

struct Parsed {
  std::string nodes = "1", tee = "0";
  std::optional<std::string> address;
  bool module = false;
  Status status;
  Words rest;
  bool nodes_given = false;
};

Parsed parse(const Words& words, bool prefixes = true,
             std::map<std::string, std::string, std::less<>> variables = {}) {
  Parsed out;
  FlagParser parser("prog", prefixes);
  parser.value("nnodes", out.nodes)
      .value("node-rank", out.address)
      .value("tee|t", out.tee)
      .toggle("module|m", out.module)
      .toggle("max_it", out.module)
      .inert("old-one", true)
      .refused("bad", true, "use the good one");
  out.status = parser.read_environment("PET_", MapEnvironment(std::move(variables)));
  if (!out.status.ok()) return out;
  auto rest = parser.parse(words);
  out.status = rest.status();
  if (rest.ok()) out.rest = *rest;
  out.nodes_given = parser.given("nnodes");
  return out;
}

TEST_CASE("values behind a flag or '=', dashes and underscores, letters, and the rest") {
  const auto out =
      parse({"--nnodes=2", "--node_rank", "1", "-t", "3", "-m", "train.py", "--nnodes", "9"});
  CHECK(out.status.ok());
  CHECK(out.nodes == "2");
  CHECK(out.nodes_given);
  CHECK(out.address == "1");
  CHECK(out.tee == "3");
  CHECK(out.module);
  CHECK(out.rest == Words{"train.py", "--nnodes", "9"});
  CHECK(parse({"-t3", "x"}).tee == "3");
  CHECK(parse({"-t=3", "x"}).tee == "3");
  CHECK(parse({"--nnodes=", "x"}).nodes.empty());
  CHECK(parse({"--", "--nnodes"}).rest == Words{"--nnodes"});
  CHECK(parse({"-", "y"}).rest == Words{"-", "y"});
  CHECK(parse({"--old-one", "3", "x"}).rest == Words{"x"});
  CHECK(parse({}).rest.empty());
  CHECK_FALSE(parse({}).nodes_given);
}

TEST_CASE("beginnings of names, where they are taken and unambiguous") {
  CHECK(parse({"--nn", "3", "x"}).nodes == "3");
  CHECK(parse({"--nn", "3", "x"}, false).status.message() ==
        "prog: error: unrecognized arguments: --nn");
  CHECK(contains(parse({"--n", "3"}).status.message(),
                 "ambiguous option: --n could match --nnodes, --node-rank"));
  CHECK(parse({"--m"}).status.message() ==
        "prog: error: ambiguous option: --m could match --module, --max_it");
}

TEST_CASE("what is wrong is said in argparse's words, with the nearest flag") {
  CHECK(parse({"--bogus"}).status.message() == "prog: error: unrecognized arguments: --bogus");
  CHECK(parse({"--nodes_rank", "1"}).status.message() ==
        "prog: error: unrecognized arguments: --nodes_rank; did you mean '--node-rank'?");
  CHECK(parse({"-z"}).status.message() == "prog: error: unrecognized arguments: -z");
  CHECK(parse({"--nnodes"}).status.message() ==
        "prog: error: argument --nnodes: expected one argument");
  CHECK(parse({"--module=1"}).status.message() == "prog: error: --module takes no value");
  const auto refused = parse({"--bad", "1"}).status;
  CHECK(refused.code() == Code::kUnsupported);
  CHECK(refused.message() == "prog: --bad: use the good one");
}

TEST_CASE("defaults from the environment, which flags come before") {
  CHECK(parse({"x"}, true, {{"PET_NNODES", "4"}, {"PET_NODE_RANK", "2"}, {"PET_MODULE", "1"}})
            .nodes == "4");
  CHECK(parse({"--nnodes", "2", "x"}, true, {{"PET_NNODES", "4"}}).nodes == "2");
  CHECK(parse({"x"}, true, {{"PET_MODULE", "1"}}).module);
  for (const char* off : {"", "0"}) CHECK_FALSE(parse({"x"}, true, {{"PET_MODULE", off}}).module);
  CHECK(contains(parse({"x"}, true, {{"PET_MODULE", "yes"}}).status.message(), "PET_MODULE=yes"));
}

}  // namespace
}  // namespace troupe::tools::flag_parser_tests
